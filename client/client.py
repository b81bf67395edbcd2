"""Clients for a Dragoman server, with and without asyncio.

    with Client("127.0.0.1:50051") as client:
        client.translate(["The cat sat on the mat."], to="fr").texts

Both open one channel, which reconnects by itself, make calls again that may then succeed (`client.retries`), and raise
the errors of `client.errors`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from dragoman.client.errors import (
    client_error,
)
from dragoman.client.hosts import is_loopback
from dragoman.client.retries import Attempts, Retries, RetryBudget
from dragoman.client.tls import Tls
from dragoman.client.values import (
    EmbedResult,
    Pooling,
    ServerInfo,
    TranslateResult,
)
from dragoman.client.wire import POOLINGS, embed_result, server_info, translate_result
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from dragoman.v1.names import AUTHORIZATION

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TIMEOUT_SECONDS = 60.0

DEFAULT_RETRIES = Retries()

IN_TURN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
"""Calls go to all servers of an address."""

MAX_OUTPUT_TOKENS = 2**31 - 1
"""The largest limit that a request can hold; no model has one near it."""

TraceContext = Callable[[], Mapping[str, str]]
"""Gives metadata such as traceparent (W3C Trace Context), in lower case; nothing outside a trace."""

Request = TypeVar("Request")
Response = TypeVar("Response")


class Client:
    """Calls that wait for their answers. May be shared by threads."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        tls: Tls | None = None,
        token: str = "",
        retries: Retries | None = DEFAULT_RETRIES,
        trace: TraceContext | None = None,
    ) -> None:
        """`address` is HOST:PORT; a call that takes longer than `timeout_seconds` raises TimedOutError.

        With `tls` the connection is encrypted, and the server must prove who it is. `token` goes with every call;
        without `tls` whoever is on the way can read it. A call that no server took, or a full one, or one that went
        down with it, is made again as `retries` says; None makes each call once. An `address` of several servers, such
        as `ipv4:10.0.0.1:50051,10.0.0.2:50051` or a name that stands for them, is called in turn.

        `trace` is asked before each call for the trace that it is part of: what OpenTelemetry's `inject` writes.

        Raises ValueError if `token` cannot be one, and OSError if a file of `tls` cannot be read.
        """
        self._metadata = _metadata(token)
        self._trace: TraceContext = trace or dict
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=_channel_options(address))
        else:
            options = _channel_options(address, tls)
            self._channel = grpc.secure_channel(address, tls.credentials(), options=options)
        self._retries = retries
        self._budget = RetryBudget(retries.overload_budget if retries else 0)
        self._closed = False
        self._stub = rpc.TranslationServiceStub(self._channel)
        self._timeout_seconds = timeout_seconds

    def translate(
        self,
        texts: Sequence[str],
        *,
        to: str = "",
        source: str = "",
        model: str = "",
        max_output_tokens: int | None = None,
        truncate: bool = False,
        scores: bool = True,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> TranslateResult:
        """Translate each text by itself, in their order. Raises ClientError.

        `to` and `source` are BCP-47 codes, and may be left out where the model has but one language;
        `max_output_tokens` counts the end token; `truncate` cuts a text that is too long where otherwise the call
        fails; results come without scores, and a little sooner, if `scores` is false.
        """
        request = _translate_request(texts, to, source, model, max_output_tokens, truncate, scores, request_id)
        return translate_result(self._call(self._stub.Translate, request, timeout_seconds))

    def embed(
        self,
        texts: Sequence[str],
        *,
        source: str = "",
        model: str = "",
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> EmbedResult:
        """Turn each text into a vector, or without pooling each of its tokens. Raises ClientError.

        `normalize` scales each vector to length 1; None leaves it, as `pooling`, to the model. For the rest see
        `translate`.
        """
        request = _embed_request(texts, source, model, pooling, normalize, truncate, request_id)
        return embed_result(self._call(self._stub.Embed, request, timeout_seconds))

    def info(self, *, timeout_seconds: float | None = None) -> ServerInfo:
        """What the server has loaded. Raises ClientError."""
        return server_info(self._call(self._stub.GetInfo, pb.GetInfoRequest(), timeout_seconds))

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

    def _call(
        self, method: "grpc.UnaryUnaryMultiCallable[Request, Response]", request: Request, timeout_seconds: float | None
    ) -> Response:
        attempts = Attempts(self._retries, self._budget, _seconds(timeout_seconds, self._timeout_seconds))
        metadata = (*self._metadata, *self._trace().items())
        while True:
            try:
                response = method(request, timeout=attempts.seconds_left, metadata=metadata)
            except grpc.RpcError as error:
                trailing: Any = error.trailing_metadata()
                failure = client_error(error.code(), error.details(), trailing)
                wait = None if self._closed else attempts.wait_after(failure)
                if wait is None:
                    raise failure from error
            else:
                self._budget.earn()
                return response
            time.sleep(wait)


class AsyncClient:
    """Calls that are awaited. Belongs to the event loop that it was made on."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        tls: Tls | None = None,
        token: str = "",
        retries: Retries | None = DEFAULT_RETRIES,
        trace: TraceContext | None = None,
    ) -> None:
        """See Client."""
        self._metadata = _metadata(token)
        self._trace: TraceContext = trace or dict
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=_channel_options(address))
        else:
            options = _channel_options(address, tls)
            self._channel = grpc.aio.secure_channel(address, tls.credentials(), options=options)
        self._retries = retries
        self._budget = RetryBudget(retries.overload_budget if retries else 0)
        self._closed = False
        self._stub = rpc.TranslationServiceStub(self._channel)
        self._timeout_seconds = timeout_seconds

    async def translate(
        self,
        texts: Sequence[str],
        *,
        to: str = "",
        source: str = "",
        model: str = "",
        max_output_tokens: int | None = None,
        truncate: bool = False,
        scores: bool = True,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> TranslateResult:
        """See `Client.translate`. Cancelling it cancels the call."""
        request = _translate_request(texts, to, source, model, max_output_tokens, truncate, scores, request_id)
        return translate_result(await self._call(self._stub.Translate, request, timeout_seconds))

    async def embed(
        self,
        texts: Sequence[str],
        *,
        source: str = "",
        model: str = "",
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> EmbedResult:
        """See `Client.embed`. Cancelling it cancels the call."""
        request = _embed_request(texts, source, model, pooling, normalize, truncate, request_id)
        return embed_result(await self._call(self._stub.Embed, request, timeout_seconds))

    async def info(self, *, timeout_seconds: float | None = None) -> ServerInfo:
        """See `Client.info`."""
        return server_info(await self._call(self._stub.GetInfo, pb.GetInfoRequest(), timeout_seconds))

    async def close(self) -> None:
        """Close the channel, and cancel what is under way."""
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

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        timeout_seconds: float | None,
    ) -> Response:
        attempts = Attempts(self._retries, self._budget, _seconds(timeout_seconds, self._timeout_seconds))
        metadata = (*self._metadata, *self._trace().items())
        while True:
            try:
                response = await method(request, timeout=attempts.seconds_left, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                failure = client_error(error.code(), error.details(), error.trailing_metadata())
                wait = None if self._closed else attempts.wait_after(failure)
                if wait is None:
                    raise failure from error
            else:
                self._budget.earn()
                return response
            await asyncio.sleep(wait)


def _translate_request(
    texts: Sequence[str],
    to: str,
    source: str,
    model: str,
    max_output_tokens: int | None,
    truncate: bool,
    scores: bool,
    request_id: str,
) -> pb.TranslateRequest:
    return pb.TranslateRequest(
        texts=_several(texts),
        source_language=source,
        target_language=to,
        model=model,
        max_output_tokens=None if max_output_tokens is None else min(max_output_tokens, MAX_OUTPUT_TOKENS),
        truncate=truncate,
        omit_scores=not scores,
        request_id=request_id,
    )


def _embed_request(
    texts: Sequence[str],
    source: str,
    model: str,
    pooling: Pooling | None,
    normalize: bool | None,
    truncate: bool,
    request_id: str,
) -> pb.EmbedRequest:
    return pb.EmbedRequest(
        texts=_several(texts),
        source_language=source,
        model=model,
        pooling=pb.POOLING_UNSPECIFIED if pooling is None else POOLINGS[pooling],
        normalize=normalize,
        truncate=truncate,
        request_id=request_id,
    )


def _several(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, is a single one")
    return texts


def _seconds(asked: float | None, usual: float) -> float:
    return usual if asked is None else asked


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    if not (token.isascii() and token.isprintable()) or " " in token:
        # gRPC's own error would repeat it.
        raise ValueError("token must be of printable ASCII without spaces")
    return ((AUTHORIZATION, f"Bearer {token}"),) if token else ()


def _channel_options(address: str, tls: Tls | None = None) -> list[tuple[str, int | str]]:
    # The server bounds its answers; a client's own default would refuse some of them.
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.service_config", IN_TURN),
        # Its own longest wait, 2 minutes, is beyond the time of most calls.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if is_loopback(address.rpartition(":")[0]):
        # A proxy of the environment is for the world outside.
        options.append(("grpc.enable_http_proxy", 0))
    return options if tls is None else [*options, *tls.options()]
