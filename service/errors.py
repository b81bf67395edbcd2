"""What can go wrong with a call, in the service's own words. `service.rpc.status` maps it to gRPC.

    ServiceError
    ├── InvalidRequestError        the caller's fault; names the field
    │   ├── TooLongError           a text beyond one of the model's limits
    │   ├── UnknownLanguageError   lists the languages there are
    │   └── NoSuchPairError        no model is named, and none has the languages
    ├── UnknownModelError          lists the models there are
    ├── UnauthenticatedError       no token, or one that is not known
    ├── OverloadedError            the queue is full; says when to come again
    │   ├── DeadlineUnreachableError          the forecast misses the deadline; says by how much
    │   ├── RateLimitedError       the holders of one token ask too often, or too much at once
    │   └── NoMemoryError          there was not the memory for a text, even alone
    ├── DeadlineExceededError                  the caller's deadline has passed
    │   ├── CallTimeLimitError          not the caller's: the server's own limit
    │   └── TooLateError           before the engine had its texts
    ├── NotServingError            the server is starting, stopping, hanging, or out of order
    │   └── ModelHungError           the model did not answer in time
    └── ModelFailedError           the model itself failed on a text

Messages are one line of ASCII, and never repeat a text. Of the caller's words only the names of languages and
models return, cut and escaped by `quoted`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

QUOTED_CHARACTERS = 40
"""Most characters that an error repeats of a name that the caller gave."""

LISTED_NAMES = 30
"""Most names that an error lists of what there is."""

RETRY_AFTER_SECONDS = 1.0
"""When a caller whom a full queue refused should come again."""

MIN_RETRY_SECONDS = 0.1
"""Before that, what waits has hardly become less."""


class StartupError(Exception):
    """The server cannot start; the message is one line for the operator."""


class ServiceError(Exception):
    """A call that is not answered; the message says why."""

    refusal: ClassVar[str | None] = None
    """Under which reason `dragoman_refused_total` counts it; None where work was begun for the call."""


class InvalidRequestError(ServiceError):
    """A request that can never be answered as it is."""

    refusal: ClassVar[str | None] = "bad_request"

    def __init__(self, field: str, fault: str) -> None:
        """`field` is as in the proto, with an index where it repeats: `texts[3]`; `fault` goes on the sentence."""
        super().__init__(f"{field} {fault}")
        self.field = field
        self.fault = fault


class TooLongError(InvalidRequestError):
    """A text that is longer than the model can read."""

    refusal = "too_long"

    def __init__(self, index: int, count: int, limit: int, unit: str) -> None:
        super().__init__(f"texts[{index}]", f"has {count} {unit}, the limit is {limit}; shorten it or set truncate")
        self.index = index


class UnknownLanguageError(InvalidRequestError):
    """A language that the model does not read or write, or none where it has several."""

    def __init__(self, field: str, asked: str, offered: Sequence[str]) -> None:
        what = f"{quoted(asked)} is not known" if asked else "is missing"
        super().__init__(field, f"{what}; this model has {listed(offered)}")


class NoSuchPairError(InvalidRequestError):
    """No model is named, and none of several goes from the one language to the other."""

    def __init__(self, source: str, target: str | None, offered: Sequence[str]) -> None:
        """`target` is None where nothing is translated; `offered` are the models with their languages."""
        there = f"this server has {listed(offered)}"
        if target is None:
            super().__init__("source_language", f"{_language(source)} is read by no model; {there}")
        else:
            super().__init__("target_language", f"{_language(target)} from {_language(source)} is not offered; {there}")


class UnknownModelError(ServiceError):
    """A model that is not loaded, or none named where several would do."""

    refusal = "bad_request"
    field = "model"

    def __init__(self, asked: str, offered: Sequence[str]) -> None:
        what = f"{quoted(asked)} is not known" if asked else "is missing"
        self.offered = listed(offered)
        """Names of models."""
        self.fault = f"{what}; this server has {self.offered}"
        super().__init__(f"model {self.fault}")


class UnauthenticatedError(ServiceError):
    """A call without a token that this server knows; the message does not have it either."""

    refusal = "unauthenticated"


class OverloadedError(ServiceError):
    """The queue cannot take the call now."""

    refusal: ClassVar[str | None] = "queue_full"

    def __init__(self, reason: str, retry_after_seconds: float = RETRY_AFTER_SECONDS) -> None:
        super().__init__(f"{reason}; come again in {retry_after_seconds:.3g} s")
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True)
class DeadlineForecast:
    """The forecast by which a call was refused: its answer would come after its deadline."""

    seconds: float
    """From now to the answer."""
    seconds_left: float
    """From now to the deadline."""
    margin_seconds: float = 0.0
    """The forecast must miss the deadline by more than this."""
    tokens_waiting: int = 0
    """Tokens ahead in the queue."""
    tokens_per_second: float = 0.0
    """Measured rate at which the queue drains; 0 where no tokens wait ahead."""

    @property
    def late_seconds(self) -> float:
        """From the deadline to the answer."""
        return self.seconds - self.seconds_left

    def __str__(self) -> str:
        if not self.tokens_waiting:
            return f"forecast {self.seconds:.2g} s"
        # Two digits: equal messages are converted to a status once.
        tokens, rate = (float(f"{number:.2g}") for number in (self.tokens_waiting, self.tokens_per_second))
        return (
            f"{tokens:.0f} tokens wait at {rate:g} tokens/s, "
            f"forecast {self.seconds:.2g} s, margin {self.margin_seconds:.1g} s"
        )


class DeadlineUnreachableError(OverloadedError):
    """The queue is so long that the answer would come after the caller's deadline."""

    refusal = "deadline"

    def __init__(self, forecast: DeadlineForecast) -> None:
        late = forecast.late_seconds
        # In tenths: equal messages are converted to a status once.
        retry_after_seconds = max(MIN_RETRY_SECONDS, math.ceil(10 * late) / 10)
        reason = f"queue too long: would miss the deadline by about {late:.1f} s ({forecast})"
        super().__init__(reason, retry_after_seconds)
        self.forecast = forecast


