"""Every metric of the service: this file alone names them. `recorders` counts into them.

Label values come from closed sets, so that no caller can create a series; all of them exist from the start, at 0.
The engine's gauges are read from it at each scrape, so that they cannot drift.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from dragoman.client.values import ModelMemory, ProcessMemory
from dragoman.service.engine.observer import Cause, Run
from dragoman.service.system.memory_limits import DeviceMemory, memory_limit_bytes
from dragoman.service.telemetry.scrape import DeferredCounts, DeviceMemoryCollector, ScrapeHooks

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60)
"""Bounds for calls and their phases: from an embedding of 2 ms to a document of a minute."""

STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

OBJECTIVES = {"Translate": 2, "Embed": 0.2}
"""Seconds within which a call of each method should end; each is one of SECONDS, so that it can be counted."""

OBJECTIVE_SHARE = 0.99
"""The share of the calls that should meet the objective."""

OTHER_LANGUAGE = "other"
"""Stands for the target language of texts that have none: those of Embed."""

PHASES = ("queue", "tokenize", "encode", "decode", "detokenize")
TOKEN_KINDS = ("source", "output", "padding", "wasted")
OPERATIONS = TRANSLATE, EMBED = "translate", "embed"
FINISH_REASONS = ("end", "length", "repetition", "cancelled", "deadline", "failed")
REFUSALS = ("queue_full", "deadline", "too_long", "bad_request", "draining", "unauthenticated", "rate")
RUNS: tuple[Run, ...] = get_args(Run)
CAUSES: tuple[Cause, ...] = get_args(Cause)
MEMORY_PARTS = tuple(part.name for part in fields(ModelMemory))
PROCESS_MEMORY_PARTS = tuple(part.name for part in fields(ProcessMemory))
CACHES = ("source", "output")
REPLACEMENTS = ("replaced", "refused")

MODEL = ("model",)
RPC_LABELS = ("grpc_type", "grpc_service", "grpc_method")


@dataclass(frozen=True)
class Family:
    """A metric as users see it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """The metrics of one server, on a registry of its own."""

    def __init__(self, registry: CollectorRegistry, devices: Callable[[], Sequence[DeviceMemory]] = lambda: ()) -> None:
        """`devices` is called at each scrape for the memory of the machine's devices."""
        # Leaves out a second series for each counter, its time of creation. The library has only this global switch.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self.before_scrape: list[Callable[[], None]] = []
        """Called by each scrape before it reads anything."""
        registry.register(ScrapeHooks(self.before_scrape))
        self.families: list[Family] = []
        """All metrics defined here, in the order of the documentation."""
        self._define_models()
        self._define_work()
        self._define_outcomes()
        self._define_load()
        self._define_memory(devices)
        self._define_changes()
        self._define_calls()
        ProcessCollector(registry=registry)
        self._refusals = {reason: self.refused.labels(reason) for reason in REFUSALS}
        self._deferred = DeferredCounts(self.before_scrape)

    def _define_models(self) -> None:
        """Models that run, and their readiness."""
        self.model_info = self._gauge(
            "dragoman_model_info",
            "Always 1; the labels describe the loaded model and the provider that runs it.",
            ("model", "version", "family", "precision", "provider"),
        )
        self.ready = self._gauge("dragoman_ready", "1 while the model answers calls, else 0.", MODEL)
        self.provider_as_configured = self._gauge(
            "dragoman_provider_as_configured",
            "1 if the model runs on the configured provider, else 0; auto expects a GPU where the machine has one.",
            MODEL,
        )

    def _define_work(self) -> None:
        """Durations and sizes of the work."""
        self.phase_seconds = self._histogram(
            "dragoman_phase_seconds",
            "Duration of one phase: queue, encode and decode of each text, tokenize and detokenize of each call.",
            ("model", "phase"),
            SECONDS,
        )
        self.time_to_first_token_seconds = self._histogram(
            "dragoman_time_to_first_token_seconds",
            "Time of each text from entering the queue to its first output token.",
            MODEL,
            SECONDS,
        )
        self.step_seconds = self._histogram(
            "dragoman_step_seconds", "Duration of one decoder step.", MODEL, STEP_SECONDS
        )
        self.batch_rows = self._histogram("dragoman_batch_rows", "Texts in one decoder step.", MODEL, ROWS)
        self.source_tokens = self._histogram(
            "dragoman_source_tokens", "Source tokens of each encoded text.", MODEL, TOKENS
        )
        self.output_tokens = self._histogram(
            "dragoman_output_tokens", "Output tokens of each delivered text.", MODEL, TOKENS
        )
        self.tokens = self._counter(
            "dragoman_tokens_total",
            "Tokens. `source` and `padding`: as encoded. `output`: as decoded. "
            "`wasted`: output tokens generated but never delivered.",
            ("model", "kind"),
        )

    def _define_outcomes(self) -> None:
        """Texts, runs and calls by how they ended."""
        self.texts = self._counter(
            "dragoman_texts_total",
            f"Texts of answered calls: {' and '.join(OPERATIONS)}, the latter with target language {OTHER_LANGUAGE!r}.",
            ("model", "operation", "target_language"),
        )
        self.finished = self._counter(
            "dragoman_finished_total",
            f"Texts that left the engine, by reason: {', '.join(FINISH_REASONS)}.",
            ("model", "reason"),
        )
        self.run_failures = self._counter(
            "dragoman_run_failures_total",
            f"Failed runs of the model ({', '.join(RUNS)}), by an error or for lack of memory. Includes runs that then "
            "succeeded in smaller parts.",
            ("model", "run", "cause"),
        )
        self.refused = self._counter(
            "dragoman_refused_total",
            f"Calls refused before work on them began, by reason: {', '.join(REFUSALS)}.",
            ("reason",),
        )

    def _define_load(self) -> None:
        """Current load, and its limits."""
        self.queue_tokens = self._gauge(
            "dragoman_queue_tokens", "Tokens of the queued texts: each source with its longest output.", MODEL
        )
        self.queue_tokens_limit = self._gauge(
            "dragoman_queue_tokens_limit", "Maximum of queued tokens; a call beyond it is refused.", MODEL
        )
        self.queue_sequences = self._gauge("dragoman_queue_sequences", "Queued texts.", MODEL)
        self.queue_sequences_limit = self._gauge(
            "dragoman_queue_sequences_limit", "Maximum of queued texts; a call beyond it is refused.", MODEL
        )
        self.active_rows = self._gauge("dragoman_active_rows", "Texts being decoded.", MODEL)
        self.cache_slots = self._gauge(
            "dragoman_cache_slots", "Slots of the cache: the maximum of texts decoded together.", MODEL
        )
        self.cache_positions = self._gauge(
            "dragoman_cache_positions",
            f"Tokens that one slot of the cache currently has room for: {' and '.join(CACHES)}.",
            ("model", "cache"),
        )

    def _define_memory(self, devices: Callable[[], Sequence[DeviceMemory]]) -> None:
        """Memory by part."""
        self.memory_bytes = self._gauge(
            "dragoman_memory_bytes",
            "Memory of a model. `weights`: resident. `buffers`: all else that loading took. `working`: taken by runs "
            "since free memory was last returned. `cache_reserved`, `cache_resident`, `cache_used`: the cache as "
            "reserved, as resident, and as used by running texts.",
            ("model", "part"),
        )
        process_memory = self._gauge(
            "dragoman_process_memory_bytes",
            "Memory outside the models. `libraries`: resident. `interpreter`: allocated before the first model. With "
            "weights, buffers, working and cache_resident of all models the sum is about "
            "process_resident_memory_bytes.",
            ("part",),
        )
        self._process_memory = {part: process_memory.labels(part) for part in PROCESS_MEMORY_PARTS}
        self.memory_limit_bytes = self._gauge(
            "dragoman_memory_limit_bytes", "Memory limit of the process: its container's, or the machine's memory.", ()
        )
        self.memory_limit_bytes.set_function(memory_limit_bytes)
        device_memory = self._described(
            "dragoman_device_memory_bytes",
            "gauge",
            ("device", "kind"),
            "Memory of each NVIDIA device: used by all processes, and total. Absent without a device.",
        )
        self.registry.register(
            DeviceMemoryCollector(device_memory.name, device_memory.help, device_memory.labels, devices)
        )

    def _define_changes(self) -> None:
        """Loading and replacement of models."""
        self.model_load_seconds = self._gauge("dragoman_model_load_seconds", "Duration of loading the model.", MODEL)
        self.warmup_seconds = self._gauge("dragoman_warmup_seconds", "Duration of the model's warm-up.", MODEL)
        self.replacements = self._counter(
            "dragoman_replacements_total",
            f"New versions of a bundle found while serving, by outcome: {' and '.join(REPLACEMENTS)}.",
            ("model", "outcome"),
        )

    def _define_calls(self) -> None:
        """Calls of any method."""
        self.rpc_started = self._counter("grpc_server_started_total", "Calls started.", RPC_LABELS)
        self.rpc_handled = self._counter(
            "grpc_server_handled_total", "Calls ended, by status.", (*RPC_LABELS, "grpc_code")
        )
        self.rpc_seconds = self._histogram(
            "grpc_server_handling_seconds", "Duration of a call, from its start to its end.", RPC_LABELS, SECONDS
        )
        self.objective_seconds = self._gauge(
            "dragoman_objective_seconds",
            f"Time within which {OBJECTIVE_SHARE:.0%} of the calls should end.",
            ("grpc_method",),
        )
        for method, seconds in OBJECTIVES.items():
            self.objective_seconds.labels(method).set(seconds)

    def refuse(self, reason: str) -> None:
        """Count a call refused for one of REFUSALS."""
        self._deferred.add(self._refusals[reason].inc)

    def held(self, memory: ProcessMemory) -> None:
        """Set the memory that the process holds beside its models."""
        for part, gauge in self._process_memory.items():
            gauge.set(getattr(memory, part))

    def _described(self, name: str, kind: str, labels: tuple[str, ...], help: str) -> Family:
        family = Family(name, kind, labels, help)
        self.families.append(family)
        return family

    def _counter(self, name: str, help: str, labels: tuple[str, ...]) -> Counter:
        self._described(name, "counter", labels, help)
        return Counter(name, help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str, labels: tuple[str, ...]) -> Gauge:
        self._described(name, "gauge", labels, help)
        return Gauge(name, help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, labels: tuple[str, ...], buckets: Sequence[float]) -> Histogram:
        self._described(name, "histogram", labels, help)
        return Histogram(name, help, labels, registry=self.registry, buckets=buckets)
