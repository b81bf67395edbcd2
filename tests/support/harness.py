"""A whole server around FakeRunner: real tokenizer, real engine, real gRPC on a free port of the loopback."""

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
"""Of the tokenizer; 256 of them are the bytes."""

MAX_SOURCE_TOKENS = 24
MAX_CHARACTERS = 200
DIMENSION = 3
"""Of FakeRunner's states."""

PATIENCE_SECONDS = 30
"""How long a test waits for what must happen, on however busy a machine."""

# fmt: off
WORDS = (
    "kite", "boat", "river", "stone", "tree", "bird", "dog", "house", "night", "day", "red", "blue", "small", "green",
    "old", "quick", "runs", "sings", "walks", "sleeps", "falls", "near", "under", "over", "the",
)
# fmt: on


def sentences(count: int, seed: int = 0) -> list[str]:
    """Made-up sentences of 1 to 12 words, no two alike."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(rng.choices(WORDS, k=rng.randint(1, 12)))] = None
    return list(found)


@functools.cache
def tokenizer() -> SentencePieceTokenizer:
    """A small tokenizer, the same for the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        return SentencePieceTokenizer(Path(folder))


def write_tokenizer(folder: Path) -> None:
    """Learn that tokenizer, and write it into `folder`."""
    train_tokenizer(sentences(300, seed=99), folder, PIECES)


def manifest(
    *,
    name: str = "fake",
    source_languages: tuple[str, ...] = ("en",),
    target_languages: tuple[str, ...] = ("fr",),
    max_characters: int = MAX_CHARACTERS,
    max_output_tokens: int = 48,
) -> Manifest:
    """What a bundle that FakeRunner runs would say of itself."""
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
    """The same of a model that only embeds."""
    whole = manifest()
    size = dataclasses.replace(whole.dimensions, decoder_layers=0)
    return dataclasses.replace(
        whole, dimensions=size, target_languages=(), embedding=embedding or EmbeddingRules(), version="ba9876543210"
    )


def write_bundle(folder: Path, what: Manifest | None = None, note: str = "") -> None:
    """A bundle without sense but in order, which `note` makes another than others; `folder` may hold a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ENCODER_FILE, DECODER_FILE):
        (folder / name).write_bytes(empty_graph(name + note))
    for name in (WEIGHTS_FILE, REPORT_FILE):
        (folder / name).write_text(name * 10 + note)
    (folder / GOLDEN_FILE).write_text("[]")
    write_manifest(folder, dataclasses.replace(what or manifest(), files=list_files(folder)))


def empty_graph(note: str = "") -> bytes:
    """The file of an ONNX graph that computes nothing, which `note` makes another than others."""
    opset, text = bytes((0x42, 2, 0x10, OPSET)), note.encode()
    return opset + bytes((0x32, len(text))) + text


def text_of(tokens: int) -> str:
    """A text of exactly so many tokens, the end token counted."""
    text = " ".join(["kite"] * (tokens - 1))
    assert len(tokenizer().encode(text)) == tokens
    return text


def token_of(word: str) -> int:
    """The one token of a word."""
    token, _end = tokenizer().encode(word)
    return token


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@dataclass
class Running:
    """A server that runs, and what stands behind it."""

    server: Server
    runner: FakeRunner

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def client(self) -> AsyncClient:
        return AsyncClient(self.address, timeout_seconds=PATIENCE_SECONDS, retries=None)

    def value(self, name: str, **labels: str) -> float:
        """A sample of the registry; 0 if it is not there."""
        return self.server.registry.get_sample_value(name, labels) or 0.0


def health(channel: grpc.aio.Channel) -> Any:
    """The stub of grpc.health.v1, which nobody has typed for asyncio."""
    return health_pb2_grpc.HealthStub(channel)


def loopback(settings: ServerSettings | None = None) -> ServerSettings:
    """The settings with free ports; unless others are given, FakeRunner may say a word as often as its source does.

    Without rehearsal, so that what FakeRunner counts is what a test asked for.
    """
    settings = settings or ServerSettings(repetition_tokens=0)
    return settings.model_copy(update={"port": 0, "metrics_port": 0, "threads_per_lane": 1, "warmup_seconds": 0})


def loaded(runner: FakeRunner, what: Manifest) -> LoadedModel:
    """A model that FakeRunner stands for."""
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
    """A server that serves; stopped at the end."""
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
    """Status and page of `path` on the metrics port."""

    def get() -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{server.metrics_port}{path}") as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def eventually(true: Callable[[], bool]) -> None:
    """Wait until something that another thread brings about is so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
