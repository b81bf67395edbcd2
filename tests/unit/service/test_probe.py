import socket

import pytest
from prometheus_client import CollectorRegistry

from dragoman.service.probe import address, ready
from dragoman.service.telemetry.metrics_http import MetricsServer


@pytest.mark.parametrize("state", [True, False])
def test_a_server_is_ready_when_it_says_so(state: bool) -> None:
    exposition = MetricsServer("127.0.0.1", 0, CollectorRegistry(), alive=lambda: True, ready=lambda: state)
    exposition.start()
    try:
        assert ready("127.0.0.1", exposition.port) is state
    finally:
        exposition.stop()


def test_where_nobody_listens_nothing_is_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not ready("127.0.0.1", port)


@pytest.mark.parametrize(
    ("hosts", "asked"),
    [
        ({}, "127.0.0.1"),
        ({"HOST": "0.0.0.0"}, "127.0.0.1"),
        ({"HOST": "10.0.0.7"}, "10.0.0.7"),
        ({"HOST": "0.0.0.0", "METRICS_HOST": ""}, "127.0.0.1"),
        ({"HOST": "0.0.0.0", "METRICS_HOST": "10.0.0.7"}, "10.0.0.7"),
        ({"HOST": "10.0.0.7", "METRICS_HOST": "::"}, "127.0.0.1"),
    ],
)
def test_the_server_is_asked_where_its_settings_put_the_metrics(hosts: dict[str, str], asked: str) -> None:
    environment = {f"DRAGOMAN_{name}": host for name, host in hosts.items()}
    assert address({**environment, "DRAGOMAN_METRICS_PORT": "9464"}) == (asked, 9464)
