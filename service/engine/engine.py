"""The engine's interface: one queue, and the lanes that serve it."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass

from dragoman.service.engine.fair_scheduler import EngineShare, FairScheduler
from dragoman.service.engine.lane import Lane, LaneGroup
from dragoman.service.engine.memory_budget import MemoryBudget
from dragoman.service.engine.observer import Observer
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.runner import Memory, Runner
from dragoman.service.engine.scheduler import BatchLimits, Scheduler
from dragoman.service.engine.sequence import Sequence, StoppedError


@dataclass(frozen=True)
class Load:
    """Work in the engine at one moment."""

    waiting_sequences: int
    waiting_tokens: int
    active_rows: int


class Engine:
    """Runs sequences in one lane for each runner. Limits of rows and tokens hold for each lane."""

    def __init__(
        self,
        runners: Row[Runner],
        limits: BatchLimits,
        end_ids: Row[int],
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
        forced_end_id: int | None = None,
        share: EngineShare | None = None,
    ) -> None:
        """`end_ids` and `forced_end_id` are those of Scheduler; without `share` the engine has the processors alone."""
        self.clock = clock
        self.limits = limits
        self.lanes = len(runners)
        self._runners = tuple(runners)
        self._lane_group = LaneGroup(Queue(limits.queue_sequences, limits.queue_tokens))
        self._lane_group.schedulers = [
            Scheduler(limits, end_ids, self._lane_group.queue, forced_end_id) for _ in runners
        ]
        share = share or FairScheduler(self.lanes, clock).share()
        self._lanes = [
            Lane(self._lane_group, scheduler, runner, observer, clock, share.ticket())
            for scheduler, runner in zip(self._lane_group.schedulers, runners, strict=True)
        ]

    def start(self, ended: Callable[[], None] = lambda: None, began: Callable[[], None] = lambda: None) -> None:
        """Start the lanes. Each calls `began` first and `ended` last; if one ends, all do."""
        for lane in self._lanes:
            lane.start(ended, began)

    def stop(self) -> None:
        """Fail all sequences with StoppedError, and end the lanes."""
        self._lane_group.stop()
        for lane in self._lanes:
            lane.join()

    def submit(self, sequences: Row[Sequence]) -> None:
        """Add the sequences of one request to the queue, all or none; any thread may call it.

        Raises QueueFullError if they do not fit, DeadlineUnreachableError if they would miss their deadline, and
        StoppedError after `stop`.
        """
        with self._lane_group.changed:
            if self._lane_group.stopped:
                raise StoppedError("the engine has stopped")
            self._lane_group.queue.submit(sequences, self.clock())
            self._lane_group.changed.notify_all()

    def check(self, source_tokens: float, deadline: float | None) -> None:
        """Raise DeadlineUnreachableError if a text of about `source_tokens` would miss `deadline`; any thread.

        `source_tokens` is 0 for an embedding.
        """
        with self._lane_group.changed:
            self._lane_group.queue.check(source_tokens, deadline, self.clock())

    def load(self) -> Load:
        """Return the current work; any thread may call it."""
        with self._lane_group.changed:
            return Load(len(self._lane_group.queue), self._lane_group.queue.tokens, self._lane_group.active_rows)

    def memory(self) -> Memory:
        """Return the memory of all runners now; any thread may call it.

        Weights and working memory are shared, so they count once. Positions are those of the largest runner.
        """
        held = [runner.memory() for runner in self._runners]
        return Memory(
            weights=max(each.weights for each in held),
            cache_reserved=sum(each.cache_reserved for each in held),
            cache_resident=sum(each.cache_resident for each in held),
            cache_used=sum(each.cache_used for each in held),
            buffers=sum(each.buffers for each in held),
            working=max(each.working for each in held),
            source_positions=max(each.source_positions for each in held),
            output_positions=max(each.output_positions for each in held),
        )

    def bound_memory(self, limit: float) -> None:
        """Bound the memory of all lanes' batches together to `limit` bytes; one text runs in any case."""
        with self._lane_group.changed:
            for scheduler, runner in zip(self._lane_group.schedulers, self._runners, strict=True):
                scheduler.budget = MemoryBudget(limit / self.lanes, runner.costs(), runner.most_working)

    def least_memory(self, source: int, output: int) -> float:
        """Bytes for one text in each lane, with at most so many tokens of source and of output."""
        return sum(runner.costs().cache_bytes(1, source, output) + runner.most_working() for runner in self._runners)

    def busy_seconds(self) -> float:
        """Longest duration so far of a runner's current call, 0 if all are idle; any thread may call it."""
        return max(lane.busy_seconds() for lane in self._lanes)