class RateLimitedError(OverloadedError):
    """The holders of one token ask for more than they may."""

    refusal = "rate"


class NoMemoryError(OverloadedError):
    """Memory was refused for a text, even alone; later there may be more."""

    refusal = None

    def __init__(self, index: int) -> None:
        super().__init__(f"the server has not enough memory for texts[{index}]")


class DeadlineExceededError(ServiceError):
    """The caller's deadline passed while its texts were in the engine."""

    def __init__(self, fault: str = "the deadline passed before the answer was ready") -> None:
        super().__init__(fault)


class CallTimeLimitError(DeadlineExceededError):
    """The call took longer than the server lets any, though its caller would have waited."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the call took longer than {seconds:g} s, the server's limit; send less at once")


class TooLateError(DeadlineExceededError):
    """The caller's deadline passed before the engine had the texts."""

    refusal = "deadline"


class NotServingError(ServiceError):
    """The server takes no calls now."""

    refusal: ClassVar[str | None] = "draining"


class ModelHungError(NotServingError):
    """The call was in the engine when the model ceased to answer."""

    refusal = None


class ModelFailedError(ServiceError):
    """The model failed on a text, or on a batch that held it."""

    def __init__(self, index: int, fault: str) -> None:
        super().__init__(f"the model failed on texts[{index}]: {fault}")


def _language(asked: str) -> str:
    return quoted(asked) if asked else "(left out)"


def quoted(name: str) -> str:
    """A name that the caller gave, short and in ASCII, between quotes."""
    short = name if len(name) <= QUOTED_CHARACTERS else name[: QUOTED_CHARACTERS - 3] + "..."
    return ascii(short)


def listed(names: Sequence[str]) -> str:
    """Names of what there is, in ASCII; not all of them where they are many."""
    if not names:
        return "none"
    shown = ", ".join(ascii(name)[1:-1] for name in names[:LISTED_NAMES])
    more = len(names) - LISTED_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
