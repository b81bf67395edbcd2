"""Recorders: one gRPC method, or one model, counts into the metrics through one of these."""

from collections.abc import Callable, Sequence

import grpc

from dragoman.client.values import ModelMemory
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.observer import Cause, Run
from dragoman.service.engine.sequence import Finish, Times
from dragoman.service.engine.sequence import Sequence as EngineSequence
from dragoman.service.telemetry.metrics import (
    CACHES,
    CAUSES,
    EMBED,
    FINISH_REASONS,
    MEMORY_PARTS,
    OTHER_LANGUAGE,
    PHASES,
    REPLACEMENTS,
    RUNS,
    TOKEN_KINDS,
    TRANSLATE,
    Metrics,
)
from dragoman.service.telemetry.scrape import DeferredCounts

WASTED = frozenset({Finish.CANCELLED, Finish.DEADLINE, Finish.FAILED})
"""Endings after which the output is not delivered."""


class MethodMetrics:
    """Counts the calls of one gRPC method; its labels are bound once."""

    def __init__(self, metrics: Metrics, service: str, method: str) -> None:
        self._deferred = DeferredCounts(metrics.before_scrape)
        labels = ("unary", service, method)
        self._started = metrics.rpc_started.labels(*labels)
        self._handled = {code: metrics.rpc_handled.labels(*labels, code.name) for code in grpc.StatusCode}
        self._seconds = metrics.rpc_seconds.labels(*labels)

    def started(self) -> None:
        """Count a call that started."""
        self._deferred.add(self._started.inc)

    def handled(self, code: grpc.StatusCode, seconds: float) -> None:
        """Count a call that ended with `code`, `seconds` after its start."""
        self._deferred.add(self._count_handled, code, seconds)

    def _count_handled(self, code: grpc.StatusCode, seconds: float) -> None:
        self._handled[code].inc()
        self._seconds.observe(seconds)


class ModelMetrics:
    """Counts the work of one model, as its engine's Observer; its labels are bound once.

    The engine calls it on its own threads, the translator on the event loop.
    """

    def __init__(self, metrics: Metrics, name: str, target_languages: Sequence[str]) -> None:
        self._metrics = metrics
        self._name = name
        self._deferred = DeferredCounts(metrics.before_scrape)
        self._phases = {phase: metrics.phase_seconds.labels(name, phase) for phase in PHASES}
        self._first_token = metrics.time_to_first_token_seconds.labels(name)
        self._step_seconds = metrics.step_seconds.labels(name)
        self._batch_rows = metrics.batch_rows.labels(name)
        self._source_tokens = metrics.source_tokens.labels(name)
        self._output_tokens = metrics.output_tokens.labels(name)
        self._tokens = {kind: metrics.tokens.labels(name, kind) for kind in TOKEN_KINDS}
        self._translated = {OTHER_LANGUAGE: metrics.texts.labels(name, TRANSLATE, OTHER_LANGUAGE)}
        self._add_languages(target_languages)
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
        """The labels of the loaded version."""

    def readiness(self, ready: Callable[[], bool]) -> None:
        """Call `ready` at each scrape."""
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
        """Describe the loaded model; `as_configured` if `provider` is the one that the settings want.

        Called again for another version, which may have other `target_languages`, it describes that one alone.
        """
        info = (self._name, version, family, precision, provider)
        if self._info is not None and self._info != info:
            self._metrics.model_info.remove(*self._info)
        self._info = info
        self._metrics.model_info.labels(*info).set(1)
        self._add_languages(target_languages)
        self._gauges[self._metrics.provider_as_configured].set(float(as_configured))
        self._gauges[self._metrics.model_load_seconds].set(load_seconds)
        self._gauges[self._metrics.warmup_seconds].set(warmup_seconds)

    def watch(self, engine: Engine) -> None:
        """Read load and caches of `engine` at each scrape, and its limits once."""
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
        """Set the memory that the model holds."""
        for part, gauge in self._memory.items():
            gauge.set(getattr(memory, part))

    def replacement(self, outcome: str) -> None:
        """Count a new version that was found; `outcome` is one of REPLACEMENTS."""
        self._replacements[outcome].inc()

    # --- called by the translator

    def tokenized(self, seconds: float) -> None:
        """Count the tokenizing of a call."""
        self._phases["tokenize"].observe(seconds)

    def translated(self, texts: int, language: str, detokenize_seconds: float) -> None:
        """Count the `texts` translations of a call into `language`, and their detokenizing."""
        self._phases["detokenize"].observe(detokenize_seconds)
        self._translated.get(language, self._translated[OTHER_LANGUAGE]).inc(texts)

    def embedded(self, texts: int) -> None:
        """Count the `texts` embeddings of a call."""
        self._embedded.inc(texts)

    # --- called by the engine

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """See `Observer.encoded`."""
        self._deferred.add(self._count_encoding, tokens, padding)

    def stepped(self, rows: int, seconds: float) -> None:
        """See `Observer.stepped`."""
        self._deferred.add(self._count_step, rows, seconds)

    def failed(self, run: Run, cause: Cause) -> None:
        """See `Observer.failed`."""
        self._run_failures[run, cause].inc()

    def wasted(self, tokens: int) -> None:
        """See `Observer.wasted`."""
        self._tokens["wasted"].inc(tokens)

    def finished(self, sequence: EngineSequence) -> None:
        """See `Observer.finished`."""
        counts = len(sequence.source), len(sequence.tokens)
        self._deferred.add(self._count_finished, sequence.finish, sequence.times, *counts)

    # --- deferred

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

    def _add_languages(self, target_languages: Sequence[str]) -> None:
        for language in target_languages:
            self._translated[language] = self._metrics.texts.labels(self._name, TRANSLATE, language)


def _positions(engine: Engine, cache: str) -> Callable[[], float]:
    return lambda: float(getattr(engine.memory(), cache))
