"""Thread count and speed of a server confined to one processor.

    python -m benchmarks.speed.cores BUNDLE

Real server processes are confined to one processor in two ways: by affinity, as with `taskset -c 0`, and by a
control-group quota of one processor, as in a container. One server chooses its thread count itself, one is set to 1,
and one to 2, which shows the cost of a wrong count. Clients in a closed loop translate one sentence per call; the
servers take turns. Exits with status 1 if a server chooses a count other than 1, or is more than 10 % slower than the
server set to 1. Control groups need root; without it, the quota is left out, by name.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks.server_process import ServerProcess, pinned, server_process
from benchmarks.speed.sentences import DATA
from benchmarks.speed.served import closed_loop
from benchmarks.timing import MIN_ROUNDS, Speed, ratio, speed, take_turns
from dragoman.bundle.cgroups import groups
from dragoman.client import Client
from dragoman.model.training.corpus import read_pairs

MIN_RATIO = 0.9
PERIOD_MICROSECONDS = 100_000
"""Period of the quota; a quota of one whole period is one processor."""

AUTOMATIC = "automatic"
ONE = "1"
Confine = Callable[[], AbstractContextManager[None]]
"""Context in which this process and its new child processes are confined."""

CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    AUTOMATIC: (),
    ONE: ("--threads-per-lane", "1"),
    "2": ("--threads-per-lane", "2"),
}
"""Server options, by the configured number of threads."""


@dataclass(frozen=True)
class Row:
    """Result of one server."""

    confined_by: str
    configured: str
    threads: int
    """Threads reported by GetInfo."""
    speed: Speed
    """Throughput in sentences."""
    ratio: float
    """Throughput divided by that of the server set to one thread."""

    def __str__(self) -> str:
        return (
            f"{self.confined_by:<12}  {self.configured:<9}  {self.threads:>7}  {self.speed.per_second:>11.1f}  "
            f"{self.speed.spread:>6.0%}  {self.ratio:>5.2f}"
        )


HEAD = f"{'confined by':<12}  {'threads':<9}  {'threads':>7}  {'sentences/s':>11}  {'spread':>6}  {'ratio':>5}"


@contextmanager
def by_affinity() -> Iterator[Confine]:
    """Confine to the first allowed processor."""
    yield partial(pinned, {min(os.sched_getaffinity(0))})


@contextmanager
def by_quota() -> Iterator[Confine]:
    """Confine to the time of one processor, on any of them. Raises OSError if the group cannot be created."""
    version, above = next(groups("cpu"))
    group = above / f"dragoman-{os.getpid()}"
    group.mkdir()
    try:
        if version == 2:
            (group / "cpu.max").write_text(f"{PERIOD_MICROSECONDS} {PERIOD_MICROSECONDS}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD_MICROSECONDS))
        yield partial(_inside, group, above)
    finally:
        group.rmdir()


@contextmanager
def _inside(group: Path, above: Path) -> Iterator[None]:
    me = str(os.getpid())
    (group / "cgroup.procs").write_text(me)
    try:
        yield
    finally:
        (above / "cgroup.procs").write_text(me)


CONFINEMENTS: Mapping[str, Callable[[], AbstractContextManager[Confine]]] = {
    "taskset -c 0": by_affinity,
    "quota of 1": by_quota,
}


def measure(bundle: Path, texts: Sequence[str], clients: int, rounds: int, confine: Confine, name: str) -> list[Row]:
    """Run a confined server per configuration, with the clients on another processor if there is one."""
    with ExitStack() as running:
        servers: dict[str, ServerProcess] = {}
        for configured, options in CONFIGURATIONS.items():
            with confine():
                servers[configured] = running.enter_context(server_process(bundle, *options))
        turns = {configured: partial(_translate_all, server, texts, clients) for configured, server in servers.items()}
        with pinned({max(os.sched_getaffinity(0))}):
            for turn in turns.values():
                turn()
            times = take_turns(turns, rounds)
        speeds = {configured: speed(seconds, len(texts)) for configured, seconds in times.items()}
        return [
            Row(name, configured, _threads(server), speeds[configured], ratio(speeds[configured], speeds[ONE]))
            for configured, server in servers.items()
        ]


def _translate_all(server: ServerProcess, texts: Sequence[str], clients: int) -> None:
    asyncio.run(closed_loop(server.address, texts, clients))


def _threads(server: ServerProcess) -> int:
    with Client(server.address) as client:
        return client.info().models[0].threads


def fault_of(rows: Sequence[Row]) -> str | None:
    """Description of the exceeded bound of the automatic server; None within the bounds."""
    row = next(each for each in rows if each.configured == AUTOMATIC)
    if row.threads != 1:
        return f"{row.confined_by}: {row.threads} threads were chosen"
    if row.ratio < MIN_RATIO:
        return f"{row.confined_by}: {row.ratio:.2f} times as fast as with one configured thread"
    return None


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sentences", type=click.IntRange(1), default=300, show_default=True, help="Sentences per round.")
@click.option("--clients", type=click.IntRange(1), default=16, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=MIN_ROUNDS, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, sentences: int, clients: int, rounds: int, data: Path) -> None:
    """Measure servers of BUNDLE confined to one processor. About 2 minutes on two quiet cores."""
    texts = [pair.source for pair in read_pairs(data)][:sentences]
    faults, measured = [], 0
    click.echo(HEAD)
    for name, confinement in CONFINEMENTS.items():
        try:
            with confinement() as confine:
                rows = measure(bundle, texts, clients, rounds, confine, name)
        except (OSError, StopIteration) as error:
            click.echo(f"{name} is left out: {error}", err=True)
            continue
        measured += 1
        click.echo("\n".join(map(str, rows)))
        fault = fault_of(rows)
        faults += [fault] if fault else []
    if not measured:
        raise click.ClickException("nothing could be measured")
    if faults:
        raise click.ClickException("; ".join(faults))


if __name__ == "__main__":
    main()
