"""Every metric of the service, and the only place that names one.

Label values come from closed sets, so that no caller can make a series; all of them are there from the start, at 0.
Gauges of the engine are read from it when somebody scrapes, so that they cannot drift.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman.client.values import ModelMemory, ProcessMemory
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.observer import Cause, Run
from dragoman.service.engine.sequence import Finish, Times
from dragoman.service.engine.sequence import Sequence as EngineSequence
from dragoman.service.system.memory_limits import DeviceMemory, memory_limit_bytes

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60)
"""Bounds for calls and their phases: from an embedding of 2 ms to a document of a minute."""

STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

OBJECTIVES = {"Translate": 2, "Embed": 0.2}
"""Within how many seconds a call of each method is to end; each is one of SECONDS, so that it can be counted."""

OBJECTIVE_SHARE = 0.99
"""The share of the calls that is to keep the objective."""

MAX_PENDING = 64
"""How many encodings, steps, texts and calls are counted at once, where nobody scrapes before."""

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
DEVICE_MEMORY_KINDS = ("used", "total")
WASTED = frozenset({Finish.CANCELLED, Finish.DEADLINE, Finish.FAILED})

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
        """`devices` is asked at each scrape for what the devices of the machine have."""
        # Of the whole process, there being no other way: a second series for each counter, with the time it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self.before_scrape: list[Callable[[], None]] = []
        """Called by each scrape before it reads anything."""
        registry.register(_ScrapeCalls(self.before_scrape))
        self.families: list[Family] = []
        """Everything that is defined here, in the order of the documentation."""
        self._define_models()
        self._define_work()
        self._define_load()
        self._define_memory(devices)
        self._define_changes()
        self._define_calls()
        ProcessCollector(registry=registry)
        self._refusals = {reason: self.refused.labels(reason) for reason in REFUSALS}
        self._later = Later(self)

    def _define_models(self) -> None:
        """What runs, and whether it answers."""
        self.model_info = self._gauge(
            "dragoman_model_info",
            "Always 1: the labels say which model runs, and where it really runs.",
            ("model", "version", "family", "precision", "provider"),
        )
        self.ready = self._gauge("dragoman_ready", "1 while the model answers calls, else 0.", MODEL)
        self.provider_as_configured = self._gauge(
            "dragoman_provider_as_configured",
            "1 if the model runs where the settings want it, else 0; auto wants a GPU where the machine has one.",
            MODEL,
        )

    def _define_work(self) -> None:
        """What was done, and how long it took."""
        self.phase_seconds = self._histogram(
            "dragoman_phase_seconds",
            "Time spent in one phase: queue, encode and decode of each text, tokenize and detokenize of each call.",
            ("model", "phase"),
            SECONDS,
        )
        self.time_to_first_token_seconds = self._histogram(
            "dragoman_time_to_first_token_seconds",
            "Time from entering the queue to the first output token, of each text.",
            MODEL,
            SECONDS,
        )
        self.step_seconds = self._histogram(
            "dragoman_step_seconds", "Time of one step of the decoder.", MODEL, STEP_SECONDS
        )
        self.batch_rows = self._histogram("dragoman_batch_rows", "Texts in one step of the decoder.", MODEL, ROWS)
        self.source_tokens = self._histogram(
            "dragoman_source_tokens", "Tokens of each text that was encoded.", MODEL, TOKENS
        )
        self.output_tokens = self._histogram(
            "dragoman_output_tokens", "Tokens of each output that somebody received.", MODEL, TOKENS
        )
        self.tokens = self._counter(
            "dragoman_tokens_total",
            "Tokens: source and padding as encoded, output as decoded, "
            "wasted those of the output that nobody received.",
            ("model", "kind"),
        )
        self.texts = self._counter(
            "dragoman_texts_total",
            f"Texts of answered calls: {' and '.join(OPERATIONS)}, the latter with target language {OTHER_LANGUAGE!r}.",
            ("model", "operation", "target_language"),
        )
        self.finished = self._counter(
            "dragoman_finished_total", f"Texts that left the engine: {', '.join(FINISH_REASONS)}.", ("model", "reason")
        )
        self.run_failures = self._counter(
            "dragoman_run_failures_total",
            f"Runs of the model ({', '.join(RUNS)}) that failed for an error or for want of memory, those that then "
            "succeeded in smaller parts counted too.",
            ("model", "run", "cause"),
        )
        self.refused = self._counter(
            "dragoman_refused_total", f"Calls refused before work on them began: {', '.join(REFUSALS)}.", ("reason",)
        )

    def _define_load(self) -> None:
        """What waits and runs now, and what may."""
        self.queue_tokens = self._gauge(
            "dragoman_queue_tokens", "Tokens, of sources and longest outputs together, that wait.", MODEL
        )
        self.queue_tokens_limit = self._gauge(
            "dragoman_queue_tokens_limit", "Most tokens that may wait; a call beyond is refused.", MODEL
        )
        self.queue_sequences = self._gauge("dragoman_queue_sequences", "Texts that wait.", MODEL)
        self.queue_sequences_limit = self._gauge(
            "dragoman_queue_sequences_limit", "Most texts that may wait; a call beyond is refused.", MODEL
        )
        self.active_rows = self._gauge("dragoman_active_rows", "Texts that are being decoded.", MODEL)
        self.cache_slots = self._gauge(
            "dragoman_cache_slots", "Texts that the cache has room for: the most that are decoded together.", MODEL
        )
        self.cache_positions = self._gauge(
            "dragoman_cache_positions",
            f"Tokens that a slot of the cache has room for now, of each text: {' and '.join(CACHES)}.",
            ("model", "cache"),
        )

    def _define_memory(self, devices: Callable[[], Sequence[DeviceMemory]]) -> None:
        """Where memory goes."""
        self.memory_bytes = self._gauge(
            "dragoman_memory_bytes",
            "Memory of a model: weights that are resident, buffers (what loading it took besides), working (what runs "
            "have taken since memory was last given back), and the cache, as reserved, as resident, and as used by "
            "running texts.",
            ("model", "part"),
        )
        process_memory = self._gauge(
            "dragoman_process_memory_bytes",
            "Memory beside the models: libraries that are resident, and interpreter (all that was allocated before the "
            "first model). With weights, buffers, working and cache_resident of all models this comes to about "
            "process_resident_memory_bytes.",
            ("part",),
        )
        self._process_memory = {part: process_memory.labels(part) for part in PROCESS_MEMORY_PARTS}
        self.memory_limit_bytes = self._gauge(
            "dragoman_memory_limit_bytes", "What bounds the process's memory: its container, or the machine.", ()
        )
        self.memory_limit_bytes.set_function(memory_limit_bytes)
        device_memory = self._described(
            "dragoman_device_memory_bytes",
            "gauge",
            ("device", "kind"),
            "Memory of each NVIDIA device, used by all processes and total; absent without one.",
        )
        self.registry.register(_DeviceMemoryCollector(device_memory, devices))

    def _define_changes(self) -> None:
        """How models came to be there."""
        self.model_load_seconds = self._gauge("dragoman_model_load_seconds", "Time that loading took.", MODEL)
        self.warmup_seconds = self._gauge("dragoman_warmup_seconds", "Time that warming up took.", MODEL)
        self.replacements = self._counter(
            "dragoman_replacements_total",
            f"New versions of a bundle that were found while serving: {' and '.join(REPLACEMENTS)}.",
            ("model", "outcome"),
        )

    def _define_calls(self) -> None:
        """Calls, whatever they are about."""
        self.rpc_started = self._counter("grpc_server_started_total", "Calls that began.", RPC_LABELS)
        self.rpc_handled = self._counter(
            "grpc_server_handled_total", "Calls that ended, by status.", (*RPC_LABELS, "grpc_code")
        )
        self.rpc_seconds = self._histogram(
            "grpc_server_handling_seconds", "Time from a call's beginning to its end.", RPC_LABELS, SECONDS
        )
        self.objective_seconds = self._gauge(
            "dragoman_objective_seconds",
            f"Within how long a call is to end; {OBJECTIVE_SHARE:.0%} of them are to.",
            ("grpc_method",),
        )
        for method, seconds in OBJECTIVES.items():
            self.objective_seconds.labels(method).set(seconds)

    def refuse(self, reason: str) -> None:
        """A call was refused for one of REFUSALS."""
        self._later.add(self._refusals[reason].inc)

    def held(self, memory: ProcessMemory) -> None:
        """The process holds `memory` beside its models."""
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


class _ScrapeCalls(Collector):
    """No series, but calls at each scrape; registered first, since a registry goes by the order of registration."""

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        self._calls = calls

    def describe(self) -> Iterator[Metric]:
        """Part of Collector."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Part of Collector."""
        for call in self._calls:
            call()
        return iter(())


