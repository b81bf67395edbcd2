"""Working memory is measured when it grows, and given back after a while."""

import threading

import pytest

from dragoman.service.engine.working_memory import GIVE_BACK_SECONDS, WorkingMemory


class Process:
    """Resident memory, set by a test."""

    def __init__(self) -> None:
        self.resident = 1000
        self.counts = 0
        self.given_back = 0
        self.now = 0.0

    def anonymous(self) -> int:
        self.counts += 1
        return self.resident

    def give_back(self) -> None:
        self.given_back += 1


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def working(process: Process) -> WorkingMemory:
    return WorkingMemory(process.anonymous, process.give_back, lambda: process.now)


def run(working: WorkingMemory, process: Process, graph: str, size: tuple[int, ...], takes: int) -> None:
    with working.run(graph, size):
        process.resident += takes


def test_the_growth_of_a_larger_run_is_added(process: Process, working: WorkingMemory) -> None:
    graph = "decoder"
    run(working, process, graph, (8, 1), 100)
    run(working, process, graph, (16, 1), 50)
    run(working, process, graph, (4, 2), 5)
    assert working.nbytes == 155


def test_a_run_that_is_no_larger_is_not_measured(process: Process, working: WorkingMemory) -> None:
    graph = "decoder"
    run(working, process, graph, (8, 2), 100)
    counts = process.counts
    run(working, process, graph, (8, 1), 7)
    assert process.counts == counts
    assert working.nbytes == 100


def test_each_graph_has_its_own_largest_run(process: Process, working: WorkingMemory) -> None:
    first, second = "decoder", "encoder"
    run(working, process, first, (8,), 100)
    run(working, process, second, (4,), 10)
    assert working.nbytes == 110


def test_a_run_that_raises_counts_nothing_and_blocks_no_other(process: Process, working: WorkingMemory) -> None:
    graph = "decoder"
    with pytest.raises(ValueError, match="broken"), working.run(graph, (8,)):
        raise ValueError("broken")
    run(working, process, graph, (8,), 10)
    assert working.nbytes == 10


def test_growth_in_two_lanes_at_once_is_counted_once(process: Process, working: WorkingMemory) -> None:
    graph, inside, over = "decoder", threading.Event(), threading.Event()

    def slow() -> None:
        with working.run(graph, (8,)):
            process.resident += 100
            inside.set()
            over.wait(60)

    lane = threading.Thread(target=slow)
    lane.start()
    assert inside.wait(60)
    run(working, process, graph, (16,), 50)
    over.set()
    lane.join(60)
    assert working.nbytes == 150


def test_after_giving_back_runs_are_measured_again(process: Process, working: WorkingMemory) -> None:
    graph, shrunk = "decoder", []
    run(working, process, graph, (8,), 100)
    working.give_back(lambda: shrunk.append(process.given_back))
    assert (working.nbytes, process.given_back, shrunk) == (0, 1, [0]), "the runtime first, then the allocator"
    run(working, process, graph, (4,), 30)
    assert working.nbytes == 30


def test_memory_is_given_back_at_intervals_under_load(process: Process, working: WorkingMemory) -> None:
    process.now = GIVE_BACK_SECONDS - 1
    working.refresh(lambda: None)
    assert process.given_back == 0
    process.now = GIVE_BACK_SECONDS
    working.refresh(lambda: None)
    working.refresh(lambda: None)
    assert process.given_back == 1
