from collections.abc import Iterator

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dragoman.client.values import ModelMemory, ProcessMemory
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.sequence import Finish, Sequence, Times
from dragoman.service.telemetry.metrics import FINISH_REASONS, RPC_LABELS, Metrics
from dragoman.service.telemetry.recorders import WASTED, MethodMetrics, ModelMetrics
from dragoman.service.telemetry.scrape import MAX_PENDING
from tests.support.fake_runner import END, START, FakeRunner


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


@pytest.fixture
def model(metrics: Metrics) -> ModelMetrics:
    return ModelMetrics(metrics, "m", ("fr", "de"))


def samples(registry: CollectorRegistry) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in registry.collect():
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"model": "m", **labels})


def ended(finish: Finish, tokens: int, times: Times) -> Sequence:
    sequence = Sequence((10, END), (START,), 9, lambda _: None)
    sequence.finish, sequence.tokens, sequence.times = finish, [10] * tokens, times
    return sequence


def test_all_label_values_exist_from_the_start_at_0(registry: CollectorRegistry, model: ModelMetrics) -> None:
    found = {(name, tuple(labels.values())): number for name, labels, number in samples(registry)}
    for kind in ("source", "output", "padding", "wasted"):
        assert found["dragoman_tokens_total", ("m", kind)] == 0
    for reason in ("end", "length", "repetition", "cancelled", "deadline", "failed"):
        assert found["dragoman_finished_total", ("m", reason)] == 0
    for phase in ("queue", "tokenize", "encode", "decode", "detokenize"):
        assert found["dragoman_phase_seconds_count", ("m", phase)] == 0
    for reason in ("queue_full", "deadline", "too_long", "bad_request", "draining", "unauthenticated", "rate"):
        assert found["dragoman_refused_total", (reason,)] == 0
    for run in ("embed", "insert", "step"):
        for cause in ("error", "memory"):
            assert found["dragoman_run_failures_total", ("m", run, cause)] == 0
    for language in ("fr", "de", "other"):
        assert found["dragoman_texts_total", ("m", "translate", language)] == 0
    assert found["dragoman_texts_total", ("m", "embed", "other")] == 0
    assert found["dragoman_ready", ("m",)] == 0


def test_every_status_of_a_method_exists_from_the_start(registry: CollectorRegistry, metrics: Metrics) -> None:
    method = MethodMetrics(metrics, "p.S", "Do")
    handled = [labels["grpc_code"] for name, labels, _ in samples(registry) if name == "grpc_server_handled_total"]
    assert sorted(handled) == sorted(code.name for code in grpc.StatusCode)
    method.started()
    method.handled(grpc.StatusCode.NOT_FOUND, 0.25)
    labels = dict(zip(RPC_LABELS, ("unary", "p.S", "Do"), strict=True))
    assert registry.get_sample_value("grpc_server_started_total", labels) == 1
    assert registry.get_sample_value("grpc_server_handled_total", {**labels, "grpc_code": "NOT_FOUND"}) == 1
    assert registry.get_sample_value("grpc_server_handling_seconds_sum", labels) == 0.25


def test_a_finished_text_is_counted_with_its_phases(registry: CollectorRegistry, model: ModelMetrics) -> None:
    model.finished(ended(Finish.END, 3, Times(submitted=1, admitted=3, encoded=4, first_token=6, finished=10)))
    assert value(registry, "dragoman_finished_total", reason="end") == 1
    for phase, seconds in (("queue", 2), ("encode", 1), ("decode", 6)):
        assert value(registry, "dragoman_phase_seconds_sum", phase=phase) == seconds
    assert value(registry, "dragoman_time_to_first_token_seconds_sum") == 5
    assert value(registry, "dragoman_tokens_total", kind="wasted") == 0


def test_a_text_dropped_from_the_queue_has_no_phases(registry: CollectorRegistry, model: ModelMetrics) -> None:
    model.finished(ended(Finish.DEADLINE, 0, Times(submitted=1, finished=3)))
    for phase in ("queue", "encode", "decode"):
        assert value(registry, "dragoman_phase_seconds_count", phase=phase) == 0


@pytest.mark.parametrize("finish", list(Finish))
def test_every_ending_has_its_label_and_its_waste(
    registry: CollectorRegistry, model: ModelMetrics, finish: Finish
) -> None:
    assert finish.value in FINISH_REASONS
    model.finished(ended(finish, 4, Times()))
    assert value(registry, "dragoman_finished_total", reason=finish.value) == 1
    assert value(registry, "dragoman_tokens_total", kind="wasted") == (4 if finish in WASTED else 0)


