"""Does a busy server say in time that it is well, and is a text of a megabyte refused at once?

    python -m benchmarks.reliability.health BUNDLE

The server has one processor and one thread, the generator the other. 64 callers keep it busy with texts as long as the
model takes; meanwhile its health is asked for again and again, and every second a text of a million characters without
a space comes in. Ends with status 1 where 99 of 100 checks were not answered within 50 ms, or one such text was not
refused within 200 ms.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import grpc
from grpc_health.v1 import health_pb2

from benchmarks.server_process import ServerProcess, pinned, server_process
from benchmarks.speed.sentences import DATA
from dragoman.client import AsyncClient
from dragoman.model.training.corpus import read_pairs
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.names import SERVICE

MAX_CHECK_SECONDS = 0.05
"""Of 99 of 100."""
MAX_REFUSAL_SECONDS = 0.2
"""Of each."""
CALL_SECONDS = 300.0
CHECK_EVERY_SECONDS = 0.02
REFUSE_EVERY_SECONDS = 1.0
SENTENCES = 30
"""Of a long text; it is cut where the model ends."""

CHECK = health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString()
HUGE = pb.TranslateRequest(texts=["x" * 1_000_000]).SerializeToString()
OPTIONS = [("grpc.enable_http_proxy", 0)]


async def busy(client: AsyncClient, texts: list[str], over: asyncio.Event) -> int:
    """One caller of long texts; how many were answered."""
    answered = 0
    while not over.is_set():
        await client.translate([texts[answered % len(texts)]], truncate=True)
        answered += 1
    return answered


async def timed(ask: Callable[[], Awaitable[Any]], every: float, until: float) -> list[float]:
    """How many seconds each asking took, one begun every so many seconds."""
    found = []
    while time.monotonic() < until:
        started = time.monotonic()
        await ask()
        found.append(time.monotonic() - started)
        await asyncio.sleep(max(0.0, started + every - time.monotonic()))
    return found


async def measure(server: ServerProcess, texts: list[str], callers: int, seconds: float) -> list[str]:
    """What is beyond its bound, in words."""
    over = asyncio.Event()
    async with (
        AsyncClient(server.address, timeout_seconds=CALL_SECONDS, retries=None) as client,
        grpc.aio.insecure_channel(server.address, options=OPTIONS) as health,
        grpc.aio.insecure_channel(server.address, options=OPTIONS) as other,
    ):
        check: Any = health.unary_unary("/grpc.health.v1.Health/Check")
        translate: Any = other.unary_unary(f"/{SERVICE}/Translate")

        async def refused() -> None:
            try:
                await translate(HUGE)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    return
                raise
            raise click.ClickException("a text of a million characters was answered")

        # Each its own part of the texts, so that they do not come in step.
        callers_ = [asyncio.create_task(busy(client, texts[n % len(texts) :] + texts, over)) for n in range(callers)]
        await asyncio.sleep(2)
        rows = await asyncio.to_thread(server.metric, "dragoman_active_rows")
        until = time.monotonic() + seconds
        checks, refusals = await asyncio.gather(
            timed(lambda: check(CHECK), CHECK_EVERY_SECONDS, until), timed(refused, REFUSE_EVERY_SECONDS, until)
        )
        over.set()
        answered = sum(await asyncio.gather(*callers_))
    within = statistics.quantiles(checks, n=100)[-1]
    click.echo(
        f"{callers} callers of long texts, {rows:.0f} decoded together, {answered} answered meanwhile\n"
        f"{len(checks)} health checks: median {1000 * statistics.median(checks):.1f} ms, "
        f"99 % within {1000 * within:.1f} ms, slowest {1000 * max(checks):.1f} ms\n"
        f"{len(refusals)} texts of a million characters, refused within {1000 * max(refusals):.0f} ms, "
        f"median {1000 * statistics.median(refusals):.0f} ms"
    )
    found = []
    if within > MAX_CHECK_SECONDS:
        found.append(f"99 % of health checks took up to {1000 * within:.0f} ms")
    if max(refusals) > MAX_REFUSAL_SECONDS:
        found.append(f"a text of a million characters was refused after {1000 * max(refusals):.0f} ms")
    return found


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True)
@click.option("--seconds", type=click.FloatRange(5), default=30.0, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, callers: int, seconds: float, data: Path) -> None:
    """Ask a busy server of BUNDLE how it is; needs two processors."""
    own, other = sorted(os.sched_getaffinity(0))[:2]
    sentences = [pair.source for pair in read_pairs(data)]
    texts = [" ".join(sentences[at : at + SENTENCES]) for at in range(0, len(sentences) - SENTENCES, SENTENCES)]
    with server_process(bundle, "--threads-per-lane", "1", cpus={own}) as server, pinned({other}):
        found = asyncio.run(measure(server, texts, callers, seconds))
    if found:
        raise click.ClickException("; ".join(found))


if __name__ == "__main__":
    main()
