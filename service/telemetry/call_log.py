"""Writes one log line per call: outcome and timings, never the caller or the text.

Under load lines are left out; the next line has their number.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc

from dragoman.v1 import translation_pb2 as pb

log = logging.getLogger("dragoman.calls")

FIELDS = "fields"
"""Attribute of a log record: the fields of its line."""

MAX_ID_CHARACTERS = 128
"""Length of a request's own name. A longer one is refused by the service, and cut in the log."""

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
"""Metadata of the trace that a call belongs to (W3C Trace Context)."""

_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

Fields = dict[str, Any]


class Call(NamedTuple):
    """A call that has ended. A tuple, because each call creates one and a tuple is cheap."""

    method: str
    code: grpc.StatusCode
    seconds: float
    """Duration, from start to end."""
    trace_context: Mapping[str, str]
    """TRACEPARENT and TRACESTATE as received, if present."""
    request: Any = None
    """The request message, if it was read."""
    response: Any = None
    """The response message, if there was one."""


class CallLog:
    """Writes a limited number of lines a second, with separate limits for successful and for failed calls."""

    def __init__(
        self, calls_per_second: int, with_texts: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """With 0 calls a second nothing is written. `with_texts` adds sources and translations to the lines."""
        self._with_texts = with_texts
        self._samplers = {successful: _Sampler(calls_per_second, clock) for successful in (True, False)}

    def note(self, call: Call) -> None:
        """Write a line about `call`, or count it as left out."""
        left_out = self._samplers[call.code is grpc.StatusCode.OK].pick()
        if left_out is None:
            return
        fields = call_fields(call)
        if left_out:
            fields["left_out"] = left_out
        if self._with_texts:
            fields |= _texts(call)
        log.info("%s %s", call.method, call.code.name, extra={FIELDS: fields})


def trace_context(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """The entries of `metadata` that describe the call's trace, unparsed."""
    wanted = (TRACEPARENT, TRACESTATE)
    return {key: value for key, value in metadata if key in wanted and isinstance(value, str)}


def trace_of(context: Mapping[str, str]) -> str | None:
    """The trace identifier in `context`, or None if there is none or it is malformed."""
    found = _TRACE.fullmatch(context.get(TRACEPARENT, ""))
    return found[1] if found else None


def call_fields(call: Call) -> Fields:
    """The fields of a line: names, counts and seconds; no text, and of the caller only the names that it chose."""
    fields: Fields = {"method": call.method, "code": call.code.name, "seconds": round(call.seconds, 6)}
    trace = trace_of(call.trace_context)
    if trace:
        fields["trace"] = trace
    request_id = getattr(call.request, "request_id", "")
    if request_id:
        fields["id"] = request_id[:MAX_ID_CHARACTERS]
    if isinstance(call.request, pb.TranslateRequest | pb.EmbedRequest):
        fields["texts"] = len(call.request.texts)
    if isinstance(call.response, pb.TranslateResponse):
        fields |= _counts(call.response.translations)
        fields["output_tokens"] = sum(each.output_tokens for each in call.response.translations)
        fields |= _phases(call.response)
        if call.response.HasField("pivot"):
            fields |= {"pivot": call.response.pivot.language, "pivot_model": call.response.pivot.model}
    elif isinstance(call.response, pb.EmbedResponse):
        fields |= _counts(call.response.embeddings)
        fields |= _phases(call.response)
    return fields


def _counts(results: Sequence[pb.Translation] | Sequence[pb.Embedding]) -> Fields:
    return {
        "source_tokens": sum(each.source_tokens for each in results),
        "truncated": sum(each.source_truncated for each in results),
    }


def _phases(response: pb.TranslateResponse | pb.EmbedResponse) -> Fields:
    times = response.timings
    return {
        "model": response.model,
        "queue_seconds": round(times.queue_seconds, 6),
        "tokenize_seconds": round(times.tokenize_seconds, 6),
        "encode_seconds": round(times.encode_seconds, 6),
        "decode_seconds": round(times.decode_seconds, 6),
    }


def _texts(call: Call) -> Fields:
    found: Fields = {}
    if isinstance(call.request, pb.TranslateRequest | pb.EmbedRequest):
        found["sources"] = list(call.request.texts)
    if isinstance(call.response, pb.TranslateResponse):
        found["translations"] = [each.text for each in call.response.translations]
        if call.response.HasField("pivot"):
            found["pivot_translations"] = [each.text for each in call.response.pivot.translations]
    return found


class _Sampler:
    """Picks at most `limit` calls in each second."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def pick(self) -> int | None:
        """None if this call is left out; otherwise the number left out before it."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= self._limit:
            self._left_out += 1
            return None
        self._written += 1
        before, self._left_out = self._left_out, 0
        return before
