"""The programs of examples/, run as a newcomer runs them: against the shipped model, and on a new checkpoint."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.bundle.manifest import Bundle
from tests.golden.shipped import ROOT
from tests.golden.test_shipped import FRENCH, Served, serving
from tests.support.hugging_face import BART_LIKE, make

EXAMPLES = ROOT / "examples"
HANG_SECONDS = 300


@pytest.fixture(scope="module")
def server(bundle: Bundle) -> Iterator[Served]:
    with serving(bundle) as served:
        yield served


def run(*command: str | Path, **environment: str) -> str:
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=os.environ | environment,
        cwd=ROOT,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_translate_prints_translation_reason_and_score(server: Served) -> None:
    printed = run(sys.executable, EXAMPLES / "translate.py", server.address)
    assert f"The cat sat on the mat. → {FRENCH}" in printed
    assert "END, 10 source tokens" in printed


def test_translate_async_keeps_the_order_of_the_texts(server: Served) -> None:
    lines = run(sys.executable, EXAMPLES / "translate_async.py", server.address).splitlines()
    assert [line.split()[2] for line in lines] == [str(number) for number in range(2, 22)]
    assert all("oiseau" in line for line in lines)


def test_semantic_search_ranks_the_similar_sentence_first(server: Served) -> None:
    lines = run(sys.executable, EXAMPLES / "semantic_search.py", server.address).splitlines()
    assert lines[0] == "The dog is sleeping on the floor."
    assert lines[1].endswith("The cat is sleeping on the sofa.")
    similarities = [float(line.split()[0]) for line in lines[1:]]
    assert similarities == sorted(similarities, reverse=True)


def test_an_example_without_a_server_ends_in_one_line() -> None:
    finished = subprocess.run(
        [sys.executable, EXAMPLES / "translate.py", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert finished.returncode == 1
    assert finished.stderr.startswith("127.0.0.1:1: ")
    assert "Traceback" not in finished.stderr


def test_hugging_face_goes_from_checkpoint_to_answer(tmp_path: Path) -> None:
    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    make(BART_LIKE["marian"], checkpoint)
    # The command may not be installed beside this interpreter.
    command = tmp_path / "dragoman"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dragoman.service.cli "$@"\n')
    command.chmod(0o755)
    printed = run(EXAMPLES / "hugging_face.sh", checkpoint, bundle, "fr", "a kite", DRAGOMAN=str(command))
    assert "marian" in printed
    assert printed.splitlines()[-1].strip()
