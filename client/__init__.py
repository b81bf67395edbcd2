"""Clients for a Dragoman server, with and without asyncio: `from dragoman.client import Client, AsyncClient`."""

from dragoman.client.async_client import AsyncClient
from dragoman.client.base import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_SECONDS
from dragoman.client.client import Client
from dragoman.client.errors import (
    ClientError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    ServerError,
    TimedOutError,
    UnauthenticatedError,
    UnavailableError,
    Violation,
)
from dragoman.client.retries import Retries
from dragoman.client.tls import Tls
from dragoman.client.values import (
    Embedding,
    EmbedResult,
    FinishReason,
    ModelInfo,
    Pivot,
    Pooling,
    ServerInfo,
    ServerLimits,
    Timings,
    Token,
    TranslateResult,
    Translation,
)

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_TIMEOUT_SECONDS",
    "AsyncClient",
    "Client",
    "ClientError",
    "EmbedResult",
    "Embedding",
    "FinishReason",
    "InvalidArgumentError",
    "ModelInfo",
    "NotFoundError",
    "OverloadedError",
    "Pivot",
    "Pooling",
    "Retries",
    "ServerError",
    "ServerInfo",
    "ServerLimits",
    "TimedOutError",
    "Timings",
    "Tls",
    "Token",
    "TranslateResult",
    "Translation",
    "UnauthenticatedError",
    "UnavailableError",
    "Violation",
]
