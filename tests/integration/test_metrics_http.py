"""The metrics port beside clients that connect and stay silent, send slowly, or do not read."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse

import pytest
import uvloop
from prometheus_client import CollectorRegistry, Gauge

from dragoman.service.probe import ready
from dragoman.service.telemetry import metrics_http
from dragoman.service.telemetry.metrics_http import MAX_CONNECTIONS, MAX_HEADER_BYTES, SCRAPE_THREAD, MetricsServer
from tests.support.harness import PATIENCE_SECONDS

HOST = "127.0.0.1"


@contextmanager
def listening(scrape: Callable[[], float] = lambda: 1.0, alive: Callable[[], bool] = lambda: True) -> Iterator[int]:
    """The port of a MetricsServer on an event loop of its own; `scrape` is the value of its one metric."""
    registry = CollectorRegistry()
    Gauge("metric", "Help.", registry=registry).set_function(scrape)
    server = MetricsServer(HOST, 0, registry, alive=alive, ready=lambda: True)
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_SECONDS)
        yield server.port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_SECONDS)
        loop.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS)


def ask(port: int, method: str, path: str, accept: str = "") -> tuple[HTTPResponse, str]:
    connection = HTTPConnection(HOST, port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()


def drip(connection: socket.socket) -> None:
    """Send a request that never ends, faster than any limit on silence."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        connection.sendall(b"x")
        time.sleep(0.05)


def is_over(connection: socket.socket) -> bool:
    """Whether the other side has ended the connection; waits for it, and takes what it sends before."""
    try:
        while connection.recv(1024):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def scrape_threads() -> int:
    return sum(thread.name.startswith(SCRAPE_THREAD) for thread in threading.enumerate())


# --- requests and answers


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", "metric 1.0\n"),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=1.0.0", "# EOF\n"),
    ],
)
def test_a_scrape_has_the_format_that_it_accepts(accept: str, content_type: str, end: str) -> None:
    with listening() as port:
        response, page = ask(port, "GET", "/metrics", accept)
    assert response.status == 200
    assert str(response.headers["Content-Type"]).startswith(content_type)
    assert "metric 1.0\n" in page
    assert page.endswith(end)


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/readyz?verbose"])
def test_head_has_the_headers_of_get_without_a_body(path: str) -> None:
    with listening() as port:
        whole, page = ask(port, "GET", path)
        head, nothing = ask(port, "HEAD", path)
    assert (whole.status, head.status, nothing) == (200, 200, "")
    assert page
    assert dict(whole.headers) == dict(head.headers)
    assert int(head.headers["Content-Length"]) == len(page)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/metrics", 405), ("DELETE", "/readyz", 405), ("GET", "/", 404), ("GET", "/metrics/", 404)],
)
def test_other_methods_and_paths_are_refused(method: str, path: str, status: int) -> None:
    with listening() as port:
        assert ask(port, method, path)[0].status == status


def test_each_connection_has_one_answer() -> None:
    with listening() as port, connect(port) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        sent = b"".join(iter(lambda: connection.recv(1024), b""))
        assert sent.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in sent


def test_headers_beyond_their_bound_are_refused() -> None:
    with listening() as port, connect(port) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\nLong: " + b"x" * MAX_HEADER_BYTES)
        assert connection.recv(1024).startswith(b"HTTP/1.1 400")


def test_a_broken_request_writes_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    broken = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n\x00",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n\x00\x00\r\n\r\n",
    ]
    with listening() as port:
        for request in broken:
            with connect(port) as connection:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                assert is_over(connection)
        assert ready(HOST, port)
    assert not caplog.records


def test_a_metric_that_fails_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    with listening(scrape=lambda: 1 / 0) as port:
        assert ask(port, "GET", "/metrics")[0].status == 500
        assert ready(HOST, port)
    assert "ZeroDivisionError" in caplog.text


# --- bounds


def test_idle_connections_keep_no_probe_out() -> None:
    with listening() as port, ExitStack() as idle:
        before = threading.active_count()
        connections = [idle.enter_context(connect(port)) for _ in range(200)]
        # A probe has 4 seconds, and comes after all the others.
        assert ready(HOST, port)
        assert threading.active_count() == before
        assert all(map(is_over, connections[: -MAX_CONNECTIONS + 1]))
        assert all(map(is_open, connections[-MAX_CONNECTIONS + 1 :]))
        assert all(ready(HOST, port) for _ in range(50))


def test_a_client_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "MAX_CONNECTION_SECONDS", 1)
    with listening() as port, connect(port) as connection:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            drip(connection)
        assert time.monotonic() - began >= 1


def test_silent_clients_are_cut_off_and_free_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "MAX_CONNECTION_SECONDS", 0.2)
    with listening() as port:
        for _ in range(2):
            with ExitStack() as idle:
                connections = [idle.enter_context(connect(port)) for _ in range(MAX_CONNECTIONS)]
                assert all(map(is_over, connections))
        assert ready(HOST, port)


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "MAX_CONNECTION_SECONDS", 0.5)
    monkeypatch.setattr(metrics_http, "choose_encoder", lambda accept: (lambda registry: b"x" * 50_000_000, "a/b"))
    with listening() as port, connect(port) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(1)
        received = 0
        with suppress(ConnectionError):
            while chunk := connection.recv(2**20):
                received += len(chunk)
        assert received < 50_000_000


def test_connections_end_with_the_server() -> None:
    with ExitStack() as idle:
        with listening() as port:
            connection = idle.enter_context(connect(port))
            assert ready(HOST, port)
        assert is_over(connection)


def test_scrapes_are_computed_one_by_one_and_keep_no_probe_out(caplog: pytest.LogCaptureFixture) -> None:
    """A scrape that has begun goes on after its client is cut off; waiting ones of such clients are left out."""
    going, entered = threading.Event(), threading.Semaphore(0)

    def slow() -> float:
        entered.release()
        return going.wait(PATIENCE_SECONDS)

    with listening(scrape=slow) as port, ExitStack() as busy:
        try:
            scrapes = [busy.enter_context(connect(port)) for _ in range(MAX_CONNECTIONS + 5)]
            for connection in scrapes:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert entered.acquire(timeout=PATIENCE_SECONDS)
            assert ready(HOST, port)
            assert not entered.acquire(timeout=0.3)
            assert scrape_threads() == 1
        finally:
            going.set()
        answers = [connection.recv(1024) for connection in scrapes[-MAX_CONNECTIONS + 1 :]]
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
        for _ in answers:
            assert entered.acquire(timeout=PATIENCE_SECONDS)
        assert not entered.acquire(timeout=0.3)
    assert not caplog.records


def test_a_server_stops_while_a_scrape_is_computed() -> None:
    going, entered = threading.Event(), threading.Event()

    def slow() -> float:
        entered.set()
        return going.wait(PATIENCE_SECONDS)

    with ExitStack() as busy:
        with listening(scrape=slow) as port:
            connection = busy.enter_context(connect(port))
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert entered.wait(PATIENCE_SECONDS)
        assert is_over(connection)
        going.set()
