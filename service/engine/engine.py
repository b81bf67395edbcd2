"""The engine as others see it: one queue, and the lanes that serve it."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass

from dragoman.service.engine.fair_scheduler import EngineShare, FairScheduler
from dragoman.service.engine.lane import Lane, LaneGroup, Observer
from dragoman.service.engine.memory_budget import MemoryBudget
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.runner import Memory, Runner
from dragoman.service.engine.scheduler import BatchLimits, Scheduler
from dragoman.service.engine.sequence import Sequence, StoppedError


@dataclass(frozen=True)
class Load:
    """What the engine has to do at one moment."""

    waiting_sequences: int
    waiting_tokens: int
    active_rows: int


class Engine:
    """Runs sequences in as many lanes as it has runners. The limits of rows and tokens are those of each lane."""

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
        """`end_ids` and `forced_end_id` are as the scheduler has them; without `share` it waits for no other."""
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
        """Start the lanes. Whatever ends one ends all; `began` is the first that each calls, and `ended` the last."""
        for lane in self._lanes:
            lane.start(ended, began)

    def stop(self) -> None:
        """Fail what is still there with StoppedError, and end the lanes."""
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
        """Raise DeadlineUnreachableError if a text of about so many tokens would miss `deadline`; any thread.

        `source_tokens` is 0 for an embedding.
        """
        with self._lane_group.changed:
            self._lane_group.queue.check(source_tokens, deadline, self.clock())

    def load(self) -> Load:
        """What there is to do now; any thread may call it."""
        with self._lane_group.changed:
            return Load(len(self._lane_group.queue), self._lane_group.queue.tokens, self._lane_group.active_rows)

    def memory(self) -> Memory:
        """What the runners hold now; any thread may call it.

        They share weights and working memory. Positions are the most of any.
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
        """Let the batches of all lanes together take no more than `limit` bytes; one text runs in any case."""
        with self._lane_group.changed:
            for scheduler, runner in zip(self._lane_group.schedulers, self._runners, strict=True):
                scheduler.budget = MemoryBudget(limit / self.lanes, runner.costs(), runner.most_working)

    def least_memory(self, source: int, output: int) -> float:
        """Bytes for one text in each lane, of so many tokens of source and output at most."""
        return sum(runner.costs().cache_bytes(1, source, output) + runner.most_working() for runner in self._runners)

    def busy_seconds(self) -> float:
        """How long the runner that is slowest now has been at what it does, 0 if none does anything; any thread."""
        return max(lane.busy_seconds() for lane in self._lanes)
