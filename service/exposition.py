"""The HTTP side: /metrics for Prometheus, /healthz and /readyz for whoever looks after the process."""

import logging
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

log = logging.getLogger(__name__)

PLAIN = "text/plain; charset=utf-8"
SLOWEST_CLIENT_SECONDS = 10

POLL_SECONDS = 0.05
"""How often the thread looks whether it is to stop."""


class Exposition:
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
    daemon_threads = True

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for the host's full name.
        TCPServer.server_bind(self)

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
        timeout = SLOWEST_CLIENT_SECONDS

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
