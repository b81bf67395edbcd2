"""Messages that cannot be read, or do not come, are the caller's fault, whatever service they ask.

gRPC itself would call the first UNKNOWN, uncounted, with a traceback in the log for each; and a call that ends its side
without a message it would never answer at all. So every method is one of many messages for it.
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
"""How soon after the end of its messages gRPC tells that a call was cancelled."""

NO_SUCH_METHOD = CallStatus(grpc.StatusCode.UNIMPLEMENTED, "this server does not have the method")


async def received(context: Context) -> bytes:
    """The one message of a call. Raises InvalidRequestError where it has none."""
    message = await context.read()
    if isinstance(message, bytes):
        return message
    # It is EOF. So does a call begin that is cancelled at once.
    await asyncio.sleep(CANCELLING_SECONDS)
    raise InvalidRequestError("request", "is missing")


def parsed(parse: Parser, message: bytes) -> Any:
    """What `message` says. Raises InvalidRequestError."""
    try:
        return parse(message)
    except DecodeError as error:
        raise InvalidRequestError(
            "request", "cannot be read: it is damaged, or holds text that is not UTF-8"
        ) from error


async def abort(context: Context, status: CallStatus) -> None:
    """End a call with `status`, or as cancelled where the caller has gone; its handler must then return.

    Not to be called while an exception is handled.
    """
    try:
        await context.abort(status.code, status.message, status.metadata)
    except grpc.aio.AbortError as error:
        clear_traceback(error)
    except grpc.aio.InternalError:
        # The caller went away meanwhile, which gRPC would otherwise tell in a page of the log.
        raise asyncio.CancelledError from None


def clear_traceback(error: Exception) -> None:
    """Take from an error that has ended a call the frames that it came through.

    They hold the call, and what they hold may hold the error: gRPC keeps the one that it raises where a call is
    aborted, and raises it anew when the handler has returned; a future keeps its own. Each would be a cycle, and at
    overload Python spent a seventh of the event loop's time on looking for them.
    """
    error.__traceback__ = None


def readable(handler: Any, most_seconds: float) -> "grpc.RpcMethodHandler[Any, Any]":
    """The handler of a service that is not ours, such as health, with its messages read here.

    A single message must come within `most_seconds`.
    """
    parse, serialize = handler.request_deserializer, handler.response_serializer
    if handler.unary_unary:
        return grpc.stream_unary_rpc_method_handler(_one(handler.unary_unary, parse, most_seconds), None, serialize)
    if handler.unary_stream:
        return grpc.stream_stream_rpc_method_handler(_one(handler.unary_stream, parse, most_seconds), None, serialize)
    return grpc.stream_stream_rpc_method_handler(_many(handler.stream_stream, parse), None, serialize)


def _one(
    answer: Callable[[Any, Context], Awaitable[Any]], parse: Parser, most_seconds: float
) -> Callable[[Any, Context], Awaitable[Any]]:
    """`answer`, a coroutine that gets one message; it returns its answer, or writes several."""

    async def reading(messages: Any, context: Context) -> Any:
        try:
            async with asyncio.timeout(most_seconds):
                request = parsed(parse, await received(context))
        except InvalidRequestError as error:
            status = status_of(error)
        except TimeoutError:
            status = status_of(CallTimeLimitError(most_seconds))
        else:
            try:
                return await answer(request, context)
            except NotImplementedError:
                # As generated code has it for methods that a servicer leaves out; it would be a traceback in the log.
                status = NO_SUCH_METHOD
            except grpc.aio.AbortError as error:
                return clear_traceback(error)
        await abort(context, status)
        return None

    return reading


def _many(
    answer: Callable[[AsyncIterator[Any], Context], AsyncIterator[Any]], parse: Parser
) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[Any]]:
    """`answer`, a generator that gets several messages."""

    async def reading(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        requests = (parsed(parse, message) async for message in messages)
        try:
            async for response in answer(requests, context):
                yield response
            return
        except InvalidRequestError as error:
            status = status_of(error)
        await abort(context, status)

    return reading
