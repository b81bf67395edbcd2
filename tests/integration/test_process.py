"""The server as a process: starts, refused starts, and ends."""

import asyncio
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from dragoman.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    list_files,
    open_bundle,
    write_manifest,
)
from dragoman.client import AsyncClient, Client, UnavailableError
from tests.support.harness import (
    PATIENCE_SECONDS,
    empty_graph,
    eventually,
    manifest,
    text_of,
    write_bundle,
    write_tokenizer,
)

BLOCKED = "import sys; sys.modules.update(dict.fromkeys({modules}));"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    write_tokenizer(folder / TOKENIZER_FOLDER)
    write_bundle(folder)
    return folder


class Process:
    """A running server process."""

    def __init__(self, bundle: Path, *modes: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.fake_server", str(bundle), *modes],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.printed: list[str] = []

    def until(self, start: str) -> None:
        """Read its output up to a line that begins with `start`."""
        assert self._process.stdout
        for line in self._process.stdout:
            self.printed.append(line.rstrip())
            if line.startswith(start):
                return
        pytest.fail(f"it ended: {self.printed}, {self.errors()}")

    @property
    def ports(self) -> tuple[int, int]:
        """Ports of gRPC and of metrics."""
        found = re.search(r"gRPC on \S+:(\d+), metrics on http://\S+:(\d+)/metrics", "\n".join(self.printed))
        assert found
        return int(found[1]), int(found[2])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def status(self) -> int:
        """Wait for the process to end; returns its exit status."""
        return self._process.wait(PATIENCE_SECONDS)

    def errors(self) -> str:
        assert self._process.stderr
        return self._process.stderr.read()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def process(bundle: Path, *modes: str, until: str = "Try: ") -> Iterator[Process]:
    running = Process(bundle, *modes)
    try:
        if until:
            running.until(until)
        yield running
    finally:
        running.end()


def serve(*arguments: str | Path, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `dragoman serve` to its end, without the `blocked` modules."""
    code = f"{BLOCKED.format(modules=blocked)} from dragoman.service.cli import main; main(prog_name='dragoman')"
    command = [sys.executable, "-c", code, "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


# --- refused starts


def remove(bundle: Path) -> str:
    (bundle / "weights.bin").unlink()
    return "weights.bin: missing"


def shorten(bundle: Path) -> str:
    os.truncate(bundle / "weights.bin", 50)
    return "weights.bin: has 50 bytes, should have 110"


def alter(bundle: Path) -> str:
    (bundle / "encoder.onnx").write_bytes(b"x" * len(empty_graph("encoder.onnx")))
    return "encoder.onnx: altered since export"


def renew(bundle: Path) -> str:
    path = bundle / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": FORMAT_VERSION + 1}))
    return f"format version {FORMAT_VERSION + 1} is newer than {FORMAT_VERSION}"


def empty(bundle: Path) -> str:
    (bundle / MANIFEST_FILE).unlink()
    return "manifest.json: missing"


@pytest.mark.parametrize("spoil", [remove, shorten, alter, renew, empty])
def test_a_bad_bundle_is_refused_before_a_port_is_bound(bundle: Path, spoil: Callable[[Path], str]) -> None:
    fault = spoil(bundle)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # A server that came as far as binding would report the taken port.
        run = serve(bundle, "--port", str(taken.getsockname()[1]))
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("Error: bundle refused: ")
    assert fault in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_port_in_use_is_reported_in_one_line(bundle: Path, option: str) -> None:
    other = {"--port": "--metrics-port", "--metrics-port": "--port"}[option]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = serve(bundle, option, str(port), other, "0")
    assert run.returncode == 1
    assert run.stderr == f"Error: port {port} on 127.0.0.1 is in use\n"


@pytest.mark.parametrize("option", ["--verify", "--no-verify"])
def test_a_missing_runtime_is_named_with_its_install_command(bundle: Path, option: str) -> None:
    run = serve(bundle, option, "--port", "0", "--metrics-port", "0", blocked=("onnxruntime",))
    assert run.returncode == 1
    assert run.stderr == (
        "Error: ONNX Runtime is not installed: "
        "pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs, in a clone of dragoman\n"
    )


def test_unusable_cuda_is_reported_before_anything_else(bundle: Path) -> None:
    pytest.importorskip("onnxruntime")
    from dragoman.service.engine.providers import cuda_fault

    fault = cuda_fault()
    if fault is None:
        pytest.skip("CUDA can run here")
    run = serve(bundle, "--provider", "cuda", "--port", "0", "--metrics-port", "0")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"Error: provider cuda cannot run here: {fault}\n"


def test_a_bundle_that_fails_verification_is_not_served(bundle: Path) -> None:
    with process(bundle, "unverified", until="") as running:
        assert running.status() == 1
        assert running.errors() == "the bundle failed its verification: golden answers: text 3 differs\n"


def test_graphs_that_fail_to_load_are_reported_in_one_line(bundle: Path) -> None:
    pytest.importorskip("onnxruntime")
    run = serve(bundle, "--no-verify", "--port", "0", "--metrics-port", "0")
    assert run.returncode == 1
    assert run.stderr.startswith("Error: the model could not be loaded: ")
    assert len(run.stderr.splitlines()) == 1


def test_the_server_imports_without_torch_onnx_and_runtime() -> None:
    modules = ("torch", "onnx", "onnxscript", "onnxruntime", "safetensors")
    code = f"{BLOCKED.format(modules=modules)} import dragoman.service.server, dragoman.service.cli.serve"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, run.stderr


# --- running servers


def test_it_prints_its_models_and_a_command_to_try(bundle: Path) -> None:
    with process(bundle) as running:
        with Client(running.address) as client:
            assert client.translate(["red kite"]).texts == ("red kite",)
        with urlopen(f"http://127.0.0.1:{running.ports[1]}/readyz") as response:
            assert response.status == 200
        version = open_bundle(bundle).manifest.version
        assert running.printed == [
            "Verifying fake on this machine ...",
            "Loading fake ...",
            f"Serving fake, version {version}: float32 on FakeExecutionProvider, 1 thread.",
            f"gRPC on {running.address}, metrics on http://127.0.0.1:{running.ports[1]}/metrics",
            f'Try: dragoman translate --to fr --address {running.address} "The cat sat on the mat."',
        ]


def put_another_in_place(bundle: Path) -> str:
    """Move `bundle` away and put one with other files in its place; returns its version."""
    new = bundle.with_name("new")
    shutil.copytree(bundle, new)
    (new / "weights.bin").write_bytes(b"other weights")
    write_manifest(new, dataclasses.replace(manifest(), files=list_files(new)))
    bundle.rename(bundle.with_name("former"))
    new.rename(bundle)
    return open_bundle(bundle).manifest.version


async def test_sighup_makes_it_serve_the_new_version(bundle: Path) -> None:
    with process(bundle) as running:
        version = put_another_in_place(bundle)
        running.send(signal.SIGHUP)
        with Client(running.address, timeout_seconds=PATIENCE_SECONDS) as client:
            await eventually(lambda: client.translate(["kite"]).model_version == version)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(bundle: Path, number: signal.Signals) -> None:
    with process(bundle) as running:
        running.send(number)
        assert running.status() == 0
        assert running.errors() == ""


def test_a_signal_during_loading_ends_it_at_once(bundle: Path) -> None:
    with process(bundle, "loading", until="Loading ") as running:
        running.send(signal.SIGTERM)
        assert running.status() == 0
        assert running.errors() == ""


async def test_running_calls_finish_before_it_ends(bundle: Path) -> None:
    go = bundle.with_name("go")
    with process(bundle, "gated") as running:
        async with AsyncClient(running.address, timeout_seconds=PATIENCE_SECONDS, retries=None) as client:
            calls = [asyncio.create_task(client.translate([text_of(24)])) for _ in range(8)]
            await eventually(lambda: in_engine(running) == 8)
            running.send(signal.SIGTERM)
            with pytest.raises(UnavailableError):
                await refused(running)
            go.touch()
            for call in calls:
                assert (await call).texts == (text_of(24),)
            assert await asyncio.to_thread(running.status) == 0
            with pytest.raises(UnavailableError):
                await client.translate(["kite"])


async def test_calls_that_outlast_the_grace_are_ended(bundle: Path) -> None:
    # Outputs of more than PATIENCE_SECONDS, three of which fit into the queue.
    write_bundle(bundle, manifest(max_output_tokens=20_000))
    with process(bundle, "endless", "impatient") as running:
        async with AsyncClient(running.address, timeout_seconds=PATIENCE_SECONDS, retries=None) as client:
            calls = [asyncio.create_task(client.translate([text_of(24)])) for _ in range(3)]
            await eventually(lambda: in_engine(running) == 3)
            running.send(signal.SIGTERM)
            assert await asyncio.to_thread(running.status) == 0
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, UnavailableError)


async def test_a_hanging_engine_does_not_keep_it_running(bundle: Path) -> None:
    with process(bundle, "hanging", "impatient") as running:
        async with AsyncClient(running.address, retries=None) as client:
            call = asyncio.create_task(client.translate(["kite"]))
            await eventually(lambda: in_engine(running) == 1)
            running.send(signal.SIGTERM)
            assert await asyncio.to_thread(running.status) == 0
            with pytest.raises(UnavailableError):
                await call


async def test_a_second_signal_ends_it_at_once(bundle: Path) -> None:
    with process(bundle, "hanging") as running:
        async with AsyncClient(running.address, timeout_seconds=PATIENCE_SECONDS, retries=None) as client:
            call = asyncio.create_task(client.translate(["kite"]))
            await eventually(lambda: in_engine(running) == 1)
            running.send(signal.SIGTERM)
            with pytest.raises(UnavailableError):
                await refused(running)
            running.send(signal.SIGTERM)
            assert await asyncio.to_thread(running.status) == 1
            with pytest.raises(UnavailableError):
                await call


async def refused(running: Process) -> None:
    """Call until a call is refused; never returns."""
    async with AsyncClient(running.address, timeout_seconds=PATIENCE_SECONDS, retries=None) as client:
        while True:
            await client.info()


def in_engine(running: Process) -> float:
    """Number of sequences that run or are queued."""
    with urlopen(f"http://127.0.0.1:{running.ports[1]}/metrics", timeout=PATIENCE_SECONDS) as response:
        page = response.read().decode()
    gauges = re.findall(r'^dragoman_(?:active_rows|queue_sequences)\{model="fake"\} (\S+)$', page, re.MULTILINE)
    return sum(map(float, gauges))
