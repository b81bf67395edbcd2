"""The serving engine over real graphs, compared with the verifier's plain decoding of the same graphs."""

import itertools
import math
import random
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dragoman.bundle.graph_decoder import Decoded, GraphDecoder, decode_alone
from dragoman.bundle.manifest import Bundle
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.offline import Silent
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.providers import ProviderError
from dragoman.service.engine.repetition import Repetition
from dragoman.service.engine.runner import RowInput
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.sequence import Finish
from dragoman.service.engine.sequence import Sequence as Text

Source = tuple[int, ...]


def sources(count: int, longest: int = 60, seed: int = 0) -> list[Source]:
    """Sources of random words and of every length up to `longest`."""
    rng = random.Random(seed)
    return [(*(rng.randrange(4, 340) for _ in range(rng.randint(1, longest - 1))), 2) for _ in range(count)]


def runner_of(bundle: Bundle, rows: int, threads: int = 1) -> OrtRunner:
    return OrtRunner(bundle, provider="cpu", threads=threads, max_rows=rows)


def start(bundle: Bundle, runner: OrtRunner, rows: int, repetition: Repetition | None = None, lanes: int = 1) -> Engine:
    rules = bundle.manifest.decoding
    limits = BatchLimits(rows, 10**6, 256, 10**4, 10**7, repetition=repetition)
    runners = [runner, *(runner.another() for _ in range(lanes - 1))]
    engine = Engine(runners, limits, rules.end_ids, Silent())
    engine.start()
    return engine


def run(engine: Engine, requests: Sequence[tuple[Source, int]], prompt: tuple[int, ...] = (1,)) -> list[Text]:
    """Submit all sources with their output limits at once, and wait for the last; each begins with `prompt`."""
    done = threading.Semaphore(0)
    texts = [Text(source, prompt, limit, lambda _text: done.release()) for source, limit in requests]
    engine.submit(texts)
    for _ in texts:
        assert done.acquire(timeout=60)
    return texts


class Batches(Silent):
    """Records the size of the largest batch."""

    largest = 0

    def stepped(self, rows: int, seconds: float) -> None:
        self.largest = max(self.largest, rows)