class _DeviceMemoryCollector(Collector):
    """Series of the devices that there are, and none of a device that is not there."""

    def __init__(self, family: Family, devices: Callable[[], Sequence[DeviceMemory]]) -> None:
        self._family = family
        self._devices = devices

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Part of Collector: the name, without asking any device."""
        yield GaugeMetricFamily(self._family.name, self._family.help, labels=self._family.labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Part of Collector."""
        (gauge,) = self.describe()
        for device in self._devices():
            for kind, number in zip(DEVICE_MEMORY_KINDS, (device.used, device.total), strict=True):
                gauge.add_metric((str(device.index), kind), number)
        if gauge.samples:
            yield gauge


class Later:
    """What is counted many at once, and at the latest before a scrape.

    Between two runs of the model nothing of this is in the processor's caches: together each costs a tenth.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._pending: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        metrics.before_scrape.append(self.settle)

    def add(self, count: Callable[..., None], *told: Any) -> None:
        """Call `count` with `told`, later."""
        self._pending.append((count, told))
        if len(self._pending) >= MAX_PENDING:
            self.settle()

    def settle(self) -> None:
        """Count what was put off; any thread may call it."""
        while self._pending:
            try:
                count, told = self._pending.popleft()
            except IndexError:
                # Another thread was faster.
                return
            count(*told)


class MethodMetrics:
    """The metrics of one gRPC method, bound once."""

    def __init__(self, metrics: Metrics, service: str, method: str) -> None:
        self._later = Later(metrics)
        labels = ("unary", service, method)
        self._started = metrics.rpc_started.labels(*labels)
        self._handled = {code: metrics.rpc_handled.labels(*labels, code.name) for code in grpc.StatusCode}
        self._seconds = metrics.rpc_seconds.labels(*labels)

    def started(self) -> None:
        """A call began."""
        self._later.add(self._started.inc)

    def handled(self, code: grpc.StatusCode, seconds: float) -> None:
        """A call ended with `code`, `seconds` after its beginning."""
        self._later.add(self._count_handled, code, seconds)

    def _count_handled(self, code: grpc.StatusCode, seconds: float) -> None:
        self._handled[code].inc()
        self._seconds.observe(seconds)


class ModelMetrics:
    """The metrics of one model, bound once; the engine's Observer."""

    def __init__(self, metrics: Metrics, name: str, target_languages: Sequence[str]) -> None:
        self._metrics = metrics
        self._name = name
        self._later = Later(metrics)
        self._phases = {phase: metrics.phase_seconds.labels(name, phase) for phase in PHASES}
        self._first_token = metrics.time_to_first_token_seconds.labels(name)
        self._step_seconds = metrics.step_seconds.labels(name)
        self._batch_rows = metrics.batch_rows.labels(name)
        self._source_tokens = metrics.source_tokens.labels(name)
        self._output_tokens = metrics.output_tokens.labels(name)
        self._tokens = {kind: metrics.tokens.labels(name, kind) for kind in TOKEN_KINDS}
        self._translated = {OTHER_LANGUAGE: metrics.texts.labels(name, TRANSLATE, OTHER_LANGUAGE)}
        self._offer(target_languages)
        self._embedded = metrics.texts.labels(name, EMBED, OTHER_LANGUAGE)
        self._finished = {reason: metrics.finished.labels(name, reason) for reason in FINISH_REASONS}
        self._run_failures = {
            (run, cause): metrics.run_failures.labels(name, run, cause) for run in RUNS for cause in CAUSES
        }
        self._gauges = {
            gauge: gauge.labels(name)
            for gauge in (
                metrics.ready,
                metrics.provider_as_configured,
                metrics.queue_tokens,
                metrics.queue_tokens_limit,
                metrics.queue_sequences,
                metrics.queue_sequences_limit,
                metrics.active_rows,
                metrics.cache_slots,
                metrics.model_load_seconds,
                metrics.warmup_seconds,
            )
        }
        self._memory = {part: metrics.memory_bytes.labels(name, part) for part in MEMORY_PARTS}
        self._positions = {cache: metrics.cache_positions.labels(name, cache) for cache in CACHES}
        self._replacements = {outcome: metrics.replacements.labels(name, outcome) for outcome in REPLACEMENTS}
        self._info: tuple[str, ...] | None = None
        """The labels of what is loaded."""

    def _offer(self, target_languages: Sequence[str]) -> None:
        for language in target_languages:
            self._translated[language] = self._metrics.texts.labels(self._name, TRANSLATE, language)

    def readiness(self, ready: Callable[[], bool]) -> None:
        """Ask `ready` at each scrape."""
        self._gauges[self._metrics.ready].set_function(lambda: float(ready()))

    def loaded(
        self,
        version: str,
        family: str,
        precision: str,
        provider: str,
        as_configured: bool,
        load_seconds: float,
        warmup_seconds: float,
        target_languages: Sequence[str] = (),
    ) -> None:
        """The model is there; `as_configured` if `provider` is the one that the settings want.

        Said again of another version, which may have other `target_languages`, it is of that one alone.
        """
        info = (self._name, version, family, precision, provider)
        if self._info is not None and self._info != info:
            self._metrics.model_info.remove(*self._info)
        self._info = info
        self._metrics.model_info.labels(*info).set(1)
        self._offer(target_languages)
        self._gauges[self._metrics.provider_as_configured].set(float(as_configured))
        self._gauges[self._metrics.model_load_seconds].set(load_seconds)
        self._gauges[self._metrics.warmup_seconds].set(warmup_seconds)

    def watch(self, engine: Engine) -> None:
        """Ask `engine` for its load and its caches at each scrape, and once for its limits."""
        self._gauges[self._metrics.queue_tokens].set_function(lambda: engine.load().waiting_tokens)
        self._gauges[self._metrics.queue_sequences].set_function(lambda: engine.load().waiting_sequences)
        self._gauges[self._metrics.active_rows].set_function(lambda: engine.load().active_rows)
        for cache, gauge in self._positions.items():
            gauge.set_function(_positions(engine, f"{cache}_positions"))
        limits = engine.limits
        self._gauges[self._metrics.queue_tokens_limit].set(limits.queue_tokens)
        self._gauges[self._metrics.queue_sequences_limit].set(limits.queue_sequences)
        self._gauges[self._metrics.cache_slots].set(limits.rows * engine.lanes)

    def held(self, memory: ModelMemory) -> None:
        """The model holds `memory`."""
        for part, gauge in self._memory.items():
            gauge.set(getattr(memory, part))

    def replacement(self, outcome: str) -> None:
        """A new version was found, and became one of REPLACEMENTS."""
        self._replacements[outcome].inc()

    # --- told by the translator

    def tokenized(self, seconds: float) -> None:
        """The texts of a call became tokens."""
        self._phases["tokenize"].observe(seconds)

    def translated(self, texts: int, language: str, detokenize_seconds: float) -> None:
        """The tokens of a call became `texts` translations into `language`."""
        self._phases["detokenize"].observe(detokenize_seconds)
        self._translated.get(language, self._translated[OTHER_LANGUAGE]).inc(texts)

    def embedded(self, texts: int) -> None:
        """`texts` texts of a call became vectors."""
        self._embedded.inc(texts)

    # --- told by the engine

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """See `Observer.encoded`."""
        self._later.add(self._count_encoding, tokens, padding)

    def stepped(self, rows: int, seconds: float) -> None:
        """See `Observer.stepped`."""
        self._later.add(self._count_step, rows, seconds)

    def failed(self, run: Run, cause: Cause) -> None:
        """See `Observer.failed`."""
        self._run_failures[run, cause].inc()

    def wasted(self, tokens: int) -> None:
        """See `Observer.wasted`."""
        self._tokens["wasted"].inc(tokens)

    def finished(self, sequence: EngineSequence) -> None:
        """See `Observer.finished`."""
        counts = len(sequence.source), len(sequence.tokens)
        self._later.add(self._count_finished, sequence.finish, sequence.times, *counts)

    # --- counted later

    def _count_encoding(self, tokens: int, padding: int) -> None:
        self._tokens["source"].inc(tokens)
        self._tokens["padding"].inc(padding)

    def _count_step(self, rows: int, seconds: float) -> None:
        self._step_seconds.observe(seconds)
        self._batch_rows.observe(rows)
        self._tokens["output"].inc(rows)

    def _count_finished(self, finish: Finish, times: Times, source_tokens: int, output_tokens: int) -> None:
        self._finished[finish.value].inc()
        if finish in WASTED:
            self._tokens["wasted"].inc(output_tokens)
        if times.admitted:
            self._phases["queue"].observe(times.admitted - times.submitted)
        if times.encoded:
            self._phases["encode"].observe(times.encoded - times.admitted)
            self._source_tokens.observe(source_tokens)
        if times.first_token:
            self._first_token.observe(times.first_token - times.submitted)
            self._phases["decode"].observe(times.finished - times.encoded)
            if finish not in WASTED:
                self._output_tokens.observe(output_tokens)


def _positions(engine: Engine, cache: str) -> Callable[[], float]:
    return lambda: float(getattr(engine.memory(), cache))
