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
from tests.deploy.queries import LiveQuery, compared_sides, conditions, panels, run_query, substitute

TARGETS = {"activeTargets": [{"labels": {"job": "dragoman"}, "scrapeInterval": "5s"}]}


@contextmanager
def prometheus(*values: str, models: tuple[str, ...] = ("en-fr",)) -> Iterator[Prometheus]:
    """A server with `values` for the series `there`, nothing for `nowhere`, and an error for other queries."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query).get("query", [""])[0]
            data: Any = list(models) if url.path.startswith("/api/v1/label/") else TARGETS
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
            thread.join()


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
def test_result_needs_a_finite_sample(
    instant: bool, expression: str, values: tuple[str, ...], problem: str | None
) -> None:
    with prometheus(*values) as server:
        finding = run_query(LiveQuery("p", expression, instant), server)
    assert (finding and finding.problem) == problem


def dashboard(folder: Path, expression: str) -> Path:
    path = folder / "page.json"
    models = {"name": "model", "query": {"query": "label_values(dragoman_model_info, model)"}}
    panel = {"title": "Panel", "targets": [{"refId": "A", "expr": expression}]}
    row = {"title": "Row", "panels": [panel | {"title": "Inner"}]}
    path.write_text(json.dumps({"title": "Page", "templating": {"list": [models]}, "panels": [panel, row]}))
    return path


def test_panel_queries_use_the_current_label_values(tmp_path: Path) -> None:
    page = dashboard(tmp_path, 'rate(x{model=~"$model"}[$__rate_interval])')
    with prometheus(models=("a.b", "c")) as server:
        queries = list(panels([page], server))
    assert {query.expression for query in queries} == {'rate(x{model=~"a\\\\.b|c"}[20s])'}
    assert [query.origin for query in queries] == ["Page: Panel (A)", "Page: Inner (A)"]


def test_variable_without_values_is_rejected(tmp_path: Path) -> None:
    with (
        prometheus(models=()) as server,
        pytest.raises(ValueError, match=r"^variable model has no value$"),
    ):
        list(panels([dashboard(tmp_path, "x")], server))


def test_unknown_variable_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^no variable \$job for 'x\{job=\"\$job\"\}'$"):
        substitute('x{job="$job"}', {"model": "m"})


def test_every_compared_side_of_an_alert_is_found() -> None:
    assert compared_sides("a:ratio > 0.1 and\n  b - max_over_time(b[30m]) <= 0") == [
        "a:ratio",
        "b - max_over_time(b[30m])",
    ]


def test_alert_part_without_comparison_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^'b' in alert 'a > 1 and b' compares nothing$"):
        compared_sides("a > 1 and b")


def test_recording_rule_is_queried_by_expression_and_by_name() -> None:
    rules = [Rule("a:sum", "sum(a)", False, ""), Rule("High", "a:sum > 1", True, "")]
    assert [query.expression for query in conditions(rules)] == ["sum(a)", "a:sum", "a:sum"]
