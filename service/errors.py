"""Errors of a call, independent of gRPC; `service.rpc.status` maps each to a gRPC status.

    ServiceError
    ├── InvalidRequestError             the caller's fault; names the field
    │   ├── TooLongError                a text beyond one of the model's limits
    │   ├── UnknownLanguageError        lists the model's languages
    │   └── NoSuchPairError             no model is named, and none covers the languages
    ├── UnknownModelError               lists the loaded models
    ├── UnauthenticatedError            the bearer token is missing or unknown
    ├── OverloadedError                 the queue is full; carries a retry delay
    │   ├── DeadlineUnreachableError    forecast: the answer would miss its deadline
    │   ├── RateLimitedError            one token makes too many calls, per second or at once
    │   └── NoMemoryError               memory ran out for one text, even alone
    ├── DeadlineExceededError           the caller's deadline passed
    ├── CallTimeLimitError              the call exceeded the server's own time limit
    ├── NotServingError                 the server is starting, stopping, hanging or broken
    │   └── ModelHungError              the model hung while the call was in the engine
    └── ModelFailedError                the model failed on a text

Messages are one line of ASCII and never repeat a text. The caller's own words return only as names of languages and
models, cut and escaped by `quoted`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

QUOTED_CHARACTERS = 40
"""Maximum number of characters that an error repeats of a name given by the caller."""

LISTED_NAMES = 30
"""Maximum number of names that an error lists."""

RETRY_AFTER_SECONDS = 1.0
"""Default delay before a refused caller should retry."""

MIN_RETRY_SECONDS = 0.1
"""Minimum delay: the queue hardly shrinks in less."""


class StartupError(Exception):
    """The server cannot start; the message is one line addressed to the operator."""


class ServiceError(Exception):
    """A call that gets no answer; the message says why."""

    refusal: str | None = None
    """Reason under which `dragoman_refused_total` counts the call; None once work on it has begun."""


class InvalidRequestError(ServiceError):
    """A request that no retry can make valid."""

    refusal: str | None = "bad_request"

    def __init__(self, field: str, fault: str) -> None:
        """`field` is named as in the proto, with an index if repeated: `texts[3]`; `fault` completes the sentence."""
        super().__init__(f"{field} {fault}")
        self.field = field
        self.fault = fault


class TooLongError(InvalidRequestError):
    """A text longer than the model can read."""

    refusal = "too_long"

    def __init__(self, index: int, count: int, limit: int, unit: str) -> None:
        super().__init__(f"texts[{index}]", f"has {count} {unit}, the limit is {limit}; shorten it or set truncate")
        self.index = index


class UnknownLanguageError(InvalidRequestError):
    """A language outside the model's own, or no language for a model with several."""

    def __init__(self, field: str, requested: str, offered: Sequence[str]) -> None:
        fault = f"{quoted(requested)} is not known" if requested else "is missing"
        super().__init__(field, f"{fault}; this model has {listed(offered)}")


class NoSuchPairError(InvalidRequestError):
    """No model is named, and none of several translates from the one language to the other."""

    def __init__(self, source: str, target: str | None, offered: Sequence[str]) -> None:
        """`target` is None for an embedding. `offered` lists the models with their languages."""
        models = f"this server has {listed(offered)}"
        if target is None:
            super().__init__("source_language", f"{_language(source)} is read by no model; {models}")
        else:
            pair = f"{_language(target)} from {_language(source)}"
            super().__init__("target_language", f"{pair} is not offered; {models}")


class UnknownModelError(ServiceError):
    """A model that is not loaded, or no model named where several qualify."""

    refusal = "bad_request"
    field = "model"

    def __init__(self, requested: str, offered: Sequence[str]) -> None:
        fault = f"{quoted(requested)} is not known" if requested else "is missing"
        self.offered = listed(offered)
        """Names of the models to choose from."""
        self.fault = f"{fault}; this server has {self.offered}"
        super().__init__(f"model {self.fault}")


class UnauthenticatedError(ServiceError):
    """A call without a known bearer token; the message does not repeat the token."""

    refusal = "unauthenticated"


class OverloadedError(ServiceError):
    """The queue cannot take the call now."""

    refusal: str | None = "queue_full"

    def __init__(self, reason: str, retry_after_seconds: float = RETRY_AFTER_SECONDS) -> None:
        super().__init__(f"{reason}; retry in {retry_after_seconds:.3g} s")
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
        # Rounded to two digits: `service.rpc.status` caches the status of equal messages.
        tokens, rate = (float(f"{number:.2g}") for number in (self.tokens_waiting, self.tokens_per_second))
        return (
            f"{tokens:.0f} tokens wait at {rate:g} tokens/s, "
            f"forecast {self.seconds:.2g} s, margin {self.margin_seconds:.1g} s"
        )


class DeadlineUnreachableError(OverloadedError):
    """The forecast said the answer would miss its deadline, on arrival or at the head of the queue."""

    refusal = "deadline"

    def __init__(self, forecast: DeadlineForecast) -> None:
        late = forecast.late_seconds
        # Rounded to tenths: `service.rpc.status` caches the status of equal messages.
        retry_after_seconds = max(MIN_RETRY_SECONDS, math.ceil(10 * late) / 10)
        reason = f"queue too long: would miss the deadline by about {late:.1f} s ({forecast})"
        super().__init__(reason, retry_after_seconds)
        self.forecast = forecast


class RateLimitedError(OverloadedError):
    """The calls of one token exceed its limits."""

    refusal = "rate"


class NoMemoryError(OverloadedError):
    """Memory ran out for a text, even alone; a later retry may succeed."""

    refusal = None

    def __init__(self, index: int) -> None:
        super().__init__(f"not enough memory for texts[{index}]")


class DeadlineExceededError(ServiceError):
    """The caller's deadline passed."""

    def __init__(self, *, work_begun: bool = True) -> None:
        """Without `work_begun` the engine never had the texts, and the call counts as refused."""
        super().__init__("the deadline passed before the answer was ready")
        self.refusal = None if work_begun else "deadline"


class CallTimeLimitError(ServiceError):
    """The call exceeded the server's own time limit, though its caller would have waited longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the call exceeded the server's time limit of {seconds:g} s; send fewer texts per call")


class NotServingError(ServiceError):
    """The server accepts no calls now."""

    refusal: str | None = "draining"


class ModelHungError(NotServingError):
    """The model hung while the call was in the engine."""

    refusal = None


class ModelFailedError(ServiceError):
    """The model failed on a text, or on its batch."""

    def __init__(self, index: int, fault: str) -> None:
        super().__init__(f"the model failed on texts[{index}]: {fault}")


def _language(requested: str) -> str:
    return quoted(requested) if requested else "(left out)"


def quoted(name: str) -> str:
    """`name` between quotes, cut to QUOTED_CHARACTERS and escaped to ASCII."""
    short = name if len(name) <= QUOTED_CHARACTERS else name[: QUOTED_CHARACTERS - 3] + "..."
    return ascii(short)


def listed(names: Sequence[str]) -> str:
    """The first LISTED_NAMES of `names`, in ASCII and separated by commas, and the number of the others."""
    if not names:
        return "none"
    shown = ", ".join(ascii(name)[1:-1] for name in names[:LISTED_NAMES])
    more = len(names) - LISTED_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
