"""Where a server may use one processor only: how many threads it chooses, and whether that is as fast as being told.

    python -m benchmarks.speed.cores BUNDLE

A real server process is confined to one processor in two ways: by affinity, as `taskset -c 0` does it, and by a quota
of one processor in a control group, as a container has it. In each, one server chooses its threads itself, one is told
to take one, and one is told to take two, to show what a wrong number costs. Clients in a closed loop translate one
sentence a call; the servers take turns. Ends with status 1 where a server chooses other than one thread, or is
more than 10 % slower than the one that was told. Control groups are written by root only; where they cannot be, that
half is left out, by name.
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
"""Of a quota: one processor is as much in each period."""

CHOSEN = "chosen"
Confine = Callable[[], AbstractContextManager[None]]
"""Inside, this process and whatever it starts are confined."""

WAYS: Mapping[str, tuple[str, ...]] = {
    CHOSEN: (),
    "told 1": ("--threads-per-lane", "1"),
    "told 2": ("--threads-per-lane", "2"),
}


@dataclass(frozen=True)
class Row:
    """One server."""

    confined_by: str
    way: str
    threads: int
    """As GetInfo tells."""
    speed: Speed
    """Sentences."""
    ratio: float
    """Of the one that was told to take one thread."""

    def __str__(self) -> str:
        return (
            f"{self.confined_by:<12}  {self.way:<8}  {self.threads:>7}  {self.speed.per_second:>11.1f}  "
            f"{self.speed.spread:>6.0%}  {self.ratio:>5.2f}"
        )


HEAD = f"{'confined by':<12}  {'threads':<8}  {'threads':>7}  {'sentences/s':>11}  {'spread':>6}  {'ratio':>5}"


@contextmanager
def by_affinity() -> Iterator[Confine]:
    """To the first processor of those that there are."""
    yield partial(pinned, {min(os.sched_getaffinity(0))})


@contextmanager
def by_quota() -> Iterator[Confine]:
    """To as much as one processor does, on whichever. Raises OSError where no such group can be made."""
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


CONFINED: Mapping[str, Callable[[], AbstractContextManager[Confine]]] = {
    "taskset -c 0": by_affinity,
    "quota of 1": by_quota,
}


def measure(bundle: Path, texts: Sequence[str], clients: int, rounds: int, confine: Confine, name: str) -> list[Row]:
    """A server in each of WAYS, all confined, the clients on another processor if there is one."""
    with ExitStack() as running:
        servers: dict[str, ServerProcess] = {}
        for way, options in WAYS.items():
            with confine():
                servers[way] = running.enter_context(server_process(bundle, *options))
        turns = {way: partial(_ask, server, texts, clients) for way, server in servers.items()}
        with pinned({max(os.sched_getaffinity(0))}):
            for turn in turns.values():
                turn()
            speeds = {way: speed(seconds, len(texts)) for way, seconds in take_turns(turns, rounds).items()}
        return [
            Row(name, way, _threads(server), speeds[way], ratio(speeds[way], speeds["told 1"]))
            for way, server in servers.items()
        ]


def _ask(server: ServerProcess, texts: Sequence[str], clients: int) -> None:
    asyncio.run(closed_loop(server.address, texts, clients))


def _threads(server: ServerProcess) -> int:
    with Client(server.address) as client:
        return client.info().models[0].threads


def fault_of(rows: Sequence[Row]) -> str | None:
    """What is wrong with the server that chose itself, in words."""
    row = next(each for each in rows if each.way == CHOSEN)
    if row.threads != 1:
        return f"{row.confined_by}: {row.threads} threads were chosen"
    if row.ratio < MIN_RATIO:
        return f"{row.confined_by}: {row.ratio:.2f} times as fast as when told"
    return None


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sentences", type=click.IntRange(1), default=300, show_default=True, help="Of the file, in each round.")
@click.option("--clients", type=click.IntRange(1), default=16, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=MIN_ROUNDS, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, sentences: int, clients: int, rounds: int, data: Path) -> None:
    """Confine servers of BUNDLE to one processor. About 2 minutes on two quiet cores."""
    texts = [pair.source for pair in read_pairs(data)][:sentences]
    faults, measured = [], 0
    click.echo(HEAD)
    for name, confined in CONFINED.items():
        try:
            with confined() as confine:
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
