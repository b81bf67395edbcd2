"""Around every call of our own methods: let in or not, counted, timed, told of, and its errors turned into a status."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import grpc

from dragoman.service.call_log import Call, trace_context
from dragoman.service.errors import (
    ModelFailedError,
    OverlongError,
    ServiceError,
    UnauthenticatedError,
)
from dragoman.service.guard import Account, Guard
from dragoman.service.lifecycle import Lifecycle
from dragoman.service.metrics import MethodMetrics, Metrics
from dragoman.service.readable import Parser, abort, parsed, readable, received
from dragoman.service.status import CallStatus, status_of

log = logging.getLogger(__name__)

UNEXPECTED = CallStatus(grpc.StatusCode.INTERNAL, "the server failed; its log says why")

LATE_SECONDS = 0.05
"""A call that is cancelled with less than this left ran into its deadline, which gRPC tells in no other way."""

OPEN_SERVICE = "/grpc.health.v1.Health/"
"""Whoever looks after the process has no token."""

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Context], Awaitable[Any]]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the unary methods of `service`; of everything else it asks for a token, unless it is health."""

    def __init__(
        self,
        service: str,
        methods: tuple[str, ...],
        metrics: Metrics,
        lifecycle: Lifecycle,
        guard: Guard,
        most_seconds: float,
        told: Sequence[Callable[[Call], None]],
    ) -> None:
        """A call may take `most_seconds`, its message's coming included.

        `told` of each that has ended, in that order, are these functions; they neither wait nor raise.
        """
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._guard = guard
        self._most_seconds = most_seconds
        self._told = told
        self._methods: Mapping[str, tuple[str, MethodMetrics]] = {
            f"/{service}/{method}": (method, MethodMetrics(metrics, service, method)) for method in methods
        }

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Request, Response] | None":
        """Part of grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler_call_details.method.startswith(OPEN_SERVICE):
            return readable(handler, self._most_seconds)
        metadata = handler_call_details.invocation_metadata
        own = self._methods.get(handler_call_details.method)
        begin = None if own is None else partial(_Running, *own, trace_context(metadata), self._told)
        try:
            account = self._guard.account(metadata)
        except UnauthenticatedError as error:
            return self._refusing(error, begin)
        if begin is None:
            return readable(handler, self._most_seconds)
        serialize = handler.response_serializer
        asked = _Asked(handler.unary_unary, handler.request_deserializer, begin, account)  # type: ignore[arg-type]
        return grpc.stream_unary_rpc_method_handler(self._around(asked), None, serialize)

    def _around(self, asked: "_Asked") -> Handler:
        async def around(messages: Any, context: Context) -> Any:
            call = asked.begin()
            # Counted before the caller is told, so that whoever has an answer finds it counted.
            try:
                async with asyncio.timeout(self._most_seconds) as limit:
                    response = await self._admitted(asked, context, call)
            except asyncio.CancelledError:
                call.ended(_cancelled_code(context))
                raise
            except Exception as error:
                status = self._status(OverlongError(self._most_seconds) if limit.expired() else error)
                # The frames that it came through hold what holds it, as in `readable.abort`.
                error.__traceback__ = None
            else:
                call.ended(grpc.StatusCode.OK, response)
                return response
            call.ended(status.code)
            await abort(context, status)
            return None

        return around

    async def _admitted(self, asked: "_Asked", context: Context, call: "_Running") -> Any:
        with nullcontext() if asked.account is None else asked.account.call():
            call.request = parsed(asked.parse, await received(context))
            # Only now, so that a server that stops does not wait for messages that never come.
            self._lifecycle.enter()
            try:
                return await asked.answer(call.request, context)
            finally:
                self._lifecycle.leave()

    def _refusing(
        self, error: UnauthenticatedError, begin: "Begin | None"
    ) -> "grpc.RpcMethodHandler[Request, Response]":
        """A handler that answers with `error`, whatever the method, before any message is read."""

        async def refuse(messages: Any, context: Context) -> None:
            status = self._status(error)
            if begin is not None:
                begin().ended(status.code)
            await abort(context, status)

        handler: grpc.RpcMethodHandler[Request, Response] = grpc.stream_stream_rpc_method_handler(refuse)
        return handler

    def _status(self, error: Exception) -> CallStatus:
        if not isinstance(error, ServiceError):
            log.error("a call failed", exc_info=error)
            return UNEXPECTED
        if isinstance(error, ModelFailedError):
            log.error("%s", error, exc_info=error.__cause__)
        if error.refusal is not None:
            self._metrics.refuse(error.refusal)
        return status_of(error)


class _Running:
    """A call of one of our own methods, until it has ended."""

    def __init__(
        self,
        method: str,
        metrics: MethodMetrics,
        trace: Mapping[str, str],
        told: Sequence[Callable[[Call], None]],
    ) -> None:
        self._method = method
        self._metrics = metrics
        self._trace = trace
        self._told = told
        self._started = time.monotonic()
        self.request: Any = None
        metrics.started()

    def ended(self, code: grpc.StatusCode, response: Any = None) -> None:
        """Count it, and tell of it."""
        seconds = time.monotonic() - self._started
        self._metrics.handled(code, seconds)
        call = Call(self._method, code, seconds, self._trace, self.request, response)
        for tell in self._told:
            tell(call)


Begin = Callable[[], _Running]


class _Asked(NamedTuple):
    """What is known of a call before its message is read."""

    answer: Handler
    parse: Parser
    begin: Begin
    account: Account | None


def _cancelled_code(context: Context) -> grpc.StatusCode:
    left: float | None = context.time_remaining()
    late = left is not None and left < LATE_SECONDS
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