def test_steps_and_encodings_are_counted(registry: CollectorRegistry, model: ModelMetrics) -> None:
    model.encoded(rows=2, tokens=7, padding=3)
    model.stepped(rows=2, seconds=0.5)
    assert value(registry, "dragoman_tokens_total", kind="source") == 7
    assert value(registry, "dragoman_tokens_total", kind="padding") == 3
    assert value(registry, "dragoman_tokens_total", kind="output") == 2
    assert value(registry, "dragoman_batch_rows_sum") == 2
    assert value(registry, "dragoman_step_seconds_sum") == 0.5


def test_deferred_counts_do_not_pile_up_without_scrapes(metrics: Metrics, model: ModelMetrics) -> None:
    for _ in range(10 * MAX_PENDING):
        model.stepped(rows=1, seconds=0.5)
    # Collecting one metric is not a scrape.
    (family,) = metrics.batch_rows.collect()
    (total,) = (sample.value for sample in family.samples if sample.name.endswith("_sum"))
    assert total > 9 * MAX_PENDING


def test_failed_runs_are_counted_by_run_and_cause(registry: CollectorRegistry, model: ModelMetrics) -> None:
    model.failed("step", "memory")
    model.wasted(7)
    assert value(registry, "dragoman_run_failures_total", run="step", cause="memory") == 1
    assert value(registry, "dragoman_run_failures_total", run="step", cause="error") == 0
    assert value(registry, "dragoman_tokens_total", kind="wasted") == 7


def test_a_language_outside_the_bundle_creates_no_series(registry: CollectorRegistry, model: ModelMetrics) -> None:
    before = len(list(samples(registry)))
    model.translated(2, "tlh", 0.0)
    assert len(list(samples(registry))) == before
    assert value(registry, "dragoman_texts_total", operation="translate", target_language="other") == 2


def test_gauges_are_read_from_the_engine(registry: CollectorRegistry, model: ModelMetrics) -> None:
    limits = BatchLimits(rows=1, tokens=100, encode_tokens=100, queue_sequences=5, queue_tokens=100)
    engine = Engine([FakeRunner()], limits, (END,), model)
    model.watch(engine)
    engine.submit([Sequence((10, END), (START,), 9, lambda _: None) for _ in range(3)])
    assert value(registry, "dragoman_queue_sequences") == 3
    assert value(registry, "dragoman_queue_tokens") == 33
    assert value(registry, "dragoman_active_rows") == 0
    positions = {cache: value(registry, "dragoman_cache_positions", cache=cache) for cache in ("source", "output")}
    assert positions == {"source": 16, "output": 24}


def test_memory_is_reported_by_part(registry: CollectorRegistry, metrics: Metrics, model: ModelMetrics) -> None:
    model.held(ModelMemory(weights=1, buffers=2, working=3, cache_reserved=6, cache_resident=5, cache_used=4))
    metrics.held(ProcessMemory(libraries=7, interpreter=8))
    parts = ("weights", "buffers", "working", "cache_used", "cache_resident", "cache_reserved")
    assert [value(registry, "dragoman_memory_bytes", part=part) for part in parts] == [1, 2, 3, 4, 5, 6]
    rest = [
        registry.get_sample_value("dragoman_process_memory_bytes", {"part": part})
        for part in ("libraries", "interpreter")
    ]
    assert rest == [7, 8]


def test_limits_stand_beside_the_gauges_that_they_bound(registry: CollectorRegistry, model: ModelMetrics) -> None:
    limits = BatchLimits(rows=3, tokens=100, encode_tokens=100, queue_sequences=5, queue_tokens=70)
    model.watch(Engine([FakeRunner(), FakeRunner()], limits, (END,), model))
    assert value(registry, "dragoman_cache_slots") == 6
    assert value(registry, "dragoman_queue_sequences_limit") == 5
    assert value(registry, "dragoman_queue_tokens_limit") == 70


def test_lengths_are_of_encoded_and_of_delivered_texts(registry: CollectorRegistry, model: ModelMetrics) -> None:
    through = Times(submitted=1, admitted=1, encoded=1, first_token=2, finished=3)
    model.finished(ended(Finish.END, 5, through))
    model.finished(ended(Finish.CANCELLED, 7, through))
    model.finished(ended(Finish.DEADLINE, 0, Times(submitted=1, finished=3)))
    lengths = [
        (value(registry, f"dragoman_{kind}_tokens_count"), value(registry, f"dragoman_{kind}_tokens_sum"))
        for kind in ("source", "output")
    ]
    assert lengths == [(2, 4), (1, 5)]
