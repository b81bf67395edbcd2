"""Around every call of our own methods: let in or not, counted, timed, told of, and its errors turned into a status."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from dragoman.service.call_log import Call, trace_context
from dragoman.service.errors import InvalidRequestError, ModelFailedError, ServiceError, UnauthenticatedError
from dragoman.service.guard import Account, Guard
from dragoman.service.lifecycle import Lifecycle
from dragoman.service.metrics import MethodMetrics, Metrics
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
Parser = Callable[[bytes], Any]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the unary methods of `service`; of everything else it asks for a token, unless it is health."""

    def __init__(
        self,
        service: str,
        methods: tuple[str, ...],
        metrics: Metrics,
        lifecycle: Lifecycle,
        guard: Guard,
        told: Sequence[Callable[[Call], None]],
    ) -> None:
        """`told` of each call that has ended, in that order, are these functions; they neither wait nor raise."""
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._guard = guard
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
        if handler is None or handler_call_details.method.startswith(OPEN_SERVICE):
            return handler
        metadata = handler_call_details.invocation_metadata
        own = self._methods.get(handler_call_details.method)
        begin = None if own is None else partial(_Running, *own, trace_context(metadata), self._told)
        try:
            account = self._guard.account(metadata)
        except UnauthenticatedError as error:
            return self._refusing(error, begin)
        if begin is None:
            return handler
        around = self._around(handler.unary_unary, handler.request_deserializer, begin, account)  # type: ignore[arg-type]
        return grpc.unary_unary_rpc_method_handler(around, None, handler.response_serializer)

    def _around(self, answer: Handler, parse: Parser, begin: "Begin", account: Account | None) -> Handler:
        async def around(message: bytes, context: Context) -> Any:
            call = begin()
            # Counted before the caller is told, so that whoever has an answer finds it counted.
            try:
                response = await self._admitted(answer, parse, message, context, call, account)
            except asyncio.CancelledError:
                call.ended(_cancelled_code(context))
                raise
            except Exception as error:
                status = self._status(error)
                call.ended(status.code)
                await _abort(context, status)
            call.ended(grpc.StatusCode.OK, response)
            return response

        return around

    async def _admitted(
        self,
        answer: Handler,
        parse: Parser,
        message: bytes,
        context: Context,
        call: "_Running",
        account: Account | None,
    ) -> Any:
        self._lifecycle.enter()
        try:
            with nullcontext() if account is None else account.call():
                call.request = _parsed(parse, message)
                return await answer(call.request, context)
        finally:
            self._lifecycle.leave()

    def _refusing(
        self, error: UnauthenticatedError, begin: "Begin | None"
    ) -> "grpc.RpcMethodHandler[Request, Response]":
        """A handler that answers with `error`, whatever the method, before any message is read."""

        async def refuse(messages: Any, context: Context) -> None:
            call = None if begin is None else begin()
            status = self._status(error)
            if call is not None:
                call.ended(status.code)
            await _abort(context, status)

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


def _parsed(parse: Parser, message: bytes) -> Any:
    # Here and not by gRPC, which would call it UNKNOWN, uncounted, with a traceback in the log.
    try:
        return parse(message)
    except DecodeError as error:
        raise InvalidRequestError(
            "request", "cannot be read: it is damaged, or holds text that is not UTF-8"
        ) from error


async def _abort(context: Context, status: CallStatus) -> NoReturn:
    try:
        await context.abort(status.code, status.message, status.metadata)
    except grpc.aio.InternalError:
        # The caller went away meanwhile, which gRPC would otherwise tell in a page of the log.
        raise asyncio.CancelledError from None


def _cancelled_code(context: Context) -> grpc.StatusCode:
    left: float | None = context.time_remaining()
    late = left is not None and left < LATE_SECONDS
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
