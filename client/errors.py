"""Errors of the client, built from the gRPC status of a failed call.

ClientError                  holds the code, the server's message, the fields at fault and the retry delay
├── InvalidArgumentError     the request is invalid; `violations` names the fields
├── NotFoundError            no such model
├── UnauthenticatedError     the token is missing or unknown
├── OverloadedError          the server is full; retry after `retry_after_seconds`
├── TimedOutError            no answer within the time limit
├── UnavailableError         no server, or one that is starting or stopping
└── ServerError              anything else
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from dragoman.v1.names import DETAILS_KEY


@dataclass(frozen=True)
class Violation:
    """A field of the request that is at fault."""

    field: str
    """Name in the proto, with an index if the field repeats: `texts[3]`."""
    description: str


class ClientError(Exception):
    """A call failed; the message is the server's."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        violations: tuple[Violation, ...] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.violations = violations
        self.retry_after_seconds = retry_after_seconds
        """Delay that the server asks for before a retry; None if it asks for none."""


class InvalidArgumentError(ClientError):
    """The request is invalid; repeating it cannot succeed."""


class NotFoundError(ClientError):
    """The server has no such model."""


class UnauthenticatedError(ClientError):
    """The token is missing or unknown to the server."""


class OverloadedError(ClientError):
    """The server's queue is full or, without `retry_after_seconds`, the message was too large."""


class TimedOutError(ClientError):
    """No answer arrived within the time limit."""


class UnavailableError(ClientError):
    """There is no server, or it is starting or stopping, or it ended the call by stopping."""


class ServerError(ClientError):
    """The server failed."""


_KINDS: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOutError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    # Cancellation by the caller raises another error; this status means that the server stopped during the call.
    grpc.StatusCode.CANCELLED: UnavailableError,
}


def client_error(
    code: grpc.StatusCode, message: str | None, metadata: Iterable[tuple[str, str | bytes]] | None
) -> ClientError:
    """The error of a call that ended with `code`, `message` and trailing `metadata`."""
    violations: list[Violation] = []
    retry_after_seconds: float | None = None
    for detail in _details(metadata or ()):
        request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(request):
            violations += [Violation(each.field, each.description) for each in request.field_violations]
        elif detail.Unpack(retry):
            retry_after_seconds = retry.retry_delay.ToNanoseconds() / 1e9
    return _KINDS.get(code, ServerError)(code, message or code.name, tuple(violations), retry_after_seconds)


def _details(metadata: Iterable[tuple[str, str | bytes]]) -> list[Any]:
    status = status_pb2.Status()
    for key, value in metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            status.ParseFromString(value)
    return list(status.details)
