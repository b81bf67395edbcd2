"""The interface of both clients: arguments, messages, metadata and retries, without the transport."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import grpc

from dragoman.client.channel import ChannelOptions, channel_options, token_metadata
from dragoman.client.errors import ClientError
from dragoman.client.retries import Attempts, DelayAfter, Retries, RetryBudget
from dragoman.client.tls import Tls
from dragoman.client.values import Pooling
from dragoman.client.wire import POOLINGS
from dragoman.v1 import translation_pb2 as pb

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TIMEOUT_SECONDS = 60.0

DEFAULT_RETRIES = Retries()

MAX_OUTPUT_TOKENS = 2**31 - 1
"""Largest value of the request's field; far above the limit of any model."""

TraceContext = Callable[[], Mapping[str, str]]
"""Returns metadata such as traceparent (W3C Trace Context), in lower case; empty outside a trace."""

Metadata = tuple[tuple[str, str], ...]

TranslateAnswer = TypeVar("TranslateAnswer", covariant=True)
EmbedAnswer = TypeVar("EmbedAnswer", covariant=True)
InfoAnswer = TypeVar("InfoAnswer", covariant=True)


class BaseClient(ABC, Generic[TranslateAnswer, EmbedAnswer, InfoAnswer]):
    """Turns arguments into messages; a subclass sends them. The type parameters are the types of the answers."""

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
        """Open a channel to `address`, which is HOST:PORT; a call beyond `timeout_seconds` raises TimedOutError.

        An address may stand for several servers, such as `ipv4:10.0.0.1:50051,10.0.0.2:50051` or a DNS name. Calls are
        then spread over them.

        With `tls` the connection is encrypted and the server authenticated. `token` is sent with every call; without
        `tls` it can be read on the network.

        `retries` applies to calls that found no server, were refused by a full server, or ended when their server
        stopped. None makes each call once.

        `trace` is called before each call for the context of its trace, as OpenTelemetry's `inject` writes it.

        Raises ValueError if `token` is malformed, and OSError if a file of `tls` cannot be read.
        """
        self._metadata: Metadata = token_metadata(token)
        self._trace: TraceContext = trace or dict
        self._retries = retries
        self._budget = RetryBudget(retries.overload_budget if retries else 0)
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._open(address, channel_options(address, tls), None if tls is None else tls.credentials())

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
    ) -> TranslateAnswer:
        """Translate each text separately; results are in the order of the texts. Raises ClientError.

        `to` and `source` are BCP-47 codes; each may be omitted if the model has only one such language.
        `max_output_tokens` includes the end token. `truncate` shortens a text that is too long, which otherwise fails
        the call. Without `scores` results arrive slightly sooner.
        """
        request = pb.TranslateRequest(
            texts=_several(texts),
            source_language=source,
            target_language=to,
            model=model,
            max_output_tokens=None if max_output_tokens is None else min(max_output_tokens, MAX_OUTPUT_TOKENS),
            truncate=truncate,
            omit_scores=not scores,
            request_id=request_id,
        )
        return self._translate(request, timeout_seconds)

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
    ) -> EmbedAnswer:
        """Turn each text into one vector or, with Pooling.NONE, into one vector per token. Raises ClientError.

        `normalize` scales each vector to length 1. None leaves `pooling` or `normalize` to the model. The other
        arguments are those of `translate`.
        """
        request = pb.EmbedRequest(
            texts=_several(texts),
            source_language=source,
            model=model,
            pooling=pb.POOLING_UNSPECIFIED if pooling is None else POOLINGS[pooling],
            normalize=normalize,
            truncate=truncate,
            request_id=request_id,
        )
        return self._embed(request, timeout_seconds)

    def info(self, *, timeout_seconds: float | None = None) -> InfoAnswer:
        """Describe the server: its models, limits and memory. Raises ClientError."""
        return self._info(pb.GetInfoRequest(), timeout_seconds)

    @abstractmethod
    def _open(self, address: str, options: ChannelOptions, credentials: grpc.ChannelCredentials | None) -> None:
        """Open the channel, encrypted if there are `credentials`."""

    @abstractmethod
    def _translate(self, request: pb.TranslateRequest, timeout_seconds: float | None) -> TranslateAnswer:
        """Send `request`."""

    @abstractmethod
    def _embed(self, request: pb.EmbedRequest, timeout_seconds: float | None) -> EmbedAnswer:
        """Send `request`."""

    @abstractmethod
    def _info(self, request: pb.GetInfoRequest, timeout_seconds: float | None) -> InfoAnswer:
        """Send `request`."""

    def _attempts(self, timeout_seconds: float | None) -> Attempts:
        return Attempts(
            self._retries, self._budget, self._timeout_seconds if timeout_seconds is None else timeout_seconds
        )

    def _call_metadata(self) -> Metadata:
        return (*self._metadata, *self._trace().items())

    def _delay_after(self, attempts: Attempts) -> DelayAfter:
        def delay_after(error: ClientError) -> float | None:
            return None if self._closed else attempts.delay_after(error)

        return delay_after


def _several(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, is a single text")
    return texts
