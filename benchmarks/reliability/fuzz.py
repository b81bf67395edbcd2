"""Does hostile input bring a server down, hang it, or make it fail?

    python -m benchmarks.reliability.fuzz BUNDLE --messages 200000

A real server process. Calls of every method there is, health and reflection too, and of some that there are not, with
messages as `benchmarks.reliability.hostile` draws them; then connections that speak no gRPC, or stop in the middle
of it. Each call must end in time, and none as INTERNAL or UNKNOWN, which would be the server's own fault. Afterwards
a text must be translated as before, and every gauge be at 0. Ends with status 1 otherwise. The printed seed draws the
same messages again.
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
from benchmarks.server_process import GAUGES, ServerProcess, server_process
from dragoman.client import Client

CALL_SECONDS = 60.0
"""What takes longer hangs."""
CONNECTION_SECONDS = 1.0
"""How long a connection that says nothing sensible is kept open by us."""
CALM_SECONDS = 10.0
"""From the last call until all gauges must be at 0."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TEXT = "The cat sat on the mat."

FAULTS = ("INTERNAL", "UNKNOWN")
HANG = "DEADLINE_EXCEEDED"


@dataclass
class Seen:
    """How calls ended."""

    codes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    """Messages, by how they were made."""
    faults: list[str] = field(default_factory=list)
    """Calls that ended as none may."""

    def note(self, fired: Shot, code: str, details: str) -> None:
        """A call has ended."""
        self.codes[code] += 1
        self.kinds[fired.kind] += len(fired.messages)
        if code in (*FAULTS, HANG):
            sent = ", ".join(message[:200].hex() for message in fired.messages)
            self.faults.append(f"{code} {details!r} after {fired.kind} to {fired.method[:80]}: {sent}")


async def fire(channel: grpc.aio.Channel, fired: Shot) -> tuple[str, str]:
    """Make one call of bytes; its status and what was said to it."""
    if fired.method in (WATCH, REFLECTION) or not fired.messages:
        return await fire_stream(channel, fired)
    unary: Any = channel.unary_unary(fired.method)
    try:
        await unary(fired.messages[0], timeout=CALL_SECONDS, metadata=fired.metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name, str(error.details())
    return "OK", ""


async def fire_stream(channel: grpc.aio.Channel, fired: Shot) -> tuple[str, str]:
    """The same of a method that answers each message by itself: the next is sent when the last is answered.

    Where a client sends on while the server ends the call, grpc.aio makes INTERNAL of whatever the server said.
    """
    stream: Any = channel.stream_stream(fired.method)
    call = stream(timeout=CALL_SECONDS, metadata=fired.metadata)
    with suppress(grpc.aio.AioRpcError):
        for message in fired.messages:
            await call.write(message)
            if await call.read() is grpc.aio.EOF:
                break
        if fired.method == WATCH and fired.messages:
            # It would go on for ever.
            call.cancel()
            return "OK", ""
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    return (await call.code()).name, str(await call.details())


async def barrage(address: str, shots: Iterable[Shot], callers: int, total: int | None = None) -> Seen:
    """Make every call, so many at once."""
    seen, left = Seen(), iter(shots)

    async def caller(bar: "tqdm[NoReturn]") -> None:
        async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            for fired in left:
                seen.note(fired, *await fire(channel, fired))
                bar.update(len(fired.messages))

    with tqdm(total=total, unit="message", disable=None) as bar:
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller(bar))
    return seen


async def rudeness(address: str, rng: random.Random, connections: int) -> None:
    """Connections that speak no gRPC, or break off. The server closes them, or we do."""
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
    """Calls with that many messages, or two more."""
    while messages > 0:
        drawn = shot(rng)
        messages -= len(drawn.messages)
        yield drawn


def translated(server: ServerProcess) -> str:
    """What the server says to a text of good will."""
    with Client(server.address, retries=None) as client:
        return client.translate([TEXT]).texts[0]


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--messages", type=click.IntRange(1), default=200_000, show_default=True)
@click.option("--connections", type=click.IntRange(0), default=1000, show_default=True, help="That speak no gRPC.")
@click.option("--callers", type=click.IntRange(1), default=32, show_default=True)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=45.0, show_default=True, help="At most.")
@click.option("--seed", type=int, help="Of an earlier run; else a new one.")
def main(bundle: Path, messages: int, connections: int, callers: int, minutes: float, seed: int | None) -> None:
    """Fuzz a server of BUNDLE. 200,000 messages take about 10 minutes with the shipped model in int8."""
    seed = secrets.randbits(32) if seed is None else seed
    click.echo(f"seed {seed}")
    rng = random.Random(seed)
    with server_process(bundle, "--threads-per-lane", "1") as server:
        before = translated(server)

        async def everything() -> Seen:
            async with asyncio.timeout(60 * minutes):
                seen = await barrage(server.address, volley(rng, messages), callers, messages)
                await rudeness(server.address, rng, connections)
                return seen

        seen = asyncio.run(everything())
        told = list(islice(seen.faults, 10))
        if not server.running():
            told.append("the server has ended")
        elif translated(server) != before:
            told.append("a text is not translated as before")
        elif not server.at_rest(CALM_SECONDS):
            told.append(f"not all of {', '.join(GAUGES)} are at 0")
    click.echo(f"{seen.kinds.total()} messages in {seen.codes.total()} calls: {counted(seen.kinds)}")
    click.echo(f"calls ended: {counted(seen.codes)}; {len(seen.faults)} as none may")
    click.echo(f"{connections} connections that spoke no gRPC")
    if told:
        raise click.ClickException("\n".join(told))


def counted(counts: Counter[str]) -> str:
    """In words, the most frequent first."""
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


if __name__ == "__main__":
    main()
