"""The metrics port beside clients that connect and say nothing, or very little at a time."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from prometheus_client import CollectorRegistry

from dragoman.service.probe import ready
from dragoman.service.telemetry import metrics_http as exposition
from dragoman.service.telemetry.metrics_http import CONNECTIONS, MetricsServer
from tests.support.harness import PATIENCE_SECONDS

HOST = "127.0.0.1"


@contextmanager
def listening() -> Iterator[int]:
    """The port of an exposition that runs."""
    running = MetricsServer(HOST, 0, CollectorRegistry(), alive=lambda: True, ready=lambda: True)
    running.start()
    try:
        yield running.port
    finally:
        running.stop()


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS)


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


def test_idle_connections_make_few_threads_and_keep_nobody_out() -> None:
    with listening() as port, ExitStack() as idle:
        before = threading.active_count()
        connections = [idle.enter_context(connect(port)) for _ in range(200)]
        # A probe has 4 seconds, and comes after all the others.
        assert ready(HOST, port)
        # One more, for a thread that has given its place away and is about to end.
        assert threading.active_count() - before <= CONNECTIONS + 1
        assert is_over(connections[0])
        assert all(ready(HOST, port) for _ in range(50))


def test_a_client_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "CONNECTION_SECONDS", 1)
    with listening() as port, connect(port) as connection:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            drip(connection)
        assert time.monotonic() - began >= 1


def test_so_is_one_that_says_nothing_and_no_place_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "CONNECTION_SECONDS", 0.2)
    with listening() as port:
        for _ in range(2):
            with ExitStack() as idle:
                connections = [idle.enter_context(connect(port)) for _ in range(CONNECTIONS)]
                assert all(map(is_over, connections))
        monkeypatch.setattr(exposition, "CONNECTION_SECONDS", PATIENCE_SECONDS)
        assert ready(HOST, port)


def test_connections_end_with_the_server() -> None:
    with ExitStack() as idle:
        with listening() as port:
            connection = idle.enter_context(connect(port))
            assert ready(HOST, port)
        assert is_over(connection)


def test_one_whose_answer_is_still_made_keeps_its_place_and_the_others_come_after_it() -> None:
    """Cut off, its thread goes on until it has computed: there are never more than there are places."""
    going, entered = threading.Event(), threading.Semaphore(0)

    def slow() -> bool:
        entered.release()
        return going.wait(PATIENCE_SECONDS)

    running = MetricsServer(HOST, 0, CollectorRegistry(), alive=slow, ready=lambda: True)
    running.start()
    try:
        with ExitStack() as busy:
            for _ in range(CONNECTIONS + 5):
                busy.enter_context(connect(running.port)).sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            for _ in range(CONNECTIONS):
                assert entered.acquire(timeout=PATIENCE_SECONDS)
            assert not entered.acquire(timeout=0.3)
            going.set()
            assert ready(HOST, running.port)
    finally:
        going.set()
        running.stop()
