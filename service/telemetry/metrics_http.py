"""The HTTP side of the server: /metrics for Prometheus, /healthz and /readyz for probes.

Starlette's routes and uvicorn's protocol run on the server's own event loop, without `uvicorn.Server`: that takes over
SIGTERM and SIGINT, and its main loop wakes up ten times a second, which costs an idle server 0.18 % of a core.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

MAX_CONNECTIONS = 16
"""Open connections; one more closes the oldest."""

MAX_CONNECTION_SECONDS = 10
"""Lifetime of a connection, however busy its client is."""

MAX_HEADER_BYTES = 65_536
"""Size of a request line with its headers; a longer one is answered with 400."""

BACKLOG = 128
"""Connections that the kernel queues until the event loop accepts them."""

STOP_SECONDS = 1
"""Maximum wait for connections to end at the stop: one that is just being accepted is not closed with the others."""

SCRAPE_THREAD = "scrape"
"""Name of the thread that computes scrapes."""


class MetricsServer:
    """Answers on a port of its own. Bound when it is made; started and stopped on one event loop.

    `alive` is false if the process should be restarted, `ready` is true while it answers calls. Both run on the event
    loop. Scrapes block for some milliseconds, and are computed one after another on a thread of their own.
    Raises OSError if the port cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        alive: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        self._listener = _listen(host, port)
        self.port = int(self._listener.getsockname()[1])
        """The bound port, also where a free one was wanted."""
        self._registry = registry
        self._alive = alive
        self._ready = ready
        self._scrapes = ThreadPoolExecutor(1, SCRAPE_THREAD)
        self._connections: _Connections = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to answer."""
        config = _config(self._routes())
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _BoundedProtocol(config, self._connections), sock=self._listener, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Close all connections and free the port. A scrape that still runs is not waited for."""
        self._scrapes.shutdown(wait=False, cancel_futures=True)
        if self._server is None:
            self._listener.close()
            return
        self._server.close()
        for connection in [*self._connections]:
            connection.transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._server.wait_closed()

    def _routes(self) -> ASGIApp:
        routes = [
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
        ]
        unknown = PlainTextResponse("the paths are /metrics, /healthz and /readyz\n", status_code=404)
        return Router(routes, redirect_slashes=False, default=unknown)

    async def _metrics(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        page = await asyncio.get_running_loop().run_in_executor(self._scrapes, encode, self._registry)
        return Response(page, media_type=content_type)

    async def _healthz(self, request: Request) -> Response:
        return _verdict(self._alive())

    async def _readyz(self, request: Request) -> Response:
        return _verdict(self._ready())


class _BoundedProtocol(H11Protocol):
    """A connection with bounds that no setting of uvicorn gives.

    `limit_concurrency` answers 503, so that idle connections would lock out a probe; here the oldest is closed instead.
    `timeout_keep_alive` ends only connections between two requests; here each one ends after MAX_CONNECTION_SECONDS.
    A scrape whose client is gone is cancelled, so that no more of them wait than there are connections.
    """

    def __init__(self, config: Config, connections: "_Connections") -> None:
        """`connections` holds the open ones, the oldest first; all protocols of a server share it."""
        # A state of its own, whose tasks are those of this connection alone.
        state = ServerState()
        # One answer a connection: a client must not reuse one whose lifetime is about to end.
        state.default_headers = [CLOSE_HEADER]
        super().__init__(config, state, {})
        self._connections = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Part of asyncio.Protocol."""
        super().connection_made(transport)
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).cancel()
            oldest.transport.abort()
        self._connections[self] = self.loop.call_later(MAX_CONNECTION_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        if self in self._connections:
            self._connections.pop(self).cancel()
        super().connection_lost(exc)
        for task in self.tasks:
            task.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that breaks the protocol."""
        super().send_400_response(msg)
        if self.cycle is not None:
            # With a broken body the request is already being answered: a second answer would fail, and be logged.
            self.cycle.disconnected = True


_Connections = dict[_BoundedProtocol, asyncio.TimerHandle]
"""Open connections, each with the timer that ends it."""


def _config(routes: ASGIApp) -> Config:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        # uvicorn would log the cancellation of a scrape as a failure.
        with suppress(asyncio.CancelledError):
            await routes(scope, receive, send)

    config = Config(
        application,
        http=H11Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        # Given, it is not read from an environment variable that means other servers.
        workers=1,
        proxy_headers=False,
        access_log=False,
        log_config=None,
        # Lower levels would let any client write log lines.
        log_level=logging.ERROR,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    config.load()
    return config


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Not `socket.create_server`, which would take no IPv4 connections on `::`."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _verdict(well: bool) -> Response:
    return PlainTextResponse("ok\n" if well else "no\n", status_code=200 if well else 503)
