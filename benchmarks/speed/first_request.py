"""Latency of a new server's first call, compared with later calls.

    python -m benchmarks.speed.first_request BUNDLE

For each text length, several fresh servers are started. Once a channel is connected and health reports SERVING on it,
one text is translated repeatedly, one call at a time. The first call is compared with the median of the next hundred;
one further call follows after a second of rest. The client is warmed up on another server, because its own first call
is slow too. Exits with status 1 if the median ratio over the starts of a length exceeds 1.3.
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

LATER_CALLS = 100

MAX_RATIO = 1.3
REST_SECONDS = 1.0
READY_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class FirstCall:
    """First call of one server, with later calls to compare it with."""

    seconds: float
    usual_seconds: float
    """Median of the next calls."""
    rested_seconds: float
    """One further call after a rest; shows the part of the latency that is due to idling alone."""

    @property
    def ratio(self) -> float:
        """First call divided by the usual call."""
        return self.seconds / self.usual_seconds


class Caller:
    """Client of a server that reports SERVING."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Wait until health reports SERVING. Raises TimeoutError after READY_TIMEOUT_SECONDS."""
        self._stub = rpc.TranslationServiceStub(channel)
        # The generated health stub has no types.
        health: Any = health_pb2_grpc.HealthStub(channel)
        end = time.monotonic() + READY_TIMEOUT_SECONDS
        request = health_pb2.HealthCheckRequest()
        while health.Check(request).status != health_pb2.HealthCheckResponse.SERVING:
            if time.monotonic() > end:
                raise TimeoutError(f"the server was not ready within {READY_TIMEOUT_SECONDS:.0f} seconds")
            time.sleep(0.01)

    def seconds(self, text: str) -> float:
        """Latency of one call."""
        request = pb.TranslateRequest(texts=[text], truncate=True)
        started = time.perf_counter()
        self._stub.Translate(request)
        return time.perf_counter() - started


@contextmanager
def new_server_caller(bundle: Path) -> Iterator[Caller]:
    """Caller of a new server of `bundle`."""
    with server_process(bundle) as server, grpc.insecure_channel(server.address) as channel:
        grpc.channel_ready_future(channel).result(READY_TIMEOUT_SECONDS)
        yield Caller(channel)


def measure_first_call(bundle: Path, text: str, calls: int) -> FirstCall:
    """Time the first call of a new server and the `calls` after it."""
    with new_server_caller(bundle) as caller:
        seconds = caller.seconds(text)
        usual = statistics.median(caller.seconds(text) for _ in range(calls))
        time.sleep(REST_SECONDS)
        return FirstCall(seconds, usual, caller.seconds(text))


def text_of(words: int, sentences: Sequence[str]) -> str:
    """Text of the first `words` words of `sentences`."""
    return " ".join(itertools.islice((word for sentence in sentences for word in sentence.split()), words))


def summary(words: int, firsts: Sequence[FirstCall]) -> str:
    """Printed result of one text length."""
    median, worst = median_start(firsts), max(firsts, key=lambda each: each.ratio)
    rested = statistics.median(each.rested_seconds for each in firsts)
    return (
        f"{words:4} words: {1000 * median.seconds:7.1f} ms, then {1000 * median.usual_seconds:7.1f} ms: "
        f"{median.ratio:.2f} times; worst of {len(firsts)} starts {worst.ratio:.2f}; "
        f"after a rest {1000 * rested:.1f} ms"
    )


def median_start(firsts: Sequence[FirstCall]) -> FirstCall:
    """Start with the median ratio; of two, the higher."""
    return sorted(firsts, key=lambda each: each.ratio)[len(firsts) // 2]


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--words", type=click.IntRange(1), multiple=True, default=(1, 4, 12, 30, 60), show_default=True)
@click.option("--starts", type=click.IntRange(1), default=7, show_default=True, help="Server starts per text length.")
@click.option("--calls", type=click.IntRange(1), default=LATER_CALLS, show_default=True, help="Calls after the first.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, words: Sequence[int], starts: int, calls: int, data: Path) -> None:
    """Time the first calls of fresh servers of BUNDLE. About 5 minutes on two quiet cores."""
    sentences = [pair.source for pair in read_pairs(data)]
    with new_server_caller(bundle) as caller:
        caller.seconds(sentences[0])
    slow = []
    for length in words:
        text = text_of(length, sentences)
        found = [measure_first_call(bundle, text, calls) for _ in range(starts)]
        click.echo(summary(length, found))
        if median_start(found).ratio > MAX_RATIO:
            slow.append(length)
    if slow:
        lengths = ", ".join(map(str, slow))
        raise click.ClickException(f"first calls of {lengths} words take more than {MAX_RATIO} times as long")


if __name__ == "__main__":
    main()
