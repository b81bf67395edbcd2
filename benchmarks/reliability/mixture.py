"""Calls as a server gets them on a bad day: most are good, some bad, cancelled, or too late from the start.

Each good answer is held against what its texts are answered alone, each bad call against the status that it must get,
and what the server counted against what was sent.
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
"""What takes longer hangs."""
CALM_SECONDS = 10.0
"""From the last call until all gauges must be at 0."""

EMBED_SHARE = 0.2
MAX_TEXTS = 4
"""Of one call; most have one."""
TOLERANCE = 1e-4
"""For vectors, whose products are summed in another order where more are made at once."""

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
OWN_FAULTS = ("INTERNAL", "UNKNOWN")


class Kind(StrEnum):
    """What is the matter with a call."""

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
"""What must be answered with a status, and that status."""


@dataclass(frozen=True)
class Planned:
    """A call that will be made."""

    kind: Kind
    method: str
    message: bytes
    texts: tuple[str, ...] = ()
    code: grpc.StatusCode = grpc.StatusCode.OK
    """How it must end, if it is waited for."""
    seconds: float = CALL_SECONDS
    """After which it is cancelled, or its deadline has passed."""


@dataclass(frozen=True)
class Known:
    """What each text is answered alone."""

    translations: Mapping[str, bytes]
    """The whole of its result: text, tokens, why it ended, and score."""
    vectors: Mapping[str, Sequence[float]]


@dataclass
class Tally:
    """What was sent, and what came of it."""

    sent: Counter[Kind] = field(default_factory=Counter)
    waited: Counter[str] = field(default_factory=Counter)
    """By status: good and bad calls, which are waited for whatever happens."""
    left: Counter[str] = field(default_factory=Counter)
    """By status as the caller saw it: of the others, which end by a race."""
    wrong: list[str] = field(default_factory=list)
    """Answers that are not what they must be, in words."""
    latencies: list[float] = field(default_factory=list)
    """Of good calls, in seconds."""


def plan(rng: random.Random, texts: Sequence[str], long_texts: Sequence[str]) -> Planned:
    """Draw a call. Late ones and cancelled ones have long texts, so that none can be answered before."""
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
        """Ask for each text alone, one after the other."""
        translations, vectors = {}, {}
        for text in texts:
            translated = await self._methods["Translate"](_translate([text]))
            embedded = await self._methods["Embed"](pb.EmbedRequest(texts=[text], truncate=True).SerializeToString())
            translations[text] = translated.translations[0].SerializeToString(deterministic=True)
            vectors[text] = embedded.embeddings[0].values
        return Known(translations, vectors)

    async def make(self, planned: Planned, known: Known, tally: Tally) -> None:
        """Make a call, and note what came of it."""
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
            tally.wrong.append(f"a {planned.kind} {planned.method} got another answer than alone")
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
    """What the server has counted of its own methods' calls."""

    started: int
    handled: Counter[str]
    """By status."""

    @classmethod
    def by(cls, server: ServerProcess) -> "Counted":
        """Scraped now."""
        page = server.page()
        started = sums_by(page, "grpc_server_started_total", "grpc_method").total()
        return cls(started, sums_by(page, "grpc_server_handled_total", "grpc_code"))

    def since(self, before: "Counted") -> "Counted":
        """What has come since `before`."""
        handled = Counter(self.handled)
        handled.subtract(before.handled)
        return Counted(self.started - before.started, +handled)


def differences(tally: Tally, counted: Counted) -> list[str]:
    """What the server counted otherwise than it was sent, in words.

    A call that is cancelled or late may have ended at the server as something else a moment before, or never have
    reached it. So a status may be counted more often than callers waited for it, but by no more calls than those.
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


def told(tally: Tally, counted: Counted) -> str:
    """What was sent and counted, in words."""
    parts = (("sent", tally.sent), ("waited for", tally.waited), ("left", tally.left), ("counted", counted.handled))
    lines = (f"{what}: {', '.join(f'{count} {name}' for name, count in each.most_common())}" for what, each in parts)
    return "\n".join(lines)


def pick_texts(sentences: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """Texts of good calls, and long ones of those that come to nothing."""
    return [*dict.fromkeys(sentences)][:count], [" ".join(sentences[at : at + 12]) for at in range(0, 120, 12)]
