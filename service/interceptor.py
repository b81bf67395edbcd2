"""Around every call of our own methods: counted, timed, let in or not, and its errors turned into a status."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from dragoman.service.errors import InvalidRequestError, ModelFailedError, ServiceError
from dragoman.service.lifecycle import Lifecycle
from dragoman.service.metrics import MethodMetrics, Metrics
from dragoman.service.status import CallStatus, status_of

log = logging.getLogger(__name__)

UNEXPECTED = CallStatus(grpc.StatusCode.INTERNAL, "the server failed; its log says why")

LATE_SECONDS = 0.05
"""A call that is cancelled with less than this left ran into its deadline, which gRPC tells in no other way."""

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Context], Awaitable[Any]]
Parser = Callable[[bytes], Any]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the unary methods of `service`; lets everything else pass untouched, and uncounted."""

    def __init__(self, service: str, methods: tuple[str, ...], metrics: Metrics, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._methods: Mapping[str, MethodMetrics] = {
            f"/{service}/{method}": MethodMetrics(metrics, service, method) for method in methods
        }

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Request, Response] | None":
        """Part of grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        metrics = self._methods.get(handler_call_details.method)
        if metrics is None or handler is None:
            return handler
        around = self._around(handler.unary_unary, handler.request_deserializer, metrics)  # type: ignore[arg-type]
        return grpc.unary_unary_rpc_method_handler(around, None, handler.response_serializer)

    def _around(self, answer: Handler, parse: Parser, metrics: MethodMetrics) -> Handler:
        async def call(message: bytes, context: Context) -> Any:
            started = time.monotonic()
            metrics.started()
            # Counted before the caller is told, so that whoever has an answer finds it counted.
            try:
                response = await self._admitted(answer, parse, message, context)
            except asyncio.CancelledError:
                metrics.handled(_cancelled_code(context), time.monotonic() - started)
                raise
            except Exception as error:
                status = self._status(error)
                metrics.handled(status.code, time.monotonic() - started)
                await _abort(context, status)
            metrics.handled(grpc.StatusCode.OK, time.monotonic() - started)
            return response

        return call

    async def _admitted(self, answer: Handler, parse: Parser, message: bytes, context: Context) -> Any:
        self._lifecycle.enter()
        try:
            return await answer(_parsed(parse, message), context)
        finally:
            self._lifecycle.leave()

    def _status(self, error: Exception) -> CallStatus:
        if not isinstance(error, ServiceError):
            log.error("a call failed", exc_info=error)
            return UNEXPECTED
        if isinstance(error, ModelFailedError):
            log.error("%s", error, exc_info=error.__cause__)
        if error.refusal is not None:
            self._metrics.refuse(error.refusal)
        return status_of(error)


def _parsed(parse: Parser, message: bytes) -> Any:
    # Here and not by gRPC, which would call it UNKNOWN, uncounted, with a traceback in the log.
    try:
        return parse(message)
    except DecodeError as error:
        raise InvalidRequestError(
            "request", "cannot be read: it is damaged, or holds text that is not UTF-8"
        ) from error


async def _abort(context: Context, status: CallStatus) -> NoReturn:
    await context.abort(status.code, status.message, status.metadata)


def _cancelled_code(context: Context) -> grpc.StatusCode:
    left: float | None = context.time_remaining()
    late = left is not None and left < LATE_SECONDS
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
