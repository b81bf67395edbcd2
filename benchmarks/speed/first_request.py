"""What the first caller of a server waits, beside those after it.

    python -m benchmarks.speed.first_request BUNDLE

For each length of text a server is started anew, several times over. A channel is connected, health has said SERVING on
it, and then one text is translated again and again, one call at a time. The first call is held against the median of
the next hundred, and beside it stands one after a second of rest. The caller's own first call, which would be slow as
well, has gone to another server before. Ends with status 1 where, by the median over the starts of a length, a first
call takes more than 1.3 times as long.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.server_process import server_process
from benchmarks.speed.sentences import DATA
from dragoman.model.training.corpus import read_pairs
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc

NEXT = 100
"""Calls after the first."""

BOUND = 1.3
REST_SECONDS = 1.0
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class First:
    """One server's first call."""

    seconds: float
    usual_seconds: float
    """The median of the next calls."""
    rested_seconds: float
    """One call more, after a rest: what of the first one's wait is not for being the first."""

    @property
    def ratio(self) -> float:
        """How many times the usual."""
        return self.seconds / self.usual_seconds


class Caller:
    """A connection over which health has said SERVING."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Raises TimeoutError where health does not say so."""
        self._stub = rpc.TranslationServiceStub(channel)
        # Nobody has typed it.
        health: Any = health_pb2_grpc.HealthStub(channel)
        end = time.monotonic() + PATIENCE_SECONDS
        request = health_pb2.HealthCheckRequest()
        while health.Check(request).status != health_pb2.HealthCheckResponse.SERVING:
            if time.monotonic() > end:
                raise TimeoutError(f"the server was not ready within {PATIENCE_SECONDS:.0f} seconds")
            time.sleep(0.01)

    def seconds(self, text: str) -> float:
        """How long one call takes."""
        request = pb.TranslateRequest(texts=[text], truncate=True)
        started = time.perf_counter()
        self._stub.Translate(request)
        return time.perf_counter() - started


@contextmanager
def calling(bundle: Path) -> Iterator[Caller]:
    """A new server of `bundle`, and who calls it."""
    with server_process(bundle) as server, grpc.insecure_channel(server.address) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE_SECONDS)
        yield Caller(channel)


def first(bundle: Path, text: str, calls: int) -> First:
    """The first call of a new server, and the `calls` after it."""
    with calling(bundle) as caller:
        seconds = caller.seconds(text)
        usual = statistics.median(caller.seconds(text) for _ in range(calls))
        time.sleep(REST_SECONDS)
        return First(seconds, usual, caller.seconds(text))


def text_of(words: int, sentences: Sequence[str]) -> str:
    """A text of so many words, out of `sentences` in their order."""
    return " ".join(itertools.islice((word for sentence in sentences for word in sentence.split()), words))


def line(words: int, firsts: Sequence[First]) -> str:
    """What is told of one length."""
    middle, worst = middle_of(firsts), max(firsts, key=lambda each: each.ratio)
    rested = statistics.median(each.rested_seconds for each in firsts)
    return (
        f"{words:4} words: {1000 * middle.seconds:7.1f} ms, then {1000 * middle.usual_seconds:7.1f} ms: "
        f"{middle.ratio:.2f} times; worst of {len(firsts)} starts {worst.ratio:.2f}; "
        f"after a rest {1000 * rested:.1f} ms"
    )


def middle_of(firsts: Sequence[First]) -> First:
    """The start whose ratio is the median, the higher of two."""
    return sorted(firsts, key=lambda each: each.ratio)[len(firsts) // 2]


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--words", type=click.IntRange(1), multiple=True, default=(1, 4, 12, 30, 60), show_default=True)
@click.option("--starts", type=click.IntRange(1), default=7, show_default=True, help="Of a server, for each length.")
@click.option("--calls", type=click.IntRange(1), default=NEXT, show_default=True, help="After the first.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, words: Sequence[int], starts: int, calls: int, data: Path) -> None:
    """Start servers of BUNDLE, and time their first calls. About 5 minutes on two quiet cores."""
    sentences = [pair.source for pair in read_pairs(data)]
    with calling(bundle) as caller:
        caller.seconds(sentences[0])
    slow = []
    for length in words:
        text = text_of(length, sentences)
        found = [first(bundle, text, calls) for _ in range(starts)]
        click.echo(line(length, found))
        if middle_of(found).ratio > BOUND:
            slow.append(length)
    if slow:
        lengths = ", ".join(map(str, slow))
        raise click.ClickException(f"first calls of {lengths} words take more than {BOUND} times as long")


if __name__ == "__main__":
    main()