def failing_once(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Wrap `call` so that its `at`-th call raises after its work is done."""
    calls = itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        found = call(*arguments)
        if next(calls) == at:
            raise RuntimeError("a passing fault")
        return found

    return wrapped


@pytest.fixture
def decoder(bundle: Bundle) -> GraphDecoder:
    return GraphDecoder(bundle, threads=1)


@pytest.fixture(params=[(1, 1), (3, 1), (32, 1), (3, 2), (8, 3)], ids=lambda size: f"{size[0]} rows, {size[1]} lanes")
def engine(bundle: Bundle, request: pytest.FixtureRequest) -> Iterator[Engine]:
    rows, lanes = request.param
    engine = start(bundle, runner_of(bundle, rows), rows, lanes=lanes)
    yield engine
    engine.stop()


def test_tokens_are_the_same_with_and_without_scores(bundle: Bundle) -> None:
    runner = OrtRunner(bundle, provider="cpu", threads=1, max_rows=8)
    sources = [text.source_ids for text in bundle.golden()[:8]]
    found = []
    for scored in (True, False):
        runner.insert(sources, 0)
        fed, steps = [bundle.manifest.decoding.start_id] * len(sources), []
        for position in range(6):
            steps.append(runner.step([RowInput(token, position) for token in fed], scored=scored))
            fed = [step.token for step in steps[-1]]
        found.append(steps)
    with_scores, without = ([[step.token for step in row] for row in steps] for steps in found)
    assert with_scores == without
    assert all(step.log_prob < 0 for row in found[0] for step in row)
    assert all(math.isfinite(step.log_prob) for row in found[1] for step in row)


def test_each_text_has_the_same_tokens_and_score_as_alone(
    engine: Engine, bundle: Bundle, decoder: GraphDecoder
) -> None:
    requests = [(source, bundle.manifest.decoding.output_limit(len(source))) for source in sources(80)]
    alone = decode_alone(decoder, [source for source, _ in requests], [limit for _, limit in requests])
    for order in (requests, requests[::-1]):
        found = run(engine, order)
        expected = alone if order is requests else alone[::-1]
        assert [tuple(text.tokens) for text in found] == [output.tokens for output in expected]
        assert [text.log_prob for text in found] == [sum(output.log_probs) for output in expected]
    assert len({len(output.tokens) for output in alone}) > 10  # rows came and went at different steps


def test_an_output_ends_at_its_own_limit(engine: Engine, decoder: GraphDecoder) -> None:
    limits = [1, 2, 3, 40, 64]
    requests = [(source, limit) for source, limit in zip(sources(5), limits, strict=True)]
    for text, limit, output in zip(run(engine, requests), limits, decode_of(decoder, requests), strict=True):
        assert tuple(text.tokens) == output.tokens
        ended = text.tokens[-1] == 2
        assert text.finish is (Finish.END if ended else Finish.LENGTH)
        assert ended or len(text.tokens) == limit


def decode_of(decoder: GraphDecoder, requests: Sequence[tuple[Source, int]]) -> list[Decoded]:
    return decode_alone(decoder, [source for source, _ in requests], [limit for _, limit in requests])


def test_a_stopped_loop_leaves_a_prefix_of_the_whole_output(bundle: Bundle, engine: Engine) -> None:
    requests = [(source, 60) for source in sources(40, seed=5)]
    whole = run(engine, requests)
    guarded = start(bundle, runner_of(bundle, 8), 8, Repetition(tokens=8, times=2))
    try:
        found = run(guarded, requests)
    finally:
        guarded.stop()
    assert {Finish.REPETITION, Finish.END} <= {text.finish for text in found}
    for text, unguarded in zip(found, whole, strict=True):
        assert text.tokens == unguarded.tokens[: len(text.tokens)]
        assert text.finish in (unguarded.finish, Finish.REPETITION)
        assert text.finish is Finish.REPETITION or text.tokens == unguarded.tokens


@pytest.mark.parametrize("at", [1, 2, 17, 40])
def test_a_failed_run_changes_no_token_and_no_score(bundle: Bundle, decoder: GraphDecoder, at: int) -> None:
    runner = runner_of(bundle, 6)
    runner._decoder = types.SimpleNamespace(run_with_iobinding=failing_once(runner._decoder.run_with_iobinding, at))
    whole = runner._encoder.run_with_ort_values
    runner._encoder = types.SimpleNamespace(run_with_ort_values=failing_once(whole, 1 + at % 2))
    requests = [(source, 40) for source in sources(12, seed=at)]
    engine = start(bundle, runner, 6)
    try:
        found = run(engine, requests)
    finally:
        engine.stop()
    for text, output in zip(found, decode_of(decoder, requests), strict=True):
        assert tuple(text.tokens) == output.tokens
        assert text.log_prob == sum(output.log_probs)


def test_a_memory_budget_bounds_rows_and_changes_no_token(bundle: Bundle, decoder: GraphDecoder) -> None:
    runner = runner_of(bundle, 8)
    requests = [(source, 60) for source in sources(12, longest=12, seed=3)]
    engine = start(bundle, runner, 8)
    run(engine, requests)
    batches = Batches()
    limited = Engine([runner], engine.limits, bundle.manifest.decoding.end_ids, batches)
    engine.stop()
    limited.bound_memory(3 * runner.costs().cache_bytes(1, 12, 60) + runner.most_working())
    limited.start()
    try:
        found = run(limited, requests)
    finally:
        limited.stop()
    for text, output in zip(found, decode_of(decoder, requests), strict=True):
        assert tuple(text.tokens) == output.tokens
    assert batches.largest == 3


def test_states_equal_those_of_the_encoder_alone(engine: Engine, decoder: GraphDecoder) -> None:
    texts = sources(20, seed=4)
    found = run(engine, [(source, 0) for source in texts])
    for text, source in zip(found, texts, strict=True):
        right = decoder.encode([source])["hidden"][0, : len(source)]
        assert np.array_equal(text.states, right)


def test_embeddings_and_translations_run_side_by_side(engine: Engine, decoder: GraphDecoder) -> None:
    requests = [(source, 20 * (index % 2)) for index, source in enumerate(sources(30))]
    translations = [item for item in requests if item[1]]
    found = run(engine, requests)
    assert all(text.finish in (Finish.END, Finish.LENGTH) for text in found)
    tokens = [tuple(text.tokens) for text in found if text.max_output]
    assert tokens == [output.tokens for output in decode_of(decoder, translations)]


def test_nan_in_unused_cells_spoils_no_row(bundle: Bundle, decoder: GraphDecoder) -> None:
    """A row with NaN fails alone, and its cleared slot is as good as new."""
    runner = runner_of(bundle, 4)
    rules = bundle.manifest.decoding
    texts = sources(4)
    runner.insert(texts, 0)
    for cache in (runner._cross, runner._past):
        for array in cache.arrays.values():
            array[2] = np.nan
    steps = runner.step([RowInput(rules.start_id, 0)] * 4)
    alone = decode_alone(decoder, texts, [1] * 4)
    assert [np.isfinite(step.log_prob) for step in steps] == [True, True, False, True]
    assert [steps[row].token for row in (0, 1, 3)] == [alone[row].tokens[0] for row in (0, 1, 3)]
    runner.clear_row(2)
    runner.insert(texts[2:3], 2)
    again = runner.step([RowInput(rules.start_id, 0)] * 4)
    assert again[2] == (again[2].__class__)(alone[2].tokens[0], alone[2].log_probs[0])


LOW_MEMORY = """
import resource, sys
from pathlib import Path
from dragoman.bundle.manifest import open_bundle
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.runner import MemoryRefusedError, RowInput

runner = OrtRunner(open_bundle(Path(sys.argv[1])), provider="cpu", threads=1, max_rows=2000)
runner.insert([[5] * 8] * 2, 0)
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 2**21
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for run in (
    lambda: runner.embed([[5] * 60] * 2000),
    lambda: runner.insert([[5] * 60] * 2000, 0),
    lambda: runner.step([RowInput(1, 0)] * 2000),
    lambda: runner.step([RowInput(1, 60)] * 2000),
):
    try:
        run()
    except MemoryRefusedError:
        print("refused")
print(len(runner.step([RowInput(1, 0)] * 2)))
"""


def test_a_real_lack_of_memory_is_reported_and_small_runs_work(bundle: Bundle) -> None:
    command = [sys.executable, "-c", LOW_MEMORY, str(bundle.folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["refused"] * 4 + ["2"], run.stderr


def test_the_cache_grows_with_the_rows_and_shrinks_at_rest(bundle: Bundle) -> None:
    runner = runner_of(bundle, 2)
    small = runner.memory().cache_reserved
    runner.insert(sources(1, longest=50, seed=1), 0)
    for position in range(40):
        runner.step([RowInput(5, position)])
    grown = runner.memory()
    assert grown.cache_reserved > small
    assert 0 < grown.cache_used < grown.cache_reserved
    runner.rest()
    assert runner.memory().cache_reserved == small
    assert runner.memory().cache_used == 0


def test_a_position_past_the_table_is_an_error(bundle: Bundle) -> None:
    runner = runner_of(bundle, 1)
    runner.insert(sources(1), 0)
    with pytest.raises(ValueError, match="65 positions are needed, the most is 64"):
        runner.step([RowInput(5, 64)])


class TestProviders:
    def test_unavailable_cuda_is_an_error(self, bundle: Bundle) -> None:
        with pytest.raises(ProviderError, match="cuda"):
            OrtRunner(bundle, provider="cuda", threads=1, max_rows=1)

    def test_auto_reports_the_provider_in_use(self, bundle: Bundle) -> None:
        runner = OrtRunner(bundle, provider="auto", threads=1, max_rows=1)
        assert runner.provider == "CPUExecutionProvider"
