"""The HTTP side: /metrics for Prometheus, /healthz and /readyz for whoever looks after the process."""

import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

log = logging.getLogger(__name__)

PLAIN = "text/plain; charset=utf-8"

CONNECTIONS = 16
"""How many are answered at once."""

CONNECTION_SECONDS = 10
"""How long a connection may last, whatever its client does meanwhile."""

POLL_SECONDS = 0.05
"""How often the thread looks whether it is to stop, and whose time is over."""


class MetricsServer:
    """Answers on a port of its own, from threads of its own.

    `alive` says whether the process is to be let live, `ready` whether it answers calls now.
    Raises OSError if the port cannot be had.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        alive: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        kind = _HttpServer6 if ":" in host else _HttpServer
        self._server = kind((host, port), _handler(registry, alive, ready))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="exposition", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that is really listened on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more, and free the port."""
        if self._thread.ident is not None:
            self._server.shutdown()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    """A thread for each connection, of which there are only so many, and each only for so long.

    Where one more comes, the oldest makes room: those that are idle then keep no probe out, which is answered at once.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.Semaphore(CONNECTIONS)
        self._lock = threading.Lock()
        self._ends: dict[socket.socket, float] = {}
        """When the time of each connection is over."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for the host's full name.
        TCPServer.server_bind(self)

    def server_close(self) -> None:
        """Listen no more, and end all connections."""
        super().server_close()
        self._cut(math.inf)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection. Where this raises OSError it stays in the backlog, and the loop asks again."""
        self._make_room()
        try:
            connection, address = super().get_request()
        except OSError:
            self._free.release()
            raise
        with self._lock:
            self._ends[connection] = time.monotonic() + CONNECTION_SECONDS
        return connection, address

    def service_actions(self) -> None:
        """Called by the loop again and again."""
        self._cut(time.monotonic())

    def shutdown_request(self, request: Any) -> None:
        """Called when a connection has been answered or has failed, once for each."""
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)
        self._free.release()

    def _make_room(self) -> None:
        """Take a place. Raises TimeoutError where the one that was cut off still computes its answer."""
        if self._free.acquire(blocking=False):
            return
        self._cut(min([*self._ends.values()], default=0))
        if not self._free.acquire(timeout=POLL_SECONDS):
            raise TimeoutError

    def _cut(self, until: float) -> None:
        """Cut off the connections whose time is over at `until`; their threads then end."""
        with self._lock:
            for connection in [each for each, end in self._ends.items() if end <= until]:
                # Under the lock, and never twice: one that is closed may have its number again as another.
                del self._ends[connection]
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle is no news."""
        error = sys.exception()
        if not isinstance(error, OSError):
            # Not as its class does it, with the client's address.
            log.error("a request for metrics failed", exc_info=error)


class _HttpServer6(_HttpServer):
    address_family = socket.AF_INET6


def _handler(
    registry: CollectorRegistry, alive: Callable[[], bool], ready: Callable[[], bool]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path.split("?")[0]:
                case "/metrics":
                    encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(200, content_type, encode(registry))
                case "/healthz":
                    self._say(alive())
                case "/readyz":
                    self._say(ready())
                case _:
                    self._answer(404, PLAIN, b"/metrics, /healthz and /readyz are here\n")

        def _say(self, well: bool) -> None:
            self._answer(200 if well else 503, PLAIN, b"ok\n" if well else b"no\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A scrape every few seconds is not worth a line."""

    return Handler
