"""Reads and parses request messages of every service, and refuses calls whose message is malformed or never comes.

gRPC itself answers a malformed message with UNKNOWN, uncounted and with a traceback in the log, and never answers a
call that sends no message at all. Every method is therefore registered with a stream of raw messages.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from dragoman.service.errors import CallTimeLimitError, InvalidRequestError
from dragoman.service.rpc.status import CallStatus, status_of

Context = grpc.aio.ServicerContext[Any, Any]
Parser = Callable[[bytes], Any]

CANCELLING_SECONDS = 0.5
"""How soon after the end of a call's messages gRPC reports its cancellation."""

NO_SUCH_METHOD = CallStatus(grpc.StatusCode.UNIMPLEMENTED, "this server does not implement the method")


async def receive(context: Context) -> bytes:
    """The single message of a call. Raises InvalidRequestError if it has none."""
    message = await context.read()
    if isinstance(message, bytes):
        return message
    # EOF; a call that is cancelled at once also begins with it.
    await asyncio.sleep(CANCELLING_SECONDS)
    raise InvalidRequestError("request", "is missing")


def parse_message(parse: Parser, message: bytes) -> Any:
    """`message`, parsed. Raises InvalidRequestError if it is malformed."""
    try:
        return parse(message)
    except DecodeError as error:
        fault = "cannot be parsed: it is malformed, or holds text that is not UTF-8"
        raise InvalidRequestError("request", fault) from error


async def abort(context: Context, status: CallStatus) -> None:
    """End a call with `status`, or as cancelled if the caller has gone; its handler must then return.

    Must not be called while an exception is handled.
    """
    try:
        await context.abort(status.code, status.message, status.metadata)
    except grpc.aio.AbortError as error:
        clear_traceback(error)
    except grpc.aio.InternalError:
        # The caller has gone; gRPC would otherwise log a page about it.
        raise asyncio.CancelledError from None


def clear_traceback(error: Exception) -> None:
    """Drop the frames of an error that ended a call, which would otherwise form reference cycles.

    The frames hold the call, whose objects may hold the error: gRPC keeps the error of an aborted call and raises it
    again once the handler has returned, and a future keeps its own. At overload, Python's cycle collector took a
    seventh of the event loop's time for them.
    """
    error.__traceback__ = None


def with_parsed_messages(handler: Any, max_call_seconds: float) -> "grpc.RpcMethodHandler[Any, Any]":
    """`handler` of a service such as health, with its messages parsed here.

    A method with a single request message allows `max_call_seconds` for it to arrive.
    """
    parse, serialize = handler.request_deserializer, handler.response_serializer
    if handler.unary_unary:
        unary = _parsing_one(handler.unary_unary, parse, max_call_seconds)
        return grpc.stream_unary_rpc_method_handler(unary, None, serialize)
    if handler.unary_stream:
        streaming = _parsing_one(handler.unary_stream, parse, max_call_seconds)
        return grpc.stream_stream_rpc_method_handler(streaming, None, serialize)
    return grpc.stream_stream_rpc_method_handler(_parsing_each(handler.stream_stream, parse), None, serialize)


def _parsing_one(
    answer: Callable[[Any, Context], Awaitable[Any]], parse: Parser, max_call_seconds: float
) -> Callable[[Any, Context], Awaitable[Any]]:
    """`answer`, a coroutine that takes one message, and returns its answer or writes several."""

    async def handle(messages: Any, context: Context) -> Any:
        try:
            async with asyncio.timeout(max_call_seconds):
                request = parse_message(parse, await receive(context))
        except InvalidRequestError as error:
            status = status_of(error)
        except TimeoutError:
            status = status_of(CallTimeLimitError(max_call_seconds))
        else:
            try:
                return await answer(request, context)
            except NotImplementedError:
                # Generated code raises it for a method that the servicer lacks; gRPC would log a traceback.
                status = NO_SUCH_METHOD
            except grpc.aio.AbortError as error:
                return clear_traceback(error)
        await abort(context, status)
        return None

    return handle


def _parsing_each(
    answer: Callable[[AsyncIterator[Any], Context], AsyncIterator[Any]], parse: Parser
) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[Any]]:
    """`answer`, a generator that takes a stream of messages."""

    async def handle(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        requests = (parse_message(parse, message) async for message in messages)
        try:
            async for response in answer(requests, context):
                yield response
            return
        except InvalidRequestError as error:
            status = status_of(error)
        await abort(context, status)

    return handle
