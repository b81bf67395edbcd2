"""Maps each `service.errors` class to its gRPC status: code, google.rpc details and trailing metadata."""

from dataclasses import dataclass
from functools import lru_cache

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman.service.errors import (
    CallTimeLimitError,
    DeadlineExceededError,
    InvalidRequestError,
    ModelFailedError,
    NotServingError,
    OverloadedError,
    ServiceError,
    UnauthenticatedError,
    UnknownModelError,
)
from dragoman.v1.names import DETAILS_KEY, PUSHBACK_KEY

CODES: dict[type[ServiceError], grpc.StatusCode] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownModelError: grpc.StatusCode.NOT_FOUND,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    CallTimeLimitError: grpc.StatusCode.DEADLINE_EXCEEDED,
    NotServingError: grpc.StatusCode.UNAVAILABLE,
    ModelFailedError: grpc.StatusCode.INTERNAL,
}
"""A class not listed here has the code of its base class."""


@dataclass(frozen=True)
class CallStatus:
    """Status that ends a failed call."""

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, str | bytes], ...] = ()


def status_of(error: ServiceError) -> CallStatus:
    """The status of `error`, with its details and metadata."""
    message = str(error)
    if isinstance(error, OverloadedError):
        return _overloaded(message, error.retry_after_seconds)
    code = next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
    detail = _detail(error)
    if detail is None:
        return CallStatus(code, message)
    return CallStatus(code, message, ((DETAILS_KEY, _status(code, message, detail)),))


@lru_cache
def _overloaded(message: str, retry_after_seconds: float) -> CallStatus:
    """Cached: at overload the same few messages recur, and must cost little."""
    code = CODES[OverloadedError]
    delay = Duration()
    delay.FromNanoseconds(round(retry_after_seconds * 1e9))
    status = _status(code, message, error_details_pb2.RetryInfo(retry_delay=delay))
    return CallStatus(code, message, ((PUSHBACK_KEY, str(round(retry_after_seconds * 1000))), (DETAILS_KEY, status)))


def _status(code: grpc.StatusCode, message: str, detail: Message) -> bytes:
    """A serialized google.rpc.Status."""
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(detail)
    serialized: bytes = status.SerializeToString()
    return serialized


def _detail(error: ServiceError) -> Message | None:
    if isinstance(error, InvalidRequestError | UnknownModelError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.fault)
        request: Message = error_details_pb2.BadRequest(field_violations=[violation])
        return request
    return None
