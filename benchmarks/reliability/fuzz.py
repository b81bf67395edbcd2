"""Fuzz test of the gRPC surface: crashes, hangs and internal errors.

    python -m benchmarks.reliability.fuzz BUNDLE --messages 200000

Against a real server process, calls of every method, health and reflection included, and of methods that do not exist,
with messages drawn by `benchmarks.reliability.hostile`. Then connections that do not speak gRPC, or break off. Each
call must end in time, and none as INTERNAL or UNKNOWN, which would be a fault of the server. Afterwards a text must be
translated as before, and every gauge must be at 0. The exit status is 1 otherwise. The printed seed reproduces the
messages.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import click
import grpc
from tqdm import tqdm

from benchmarks.reliability.hostile import REFLECTION, WATCH, Shot, shot
from benchmarks.reliability.scenario import ONE_THREAD, bundle_argument, finish
from benchmarks.server_process import GAUGES, ServerProcess, server_process
from dragoman.client import Client

CALL_SECONDS = 60.0
"""Limit beyond which a call counts as hung."""
CONNECTION_SECONDS = 1.0
"""Time after which the generator closes a broken connection."""
CALM_SECONDS = 10.0
"""Time from the last call within which all gauges must return to 0."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TEXT = "The cat sat on the mat."

FAULTS = ("INTERNAL", "UNKNOWN")
HANG = "DEADLINE_EXCEEDED"


@dataclass
class Outcome:
    """Statuses of the calls, and their faults."""

    codes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    """Messages by mutation."""
    faults: list[str] = field(default_factory=list)
    """Descriptions of the calls with a forbidden status."""

    def record(self, sent_call: Shot, code: str, details: str) -> None:
        """Record the end of a call."""
        self.codes[code] += 1
        self.kinds[sent_call.kind] += len(sent_call.messages)
        if code in (*FAULTS, HANG):
            sent = ", ".join(message[:200].hex() for message in sent_call.messages)
            self.faults.append(f"{code} {details!r} after {sent_call.kind} to {sent_call.method[:80]}: {sent}")


async def fire(channel: grpc.aio.Channel, sent_call: Shot) -> tuple[str, str]:
    """Make one call. Returns its status and details."""
    if sent_call.method in (WATCH, REFLECTION) or not sent_call.messages:
        return await fire_stream(channel, sent_call)
    unary: Any = channel.unary_unary(sent_call.method)
    try:
        await unary(sent_call.messages[0], timeout=CALL_SECONDS, metadata=sent_call.metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name, str(error.details())
    return "OK", ""


async def fire_stream(channel: grpc.aio.Channel, sent_call: Shot) -> tuple[str, str]:
    """Make one call of a streaming method, a message after each answer. Returns its status and details.

    If a client keeps sending while the server ends the call, grpc.aio replaces the server's status with INTERNAL.
    """
    stream: Any = channel.stream_stream(sent_call.method)
    call = stream(timeout=CALL_SECONDS, metadata=sent_call.metadata)
    with suppress(grpc.aio.AioRpcError):
        for message in sent_call.messages:
            await call.write(message)
            if await call.read() is grpc.aio.EOF:
                break
        if sent_call.method == WATCH and sent_call.messages:
            # A watch never ends by itself.
            call.cancel()
            return "OK", ""
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    return (await call.code()).name, str(await call.details())


async def barrage(address: str, shots: Iterable[Shot], callers: int, total: int | None = None) -> Outcome:
    """Make every call, `callers` at a time."""
    outcome, left = Outcome(), iter(shots)

    async def caller(bar: "tqdm[NoReturn]") -> None:
        async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            for sent_call in left:
                outcome.record(sent_call, *await fire(channel, sent_call))
                bar.update(len(sent_call.messages))

    with tqdm(total=total, unit="message", disable=None) as bar:
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller(bar))
    return outcome


async def rudeness(address: str, rng: random.Random, connections: int) -> None:
    """Open connections that do not speak gRPC, or break off; either side closes them."""
    host, _, port = address.rpartition(":")
    for _ in range(connections):
        reader, writer = await asyncio.open_connection(host, int(port))
        sent = PREFACE[: rng.randint(0, len(PREFACE))] if rng.random() < 0.3 else PREFACE
        if rng.random() < 0.3:
            sent = rng.randbytes(rng.randint(1, 2000))
        for _ in range(rng.randint(0, 5)):
            body = rng.randbytes(rng.randint(0, 40))
            kind, flags, stream = rng.randrange(12), rng.randrange(256), rng.randrange(8)
            length = len(body) if rng.random() < 0.8 else rng.getrandbits(24)
            sent += length.to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body
        writer.write(sent)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.01 if rng.random() < 0.9 else CONNECTION_SECONDS):
                await reader.read()
        writer.close()


def volley(rng: random.Random, messages: int) -> Iterator[Shot]:
    """Random calls with `messages` messages in all, or up to two more."""
    while messages > 0:
        drawn = shot(rng)
        messages -= len(drawn.messages)
        yield drawn


def translated(server: ServerProcess) -> str:
    """The server's translation of a valid text."""
    with Client(server.address, retries=None) as client:
        return client.translate([TEXT]).texts[0]


@click.command()
@bundle_argument
@click.option("--messages", type=click.IntRange(1), default=200_000, show_default=True)
@click.option(
    "--connections", type=click.IntRange(0), default=1000, show_default=True, help="Connections that do not speak gRPC."
)
@click.option("--callers", type=click.IntRange(1), default=32, show_default=True)
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), default=45.0, show_default=True, help="Time limit of the run."
)
@click.option("--seed", type=int, help="Seed of an earlier run; default: a new one.")
def main(bundle: Path, messages: int, connections: int, callers: int, minutes: float, seed: int | None) -> None:
    """Fuzz a server of BUNDLE. 200,000 messages take about 10 minutes with the shipped model in int8."""
    seed = secrets.randbits(32) if seed is None else seed
    click.echo(f"seed {seed}")
    rng = random.Random(seed)
    with server_process(bundle, *ONE_THREAD) as server:
        before = translated(server)

        async def run_all() -> Outcome:
            async with asyncio.timeout(60 * minutes):
                outcome = await barrage(server.address, volley(rng, messages), callers, messages)
                await rudeness(server.address, rng, connections)
                return outcome

        outcome = asyncio.run(run_all())
        faults = list(islice(outcome.faults, 10))
        if not server.running():
            faults.append("the server process ended")
        elif translated(server) != before:
            faults.append("the translation of the probe text changed")
        elif not server.at_rest(CALM_SECONDS):
            faults.append(f"not all of {', '.join(GAUGES)} are at 0")
    click.echo(f"{outcome.kinds.total()} messages in {outcome.codes.total()} calls: {counts_as_text(outcome.kinds)}")
    click.echo(f"calls ended: {counts_as_text(outcome.codes)}; {len(outcome.faults)} faults")
    click.echo(f"{connections} connections without gRPC")
    finish(faults)


def counts_as_text(counts: Counter[str]) -> str:
    """Counts as text, the most frequent first."""
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


if __name__ == "__main__":
    main()
