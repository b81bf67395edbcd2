"""Server interceptor: authenticates, counts, times and logs each call, and maps errors to gRPC statuses."""

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
from dragoman.service.rpc.message_parsing import (
    Parser,
    abort,
    clear_traceback,
    parse_message,
    receive,
    with_parsed_messages,
)
from dragoman.service.rpc.status import CallStatus, status_of
from dragoman.service.telemetry.call_log import Call, trace_context
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import MethodMetrics

log = logging.getLogger(__name__)

UNEXPECTED = CallStatus(grpc.StatusCode.INTERNAL, "internal error; see the server's log")

LATE_SECONDS = 0.05
"""A call cancelled with less time left than this ran into its deadline; gRPC reports both in the same way."""

OPEN_SERVICE = "/grpc.health.v1.Health/"
"""Open without a token, since health checks have none."""

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Context], Awaitable[Any]]
Listener = Callable[[Call], None]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the unary methods of `service`; other methods only need a token, and those of health not even that."""

    def __init__(
        self,
        service: str,
        methods: tuple[str, ...],
        metrics: Metrics,
        lifecycle: Lifecycle,
        authenticator: Authenticator,
        max_call_seconds: float,
        listeners: Sequence[Listener],
    ) -> None:
        """`max_call_seconds` includes the arrival of the call's message.

        Each call that ends is passed to `listeners`, in order; they must neither block nor raise.
        """
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._authenticator = authenticator
        self._max_call_seconds = max_call_seconds
        self._listeners = listeners
        self._methods: Mapping[str, tuple[str, MethodMetrics]] = {
            f"/{service}/{method}": (method, MethodMetrics(metrics, service, method)) for method in methods
        }
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        """Wrapped handlers, by method."""

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
                self._authenticator.authenticate(handler_call_details.invocation_metadata)
            except UnauthenticatedError as error:
                return self._refusing(error)
        return handler

    def _wrapped(self, path: str, handler: Any) -> "grpc.RpcMethodHandler[Any, Any]":
        own = self._methods.get(path)
        if own is None:
            return with_parsed_messages(handler, self._max_call_seconds)
        method = _Method(*own, handler.unary_unary, handler.request_deserializer)
        return grpc.stream_unary_rpc_method_handler(self._handler(method), None, handler.response_serializer)

    def _handler(self, method: "_Method") -> Handler:
        async def handle(messages: Any, context: Context) -> Any:
            metadata = context.invocation_metadata() or ()
            call = _RunningCall(method, trace_context(metadata), self._listeners)
            # Counted before the answer is sent, so that a caller with its answer finds the call in the metrics.
            try:
                async with asyncio.timeout(self._max_call_seconds) as limit:
                    response = await self._answer(method, self._authenticator.authenticate(metadata), context, call)
            except asyncio.CancelledError:
                call.end(_cancelled_code(context))
                raise
            except Exception as error:
                status = self._status(CallTimeLimitError(self._max_call_seconds) if limit.expired() else error)
                clear_traceback(error)
            else:
                call.end(grpc.StatusCode.OK, response)
                return response
            call.end(status.code)
            await abort(context, status)
            return None

        return handle

    async def _answer(
        self, method: "_Method", usage: CallerUsage | None, context: Context, call: "_RunningCall"
    ) -> Any:
        with nullcontext() if usage is None else usage.call():
            call.request = parse_message(method.parse, await receive(context))
            # Only now, so that a stopping server does not wait for messages that never come.
            with self._lifecycle:
                return await method.answer(call.request, context)

    def _refusing(self, error: UnauthenticatedError) -> "grpc.RpcMethodHandler[Request, Response]":
        """A handler for any method that answers with `error` before it reads a message."""
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


class _RunningCall:
    """A call of one of the service's own methods, from its beginning to its end."""

    def __init__(self, method: "_Method", trace: Mapping[str, str], listeners: Sequence[Listener]) -> None:
        self._method = method
        self._trace = trace
        self._listeners = listeners
        self._started = time.monotonic()
        self.request: Any = None
        method.metrics.started()

    def end(self, code: grpc.StatusCode, response: Any = None) -> None:
        """Count the call, and notify the listeners."""
        seconds = time.monotonic() - self._started
        self._method.metrics.handled(code, seconds)
        call = Call(self._method.name, code, seconds, self._trace, self.request, response)
        for listener in self._listeners:
            listener(call)


class _Method(NamedTuple):
    """One of the service's own methods."""

    name: str
    metrics: MethodMetrics
    answer: Handler
    parse: Parser


def _cancelled_code(context: Context) -> grpc.StatusCode:
    left: float | None = context.time_remaining()
    late = left is not None and left < LATE_SECONDS
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
