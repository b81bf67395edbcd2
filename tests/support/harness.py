"""A whole server around FakeRunner: real tokenizer, engine and gRPC, on a free port of the loopback."""

import asyncio
import dataclasses
import functools
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
from grpc_health.v1 import health_pb2_grpc

from dragoman.bundle.graphs import DECODER_FILE, ENCODER_FILE, OPSET, Dimensions
from dragoman.bundle.manifest import GOLDEN_FILE, REPORT_FILE, WEIGHTS_FILE, Manifest, list_files, write_manifest
from dragoman.bundle.rules import DecodingRules, EmbeddingRules
from dragoman.bundle.tokenizers import SentencePieceTokenizer
from dragoman.client import AsyncClient
from dragoman.model.training.vocabulary import train_tokenizer
from dragoman.service.loading.loader import LoadedModel
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import END, START, FakeRunner

PIECES = 305
"""Vocabulary size of the tokenizer; 256 pieces are the bytes."""

MAX_SOURCE_TOKENS = 24
MAX_CHARACTERS = 200
DIMENSION = 3
"""Width of FakeRunner's states."""

PATIENCE_SECONDS = 60
"""Bound on each wait of a test. Only a hang takes so long, however busy the machine."""

# fmt: off
WORDS = (
    "kite", "boat", "river", "stone", "tree", "bird", "dog", "house", "night", "day", "red", "blue", "small", "green",
    "old", "quick", "runs", "sings", "walks", "sleeps", "falls", "near", "under", "over", "the",
)
# fmt: on


def sentences(count: int, seed: int = 0) -> list[str]:
    """Distinct made-up sentences of 1 to 12 words."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(rng.choices(WORDS, k=rng.randint(1, 12)))] = None
    return list(found)


@functools.cache
def tokenizer() -> SentencePieceTokenizer:
    """A small tokenizer, trained once per test run."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        return SentencePieceTokenizer(Path(folder))


def write_tokenizer(folder: Path) -> None:
    """Train the tokenizer of `tokenizer`, and write it into `folder`."""
    train_tokenizer(sentences(300, seed=99), folder, PIECES)


def manifest(
    *,
    name: str = "fake",
    source_languages: tuple[str, ...] = ("en",),
    target_languages: tuple[str, ...] = ("fr",),
    max_characters: int = MAX_CHARACTERS,
    max_output_tokens: int = 48,
) -> Manifest:
    """The manifest of a bundle for FakeRunner."""
    return Manifest(
        format_version=1,
        name=name,
        version="0123456789ab",
        family="transformer",
        source_languages=source_languages,
        target_languages=target_languages,
        precision="float32",
        dimensions=Dimensions(
            encoder_layers=1,
            decoder_layers=1,
            heads=1,
            head_width=DIMENSION,
            d_model=DIMENSION,
            target_vocabulary=PIECES,
        ),
        decoding=DecodingRules(
            start_id=START,
            end_ids=(END,),
            pad_id=0,
            max_source_tokens=MAX_SOURCE_TOKENS,
            max_output_tokens=max_output_tokens,
            output_margin=max_output_tokens,
        ),
        max_source_characters=max_characters,
        files=(),
    )


def encoder_manifest(embedding: EmbeddingRules | None = None) -> Manifest:
    """The manifest of a model for FakeRunner that only embeds."""
    whole = manifest()
    size = dataclasses.replace(whole.dimensions, decoder_layers=0)
    return dataclasses.replace(
        whole, dimensions=size, target_languages=(), embedding=embedding or EmbeddingRules(), version="ba9876543210"
    )


def write_bundle(folder: Path, what: Manifest | None = None, note: str = "") -> None:
    """Write a well-formed bundle without a usable model; `note` makes it distinct. `folder` may hold a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ENCODER_FILE, DECODER_FILE):
        (folder / name).write_bytes(empty_graph(name + note))
    for name in (WEIGHTS_FILE, REPORT_FILE):
        (folder / name).write_text(name * 10 + note)
    (folder / GOLDEN_FILE).write_text("[]")
    write_manifest(folder, dataclasses.replace(what or manifest(), files=list_files(folder)))


def empty_graph(note: str = "") -> bytes:
    """The file of an ONNX graph that computes nothing; `note` makes it distinct."""
    opset, text = bytes((0x42, 2, 0x10, OPSET)), note.encode()
    return opset + bytes((0x32, len(text))) + text


def text_of(tokens: int) -> str:
    """A text of exactly `tokens` tokens, including the end token."""
    text = " ".join(["kite"] * (tokens - 1))
    assert len(tokenizer().encode(text)) == tokens
    return text


def token_of(word: str) -> int:
    """The token of `word`, which has just one."""
    token, _end = tokenizer().encode(word)
    return token


def free_port() -> int:
    """A loopback port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


class Clock:
    """The real clock, until a test sets it forward: a deadline then passes at a known point of the test."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Running:
    """A running server and its runner."""

    server: Server
    runner: FakeRunner

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def client(self) -> AsyncClient:
        return AsyncClient(self.address, timeout_seconds=PATIENCE_SECONDS, retries=None)

    def value(self, name: str, **labels: str) -> float:
        """A sample of the registry; 0 if there is none."""
        return self.server.registry.get_sample_value(name, labels) or 0.0


def health(channel: grpc.aio.Channel) -> Any:
    """The stub of grpc.health.v1, which has no types for asyncio."""
    return health_pb2_grpc.HealthStub(channel)


def loopback(settings: ServerSettings | None = None) -> ServerSettings:
    """The settings with free ports; by default, FakeRunner may repeat a word as often as its source does.

    There are no trial calls, so that FakeRunner counts only the calls of the test.
    """
    settings = settings or ServerSettings(repetition_tokens=0)
    return settings.model_copy(update={"port": 0, "metrics_port": 0, "threads_per_lane": 1, "warmup_seconds": 0})


def loaded(runner: FakeRunner, what: Manifest) -> LoadedModel:
    """A loaded model with `runner` in place of a real one."""
    return LoadedModel(
        what, tokenizer(), (runner,), "FakeExecutionProvider", "0.0", load_seconds=1.5, warmup_seconds=0.5
    )


@asynccontextmanager
async def serving(
    runner: FakeRunner | None = None,
    what: Manifest | None = None,
    settings: ServerSettings | None = None,
    grace_seconds: float = 1,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Running]:
    """A server that is ready; stopped at the end."""
    runner, what = runner or FakeRunner(), what or manifest()
    server = Server(loopback(settings), what, clock=clock)
    await server.open()
    try:
        await server.add(loaded(runner, what))
        yield Running(server, runner)
    finally:
        runner.gate.set()
        await server.stop(grace_seconds)


async def fetch(server: Server, path: str) -> tuple[int, str]:
    """Status and body of `path` on the metrics port."""

    def get() -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{server.metrics_port}{path}", timeout=PATIENCE_SECONDS) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def eventually(true: Callable[[], bool]) -> None:
    """Wait until `true` holds, which another thread or task brings about."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
