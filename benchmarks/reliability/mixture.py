"""Mixture of good, invalid, cancelled and late calls, with checks of the answers and the server's counters.

Each good answer is compared with the answer to the same texts alone, each invalid call with its expected status, and
the server's counters with the calls sent.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import grpc
import numpy as np

from benchmarks.server_process import ServerProcess, sums_by
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.names import SERVICE

CALL_SECONDS = 300.0
"""Limit beyond which a call counts as hung."""
CALM_SECONDS = 10.0
"""Time from the last call within which all gauges must return to 0."""

EMBED_SHARE = 0.2
MAX_TEXTS = 4
"""Texts of one call; most calls have one."""
TOLERANCE = 1e-4
"""Absolute tolerance of vectors: the order of summation depends on the batch."""

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
OWN_FAULTS = ("INTERNAL", "UNKNOWN")


class Kind(StrEnum):
    """Kind of a call."""

    GOOD = "good"
    BAD = "bad"
    CANCELLED = "cancelled"
    LATE = "late"


SHARES = {Kind.GOOD: 0.7, Kind.BAD: 0.1, Kind.CANCELLED: 0.1, Kind.LATE: 0.1}

BAD_CALLS: tuple[tuple[grpc.StatusCode, str, bytes], ...] = (
    (INVALID, "Translate", pb.TranslateRequest(texts=["x" * 100_000]).SerializeToString()),
    (INVALID, "Translate", pb.TranslateRequest(texts=["kite", " ".join(["boat"] * 900)]).SerializeToString()),
    (INVALID, "Translate", pb.TranslateRequest(texts=["kite"], target_language="tlh").SerializeToString()),
    (INVALID, "Translate", pb.TranslateRequest(texts=["kite"], max_output_tokens=-1).SerializeToString()),
    (INVALID, "Translate", pb.TranslateRequest().SerializeToString()),
    (INVALID, "Translate", b"\x0a\x04kit\xff"),
    (INVALID, "Translate", b"\xff" * 20),
    (INVALID, "Embed", pb.EmbedRequest(texts=["kite"], request_id="x" * 200).SerializeToString()),
    (INVALID, "Embed", b"\x0a\x01a\x20\x09"),
    (NOT_FOUND, "Translate", pb.TranslateRequest(texts=["kite"], model="nobody").SerializeToString()),
    (NOT_FOUND, "Embed", pb.EmbedRequest(texts=["kite"], model="nobody").SerializeToString()),
)
"""Invalid calls with their expected status: (status, method, message)."""


@dataclass(frozen=True)
class Planned:
    """Call to make, with its expected status."""

    kind: Kind
    method: str
    message: bytes
    texts: tuple[str, ...] = ()
    code: grpc.StatusCode = grpc.StatusCode.OK
    """Expected status of a good or invalid call."""
    seconds: float = CALL_SECONDS
    """Time until the cancellation or the deadline."""


@dataclass(frozen=True)
class Known:
    """Reference answers, by text, of calls with one text and no load."""

    translations: Mapping[str, bytes]
    """Serialized result: text, tokens, finish reason and score."""
    vectors: Mapping[str, Sequence[float]]


@dataclass
class Tally:
    """Calls sent, and their outcomes as the caller saw them."""

    sent: Counter[Kind] = field(default_factory=Counter)
    waited: Counter[str] = field(default_factory=Counter)
    """Good and invalid calls by status; the caller always awaits their end."""
    left: Counter[str] = field(default_factory=Counter)
    """Cancelled and late calls by status, which a race decides."""
    wrong: list[str] = field(default_factory=list)
    """Descriptions of the wrong answers."""
    latencies: list[float] = field(default_factory=list)
    """Latencies of the good calls, in seconds."""


def plan(rng: random.Random, texts: Sequence[str], long_texts: Sequence[str]) -> Planned:
    """Draw a call. Late and cancelled calls have long texts, so that none is answered earlier."""
    kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
    chosen: tuple[str, ...] = (rng.choice(long_texts),)
    if kind is Kind.BAD:
        code, method, message = rng.choice(BAD_CALLS)
        return Planned(kind, method, message, code=code)
    if kind is Kind.LATE:
        return Planned(kind, "Translate", _translate(chosen), chosen, seconds=rng.uniform(0.001, 0.02))
    if kind is Kind.CANCELLED:
        return Planned(kind, "Translate", _translate(chosen), chosen, seconds=rng.choice((0, rng.uniform(0, 0.3))))
    chosen = tuple(rng.choices(texts, k=rng.choice((1, 1, 1, rng.randint(2, MAX_TEXTS)))))
    if rng.random() < EMBED_SHARE:
        return Planned(kind, "Embed", pb.EmbedRequest(texts=chosen, truncate=True).SerializeToString(), chosen)
    return Planned(kind, "Translate", _translate(chosen), chosen)


def _translate(texts: Sequence[str]) -> bytes:
    return pb.TranslateRequest(texts=texts, truncate=True).SerializeToString()


class Caller:
    """Makes calls over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._methods: dict[str, Any] = {
            name: channel.unary_unary(f"/{SERVICE}/{name}", response_deserializer=answer.FromString)
            for name, answer in (("Translate", pb.TranslateResponse), ("Embed", pb.EmbedResponse))
        }

    async def know(self, texts: Sequence[str]) -> Known:
        """Reference answers: one call per text and method, one after the other."""
        translations, vectors = {}, {}
        for text in texts:
            translated = await self._methods["Translate"](_translate([text]))
            embedded = await self._methods["Embed"](pb.EmbedRequest(texts=[text], truncate=True).SerializeToString())
            translations[text] = translated.translations[0].SerializeToString(deterministic=True)
            vectors[text] = embedded.embeddings[0].values
        return Known(translations, vectors)

    async def make(self, planned: Planned, known: Known, tally: Tally) -> None:
        """Make a call and record its outcome in `tally`."""
        tally.sent[planned.kind] += 1
        loop = asyncio.get_running_loop()
        started = loop.time()
        late = planned.kind is Kind.LATE
        call = self._methods[planned.method](planned.message, timeout=planned.seconds if late else CALL_SECONDS)
        if planned.kind is Kind.CANCELLED:
            loop.call_later(planned.seconds, call.cancel)
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            code, answer = error.code(), None
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            code, answer = grpc.StatusCode.CANCELLED, None
        else:
            code = grpc.StatusCode.OK
        if planned.kind in (Kind.CANCELLED, Kind.LATE):
            tally.left[code.name] += 1
        else:
            tally.waited[code.name] += 1
            if code is not planned.code:
                tally.wrong.append(f"a {planned.kind} {planned.method} ended as {code.name}, not {planned.code.name}")
        if answer is not None and not _right(planned, answer, known):
            tally.wrong.append(f"a {planned.kind} {planned.method} got a different answer than alone")
        if planned.kind is Kind.GOOD:
            tally.latencies.append(loop.time() - started)


