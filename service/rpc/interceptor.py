"""Around every call of our own methods: let in or not, counted, timed, told of, and its errors turned into a status."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import grpc

from dragoman.service.errors import (
    CallTimeLimitError,
    ModelFailedError,
    ServiceError,
    UnauthenticatedError,
)
from dragoman.service.lifecycle import Lifecycle
from dragoman.service.rpc.auth import Authenticator, CallerUsage
from dragoman.service.rpc.message_parsing import Parser, abort, clear_traceback, parsed, readable, received
from dragoman.service.rpc.status import CallStatus, status_of
from dragoman.service.telemetry.call_log import Call, trace_context
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import MethodMetrics

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
        guard: Authenticator,
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
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        """What was wrapped already, by method."""

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Request, Response] | None":
        """Part of grpc.aio.ServerInterceptor."""
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None:
            bare = await continuation(handler_call_details)
            if bare is None:
                return None
            handler = self._handlers[method] = self._wrapped(method, bare)
        if method not in self._methods and not method.startswith(OPEN_SERVICE):
            try:
                self._guard.account(handler_call_details.invocation_metadata)
            except UnauthenticatedError as error:
                return self._refusing(error)
        return handler

    def _wrapped(self, method: str, handler: Any) -> "grpc.RpcMethodHandler[Any, Any]":
        own = self._methods.get(method)
        if own is None:
            return readable(handler, self._most_seconds)
        asked = _Asked(*own, handler.unary_unary, handler.request_deserializer)
        return grpc.stream_unary_rpc_method_handler(self._around(asked), None, handler.response_serializer)

    def _around(self, asked: "_Asked") -> Handler:
        async def around(messages: Any, context: Context) -> Any:
            metadata = context.invocation_metadata() or ()
            call = _Running(asked, trace_context(metadata), self._told)
            # Counted before the caller is told, so that whoever has an answer finds it counted.
            try:
                async with asyncio.timeout(self._most_seconds) as limit:
                    response = await self._admitted(asked, self._guard.account(metadata), context, call)
            except asyncio.CancelledError:
                call.ended(_cancelled_code(context))
                raise
            except Exception as error:
                status = self._status(CallTimeLimitError(self._most_seconds) if limit.expired() else error)
                clear_traceback(error)
            else:
                call.ended(grpc.StatusCode.OK, response)
                return response
            call.ended(status.code)
            await abort(context, status)
            return None

        return around

    async def _admitted(self, asked: "_Asked", account: CallerUsage | None, context: Context, call: "_Running") -> Any:
        with nullcontext() if account is None else account.call():
            call.request = parsed(asked.parse, await received(context))
            # Only now, so that a server that stops does not wait for messages that never come.
            with self._lifecycle:
                return await asked.answer(call.request, context)

    def _refusing(self, error: UnauthenticatedError) -> "grpc.RpcMethodHandler[Request, Response]":
        """A handler that answers with `error`, whatever the method, before any message is read."""
        status = self._status(error)

        async def refuse(messages: Any, context: Context) -> None:
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

    def __init__(self, asked: "_Asked", trace: Mapping[str, str], told: Sequence[Callable[[Call], None]]) -> None:
        self._asked = asked
        self._trace = trace
        self._told = told
        self._started = time.monotonic()
        self.request: Any = None
        asked.metrics.started()

    def ended(self, code: grpc.StatusCode, response: Any = None) -> None:
        """Count it, and tell of it."""
        seconds = time.monotonic() - self._started
        self._asked.metrics.handled(code, seconds)
        call = Call(self._asked.method, code, seconds, self._trace, self.request, response)
        for tell in self._told:
            tell(call)


class _Asked(NamedTuple):
    """A method of our own."""

    method: str
    metrics: MethodMetrics
    answer: Handler
    parse: Parser


def _cancelled_code(context: Context) -> grpc.StatusCode:
    left: float | None = context.time_remaining()
    late = left is not None and left < LATE_SECONDS
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
