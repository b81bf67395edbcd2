"""Client without asyncio.

    with Client("127.0.0.1:50051") as client:
        client.translate(["The cat sat on the mat."], to="fr").texts

It opens one channel, which reconnects by itself, retries failures that may pass (`client.retries`), and raises the
errors of `client.errors`.
"""

from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from dragoman.client.base import BaseClient
from dragoman.client.channel import ChannelOptions
from dragoman.client.errors import client_error
from dragoman.client.retries import call_with_retries
from dragoman.client.values import EmbedResult, ServerInfo, TranslateResult
from dragoman.client.wire import embed_result, server_info, translate_result
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc

Request = TypeVar("Request")
Response = TypeVar("Response")


class Client(BaseClient[TranslateResult, EmbedResult, ServerInfo]):
    """Client whose calls block until the answer arrives. Thread-safe."""

    def close(self) -> None:
        """Close the channel."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the channel."""
        self.close()

    def _open(self, address: str, options: ChannelOptions, credentials: grpc.ChannelCredentials | None) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=options)
        self._stub = rpc.TranslationServiceStub(self._channel)

    def _translate(self, request: pb.TranslateRequest, timeout_seconds: float | None) -> TranslateResult:
        return translate_result(self._call(self._stub.Translate, request, timeout_seconds))

    def _embed(self, request: pb.EmbedRequest, timeout_seconds: float | None) -> EmbedResult:
        return embed_result(self._call(self._stub.Embed, request, timeout_seconds))

    def _info(self, request: pb.GetInfoRequest, timeout_seconds: float | None) -> ServerInfo:
        return server_info(self._call(self._stub.GetInfo, request, timeout_seconds))

    def _call(
        self, method: "grpc.UnaryUnaryMultiCallable[Request, Response]", request: Request, timeout_seconds: float | None
    ) -> Response:
        attempts, metadata = self._attempts(timeout_seconds), self._call_metadata()

        def attempt() -> Response:
            try:
                return method(request, timeout=attempts.seconds_left, metadata=metadata)
            except grpc.RpcError as error:
                trailing: Any = error.trailing_metadata()
                raise client_error(error.code(), error.details(), trailing) from error

        response = call_with_retries(attempt, self._delay_after(attempts))
        self._budget.earn()
        return response
