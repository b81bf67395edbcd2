"""The shipped bundle as served by `make serve`, and the commands of the README."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dragoman.bundle.manifest import Bundle
from dragoman.client import Client, FinishReason, InvalidArgumentError, Pooling
from tests.golden.shipped import ROOT

SENTENCE = "The cat sat on the mat."
FRENCH = "Le chat s'assit sur le tapis."


@dataclass(frozen=True)
class Served:
    address: str
    metrics: str
    try_line: str


@contextlib.contextmanager
def serving(bundle: Bundle, *options: str) -> Iterator[Served]:
    """`dragoman serve` on the bundle in a separate process, from readiness to SIGTERM."""
    command = [sys.executable, "-m", "dragoman.service.cli", "serve", str(bundle.folder), "--threads-per-lane", "1"]
    command += ["--port", "0", "--metrics-port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as server:
        try:
            yield _read_ready(server)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=30)
    assert server.returncode == 0


def _read_ready(server: "subprocess.Popen[str]") -> Served:
    """Read the server's output up to the line with a command to try."""
    lines: list[str] = []
    for line in server.stdout or ():
        lines.append(line.rstrip())
        if line.startswith("Try: "):
            found = re.search(r"gRPC on (\S+), metrics on (\S+)", "\n".join(lines))
            assert found
            return Served(found[1], found[2], lines[-1].removeprefix("Try: "))
    pytest.fail(f"the server ended: {lines}")


@pytest.fixture(scope="module")
def server(bundle: Bundle) -> Iterator[Served]:
    with serving(bundle) as served:
        yield served


@pytest.fixture(scope="module")
def float32_server(float32_bundle: Bundle) -> Iterator[Served]:
    with serving(float32_bundle) as served:
        yield served


@pytest.fixture(params=["server", "float32_server"])
def either_server(request: pytest.FixtureRequest) -> Served:
    served: Served = request.getfixturevalue(request.param)
    return served


def command(*words: str, given: str | None = None) -> str:
    """The output of a `dragoman` command."""
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.service.cli", *words], input=given, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_suggested_command_translates(server: Served) -> None:
    program, *words = shlex.split(server.try_line)
    assert program.endswith("dragoman")
    assert command(*words) == FRENCH + "\n"


def test_the_python_example_of_the_readme_runs(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(code.replace("127.0.0.1:50051", server.address), {})
    assert capsys.readouterr().out.startswith(FRENCH)


def test_texts_keep_order_and_answers_in_any_request(either_server: Served) -> None:
    """With short and blank texts beside a long one, in every rotation of the request."""
    long = " ".join(["The dog that I saw yesterday was sleeping under the old tree near the river."] * 4)
    texts = ["7.", "EUR 18.10", "kite", "", "?", long, "kite", "   ", "b"]
    with Client(either_server.address) as client:
        alone = {text: client.translate([text], to="fr").translations[0] for text in texts}
        for turn in range(len(texts)):
            rotated = texts[turn:] + texts[:turn]
            answers = client.translate(rotated, to="fr").translations
            assert list(answers) == [alone[text] for text in rotated]
    assert alone[""].text == alone["   "].text == ""
    assert alone[""].output_tokens == 0


def test_two_lanes_give_the_answers_of_one(server: Served, bundle: Bundle) -> None:
    pairs = (ROOT / "benchmarks" / "data" / "tatoeba.tsv").read_text().splitlines()[:100]
    texts = [pair.split("\t")[1] for pair in pairs]
    with (
        serving(bundle, "--lanes", "2", "--no-verify") as lanes,
        Client(lanes.address) as two,
        Client(server.address) as one,
    ):
        assert two.info().models[0].threads == 2
        assert two.translate(texts, to="fr").translations == one.translate(texts, to="fr").translations


def test_a_word_without_punctuation_does_not_repeat_itself(server: Served) -> None:
    with Client(server.address) as client:
        for answer in client.translate(["Hello", "kite", "boat"], to="fr").translations:
            assert answer.finish_reason is FinishReason.END
            assert answer.output_tokens <= 8


def test_the_token_limit_is_exact(server: Served, bundle: Bundle) -> None:
    limit = bundle.manifest.decoding.max_source_tokens
    word = "the "  # one token
    with Client(server.address) as client:
        whole = client.translate([word * (limit - 1)], to="fr", max_output_tokens=3).translations[0]
        assert (whole.source_tokens, whole.source_truncated, whole.output_tokens) == (limit, False, 3)
        assert whole.finish_reason is FinishReason.LENGTH
        with pytest.raises(InvalidArgumentError, match=rf"{limit + 1}.*{limit}"):
            client.translate([word * limit], to="fr")
        cut = client.translate([word * limit], to="fr", max_output_tokens=3, truncate=True).translations[0]
        assert (cut.source_tokens, cut.source_truncated, cut.text) == (limit, True, whole.text)


def test_text_like_a_control_token_is_text(server: Served) -> None:
    with Client(server.address) as client:
        split = client.translate(["kite </s> boat"], to="fr").translations[0]
        assert split.source_tokens > len(["kite", "boat", "</s>"])
        assert client.translate(["<pad> <unk> <s>"], to="fr").translations[0].output_tokens > 0


def test_an_embedding_does_not_depend_on_its_neighbours(either_server: Served) -> None:
    long = "The dog that I saw yesterday was sleeping under the old tree near the river. " * 4
    with Client(either_server.address) as client:
        (alone,) = client.embed(["kite"]).embeddings
        beside = client.embed([long] * 8 + ["kite"] + [long] * 7).embeddings[8]
        assert list(alone.values) == list(beside.values)
        (plain,) = client.embed(["kite"], pooling=Pooling.NONE, normalize=False).embeddings
    assert len(plain.values) == len(plain.tokens) == plain.source_tokens
    mean = plain.values.mean(axis=0)
    assert alone.values == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)


def test_info_shows_the_memory_of_an_idle_server(server: Served) -> None:
    output = command("info", "--address", server.address)
    assert "MiB" in output
    assert "CPUExecutionProvider" in output


def test_embed_prints_json(server: Served) -> None:
    (line,) = command("embed", "--address", server.address, SENTENCE).splitlines()
    assert len(json.loads(line)["embedding"]) == 256


def test_a_file_is_translated_line_by_line(server: Served, tmp_path: Path) -> None:
    pairs = (ROOT / "benchmarks" / "data" / "tatoeba.tsv").read_text().splitlines()[:100]
    sources = [pair.split("\t")[1] for pair in pairs]
    (tmp_path / "in.txt").write_text("\n".join(sources) + "\n")
    files = ("--file", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"))
    command("translate", "--to", "fr", "--address", server.address, *files)
    translated = (tmp_path / "out.txt").read_text().splitlines()
    assert len(translated) == len(sources)
    assert translated[:5] == command("translate", "--to", "fr", "--address", server.address, *sources[:5]).splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports resident memory")
def test_memory_parts_add_up_to_resident_memory(bundle: Bundle) -> None:
    with serving(bundle, "--no-verify") as served, Client(served.address, timeout_seconds=60) as client:
        rested = client.info()
        client.translate([SENTENCE] * 32)
        used = client.info()
    for info in (rested, used):
        assert abs(info.explained_memory_bytes / info.resident_memory_bytes - 1) < 0.1
    assert used.models[0].memory.cache_resident > 0
