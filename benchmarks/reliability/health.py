"""Latency of health checks and of refusals on a busy server.

    python -m benchmarks.reliability.health BUNDLE

The server has one processor and one thread, the generator the other. 64 callers keep the server busy with
texts of the model's maximum length. Meanwhile health checks run at a fixed interval, and every second a call brings a
text of a million characters without a space. The exit status is 1 if the 99th percentile of the checks exceeds 50 ms,
or a refusal of such a text takes more than 200 ms.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import grpc
from grpc_health.v1 import health_pb2

from benchmarks.reliability.scenario import bundle_argument, data_option, finish, isolated_server, texts_of
from benchmarks.server_process import ServerProcess
from dragoman.client import AsyncClient
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.names import SERVICE

MAX_CHECK_SECONDS = 0.05
"""99th percentile."""
MAX_REFUSAL_SECONDS = 0.2
"""Maximum."""
CALL_SECONDS = 300.0
CHECK_EVERY_SECONDS = 0.02
REFUSE_EVERY_SECONDS = 1.0
SENTENCES = 30
"""Sentences of a long text, which the server truncates to the model's maximum length."""

CHECK = health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString()
HUGE = pb.TranslateRequest(texts=["x" * 1_000_000]).SerializeToString()
OPTIONS = [("grpc.enable_http_proxy", 0)]


async def busy(client: AsyncClient, texts: list[str], over: asyncio.Event) -> int:
    """Translate long texts one after the other until `over`. Returns the number of answers."""
    answered = 0
    while not over.is_set():
        await client.translate([texts[answered % len(texts)]], truncate=True)
        answered += 1
    return answered


async def timed(ask: Callable[[], Awaitable[Any]], every: float, until: float) -> list[float]:
    """Seconds of each call of `ask`, which starts every `every` seconds until the time `until`."""
    found = []
    while time.monotonic() < until:
        started = time.monotonic()
        await ask()
        found.append(time.monotonic() - started)
        await asyncio.sleep(max(0.0, started + every - time.monotonic()))
    return found


async def measure(server: ServerProcess, texts: list[str], callers: int, seconds: float) -> list[str]:
    """Measure for `seconds`. Returns messages for the bounds that were exceeded."""
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

        # Different starting points keep the callers from sending the same text in step.
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
        f"{callers} callers with long texts, {rows:.0f} active rows, {answered} answers\n"
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
@bundle_argument
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True)
@click.option("--seconds", type=click.FloatRange(5), default=30.0, show_default=True)
@data_option
def main(bundle: Path, callers: int, seconds: float, data: Path) -> None:
    """Check the health of a busy server of BUNDLE; requires two processors."""
    with isolated_server(bundle) as server:
        faults = asyncio.run(measure(server, texts_of(data, SENTENCES), callers, seconds))
    finish(faults)


if __name__ == "__main__":
    main()
