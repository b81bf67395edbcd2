"""Client for asyncio: each call of `dragoman.client.Client` is a coroutine here."""

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from dragoman.client.base import BaseClient
from dragoman.client.channel import ChannelOptions
from dragoman.client.errors import client_error
from dragoman.client.retries import await_with_retries
from dragoman.client.values import EmbedResult, ServerInfo, TranslateResult
from dragoman.client.wire import embed_result, server_info, translate_result
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")

Answer = Coroutine[Any, Any, T]


class AsyncClient(BaseClient[Answer[TranslateResult], Answer[EmbedResult], Answer[ServerInfo]]):
    """Client whose calls are awaited; cancelling one cancels the call. Belongs to the event loop that created it."""

    async def close(self) -> None:
        """Close the channel and cancel the running calls."""
        self._closed = True
        await self._channel.close()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the channel."""
        await self.close()

    def _open(self, address: str, options: ChannelOptions, credentials: grpc.ChannelCredentials | None) -> None:
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._stub = rpc.TranslationServiceStub(self._channel)

    async def _translate(self, request: pb.TranslateRequest, timeout_seconds: float | None) -> TranslateResult:
        return translate_result(await self._call(self._stub.Translate, request, timeout_seconds))

    async def _embed(self, request: pb.EmbedRequest, timeout_seconds: float | None) -> EmbedResult:
        return embed_result(await self._call(self._stub.Embed, request, timeout_seconds))

    async def _info(self, request: pb.GetInfoRequest, timeout_seconds: float | None) -> ServerInfo:
        return server_info(await self._call(self._stub.GetInfo, request, timeout_seconds))

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        timeout_seconds: float | None,
    ) -> Response:
        attempts, metadata = self._attempts(timeout_seconds), self._call_metadata()

        async def attempt() -> Response:
            try:
                return await method(request, timeout=attempts.seconds_left, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                raise client_error(error.code(), error.details(), error.trailing_metadata()) from error

        response = await await_with_retries(attempt, self._delay_after(attempts))
        self._budget.earn()
        return response