def _right(planned: Planned, answer: Any, known: Known) -> bool:
    if planned.method == "Translate":
        found = [each.SerializeToString(deterministic=True) for each in answer.translations]
        return found == [known.translations[text] for text in planned.texts]
    return len(answer.embeddings) == len(planned.texts) and all(
        np.allclose(each.values, known.vectors[text], rtol=0, atol=TOLERANCE)
        for each, text in zip(answer.embeddings, planned.texts, strict=True)
    )


@dataclass(frozen=True)
class Counted:
    """The server's counters of the calls to its own methods."""

    started: int
    handled: Counter[str]
    """Ended calls by status."""

    @classmethod
    def by(cls, server: ServerProcess) -> "Counted":
        """Scrape the counters now."""
        page = server.page()
        started = sums_by(page, "grpc_server_started_total", "grpc_method").total()
        return cls(started, sums_by(page, "grpc_server_handled_total", "grpc_code"))

    def since(self, before: "Counted") -> "Counted":
        """Increase since `before`."""
        handled = Counter(self.handled)
        handled.subtract(before.handled)
        return Counted(self.started - before.started, +handled)


def differences(tally: Tally, counted: Counted) -> list[str]:
    """Messages for the differences between the calls sent and the server's counters.

    A cancelled or late call may have ended at the server with another status just before, or never have reached it.
    So a status may exceed the awaited calls, but by no more than the number of cancelled and late calls.
    """
    found = []
    if counted.started != counted.handled.total():
        found.append(f"{counted.started} calls began and {counted.handled.total()} ended")
    sent, raced = tally.sent.total(), tally.left.total()
    if not sent - raced <= counted.started <= sent:
        found.append(f"{counted.started} calls began, {sent} were sent, of which {raced} may not have arrived")
    over = Counter(counted.handled)
    over.subtract(tally.waited)
    for code, count in over.items():
        if count < 0:
            found.append(f"{-count} calls that ended as {code} were not counted as that")
        elif count and code not in ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
            found.append(f"{count} more calls were counted as {code} than ended so")
    found += [f"{counted.handled[code]} calls ended as {code}" for code in OWN_FAULTS if counted.handled[code]]
    return found


def summary(tally: Tally, counted: Counted) -> str:
    """Calls sent, awaited, abandoned and counted, as lines of text."""
    parts = (("sent", tally.sent), ("awaited", tally.waited), ("abandoned", tally.left), ("counted", counted.handled))
    lines = (f"{part}: {', '.join(f'{count} {name}' for name, count in each.most_common())}" for part, each in parts)
    return "\n".join(lines)


def pick_texts(sentences: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """Texts of the good calls, and long texts of the cancelled and late calls."""
    return [*dict.fromkeys(sentences)][:count], [" ".join(sentences[at : at + 12]) for at in range(0, 120, 12)]
