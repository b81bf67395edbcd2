import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dragoman.service.errors import ServiceError
from dragoman.service.system.memory_limits import DeviceMemory
from dragoman.service.telemetry.metrics import REFUSALS, Metrics

CORE = {
    "dragoman_model_info",
    "dragoman_ready",
    "dragoman_phase_seconds",
    "dragoman_time_to_first_token_seconds",
    "dragoman_step_seconds",
    "dragoman_batch_rows",
    "dragoman_tokens_total",
    "dragoman_texts_total",
    "dragoman_finished_total",
    "dragoman_refused_total",
    "dragoman_replacements_total",
    "dragoman_run_failures_total",
    "dragoman_provider_as_configured",
    "dragoman_source_tokens",
    "dragoman_output_tokens",
    "dragoman_queue_tokens",
    "dragoman_queue_tokens_limit",
    "dragoman_queue_sequences_limit",
    "dragoman_cache_slots",
    "dragoman_cache_positions",
    "dragoman_device_memory_bytes",
    "dragoman_memory_limit_bytes",
    "dragoman_objective_seconds",
    "dragoman_queue_sequences",
    "dragoman_active_rows",
    "dragoman_memory_bytes",
    "dragoman_process_memory_bytes",
    "dragoman_model_load_seconds",
    "dragoman_warmup_seconds",
    "grpc_server_started_total",
    "grpc_server_handled_total",
    "grpc_server_handling_seconds",
}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def test_the_core_set_is_complete(metrics: Metrics) -> None:
    assert {family.name for family in metrics.families} == CORE


def test_names_follow_the_conventions(metrics: Metrics) -> None:
    for family in metrics.families:
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help.endswith(".")
        assert "|" not in family.help


def test_every_refusal_has_its_series(registry: CollectorRegistry, metrics: Metrics) -> None:
    errors = [ServiceError]
    for error in errors:
        errors += error.__subclasses__()
    reasons = {error.refusal for error in errors} - {None}
    assert reasons <= set(REFUSALS)
    metrics.refuse("too_long")
    assert registry.get_sample_value("dragoman_refused_total", {"reason": "too_long"}) == 1


def test_an_absent_device_has_no_series() -> None:
    devices = [DeviceMemory(0, 5, 80), DeviceMemory(1, 6, 80)]
    registry = CollectorRegistry()
    Metrics(registry, lambda: devices)
    labels = {"device": "1", "kind": "used"}
    assert registry.get_sample_value("dragoman_device_memory_bytes", labels) == 6
    devices.clear()
    assert b"dragoman_device_memory_bytes" not in generate_latest(registry)


def test_the_memory_limit_is_above_resident_memory(registry: CollectorRegistry, metrics: Metrics) -> None:
    bound = registry.get_sample_value("dragoman_memory_limit_bytes")
    resident = registry.get_sample_value("process_resident_memory_bytes")
    assert bound is not None
    assert resident is not None
    assert resident < bound


def test_process_metrics_are_included(registry: CollectorRegistry, metrics: Metrics) -> None:
    assert b"process_resident_memory_bytes" in generate_latest(registry)
