import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.deploy.prometheus_api import Prometheus, Rule
from tests.deploy.queries import Question, ask, compared, conditions, panels, put_in

TARGETS = {"activeTargets": [{"labels": {"job": "dragoman"}, "scrapeInterval": "5s"}]}


@contextmanager
def prometheus(*values: str, models: tuple[str, ...] = ("en-fr",)) -> Iterator[Prometheus]:
    """One that has `values` for the series `there`, nothing for `nowhere`, and an error for anything else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            query = parse_qs(asked.query).get("query", [""])[0]
            data: Any = list(models) if asked.path.startswith("/api/v1/label/") else TARGETS
            if query == "there":
                data = {"result": [{"metric": {}, "value": [1, value], "values": [[1, value]]} for value in values]}
            elif query == "nowhere":
                data = {"result": []}
            elif query:
                self.answer(400, {"error": "parse error"})
                return
            self.answer(200, {"data": data})

        def answer(self, status: int, body: Any) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Prometheus(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join(60)


@pytest.mark.parametrize("instant", [True, False])
@pytest.mark.parametrize(
    ("expression", "values", "problem"),
    [
        ("there", ("NaN", "0"), None),
        ("there", ("NaN", "+Inf"), "empty"),
        ("nowhere", (), "empty"),
        ("rate(", (), 'error: {"error": "parse error"}'),
    ],
)
def test_an_answer_needs_a_finite_sample(
    instant: bool, expression: str, values: tuple[str, ...], problem: str | None
) -> None:
    with prometheus(*values) as server:
        finding = ask(Question("p", expression, instant), server)
    assert (finding and finding.problem) == problem


def dashboard(folder: Path, expression: str) -> Path:
    path = folder / "page.json"
    models = {"name": "model", "query": {"query": "label_values(dragoman_model_info, model)"}}
    panel = {"title": "Panel", "targets": [{"refId": "A", "expr": expression}]}
    row = {"title": "Row", "panels": [panel | {"title": "Inner"}]}
    path.write_text(json.dumps({"title": "Page", "templating": {"list": [models]}, "panels": [panel, row]}))
    return path


def test_panels_are_asked_with_the_values_that_there_are(tmp_path: Path) -> None:
    page = dashboard(tmp_path, 'rate(x{model=~"$model"}[$__rate_interval])')
    with prometheus(models=("a.b", "c")) as server:
        questions = list(panels([page], server))
    assert {question.expression for question in questions} == {'rate(x{model=~"a\\\\.b|c"}[20s])'}
    assert [question.place for question in questions] == ["Page: Panel (A)", "Page: Inner (A)"]


def test_a_variable_without_a_value_is_refused(tmp_path: Path) -> None:
    with (
        prometheus(models=()) as server,
        pytest.raises(ValueError, match=r"^variable model has no value$"),
    ):
        list(panels([dashboard(tmp_path, "x")], server))


def test_a_variable_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no variable \$job for 'x\{job=\"\$job\"\}'$"):
        put_in('x{job="$job"}', {"model": "m"})


def test_an_alert_is_asked_for_all_that_it_compares() -> None:
    assert compared("a:ratio > 0.1 and\n  b - max_over_time(b[30m]) <= 0") == ["a:ratio", "b - max_over_time(b[30m])"]


def test_an_alert_that_compares_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^'b' in alert 'a > 1 and b' compares nothing$"):
        compared("a > 1 and b")


def test_a_recording_is_asked_for_what_it_records_and_under_its_name() -> None:
    rules = [Rule("a:sum", "sum(a)", False, ""), Rule("High", "a:sum > 1", True, "")]
    assert [question.expression for question in conditions(rules)] == ["sum(a)", "a:sum", "a:sum"]
