"""What a client raises for a call that failed, made from the status that came back.

ClientError                  has the code, the server's words, the fields at fault and when to come again
├── InvalidArgumentError     the request is at fault; `violations` says where
├── NotFoundError            no such model
├── UnauthenticatedError     the server wants a token, or knows another one
├── OverloadedError          come again after `retry_after_seconds`
├── TimedOutError            no answer in time
├── UnavailableError         no server there, or one that is starting or stopping
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
    """One field at fault."""

    field: str
    """As in the proto, with an index where it repeats: `texts[3]`."""
    description: str


class ClientError(Exception):
    """A call that failed; the message is the server's."""

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
        """When the server asks to come again; None where it does not."""


class InvalidArgumentError(ClientError):
    """The request can never be answered as it is."""


class NotFoundError(ClientError):
    """The server has no such model."""


class UnauthenticatedError(ClientError):
    """The server wants a token that it knows."""


class OverloadedError(ClientError):
    """The server's queue is full; or, without `retry_after_seconds`, the message was too large."""


class TimedOutError(ClientError):
    """No answer came in time."""


class UnavailableError(ClientError):
    """There is no server, or it is starting or stopping, or has ended the call because it stops."""


class ServerError(ClientError):
    """The server failed."""


_KINDS: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOutError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    # The caller's own cancelling raises something else; this is a server that went down with the call.
    grpc.StatusCode.CANCELLED: UnavailableError,
}


def client_error(
    code: grpc.StatusCode, message: str | None, metadata: Iterable[tuple[str, str | bytes]] | None
) -> ClientError:
    """The error for a call that ended with `code`, `message` and trailing `metadata`."""
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
