import asyncio
import socket

import pytest
from prometheus_client import CollectorRegistry

from dragoman.service.probe import address, ready
from dragoman.service.telemetry.metrics_http import MetricsServer


@pytest.mark.parametrize("state", [True, False])
async def test_a_server_is_ready_when_readyz_is_200(state: bool) -> None:
    server = MetricsServer("127.0.0.1", 0, CollectorRegistry(), alive=lambda: True, ready=lambda: state)
    await server.start()
    try:
        assert await asyncio.to_thread(ready, "127.0.0.1", server.port) is state
    finally:
        await server.stop()


def test_a_port_without_a_listener_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not ready("127.0.0.1", port)


@pytest.mark.parametrize(
    ("hosts", "probed"),
    [
        ({}, "127.0.0.1"),
        ({"HOST": "0.0.0.0"}, "127.0.0.1"),
        ({"HOST": "10.0.0.7"}, "10.0.0.7"),
        ({"HOST": "0.0.0.0", "METRICS_HOST": ""}, "127.0.0.1"),
        ({"HOST": "0.0.0.0", "METRICS_HOST": "10.0.0.7"}, "10.0.0.7"),
        ({"HOST": "10.0.0.7", "METRICS_HOST": "::"}, "127.0.0.1"),
    ],
)
def test_the_address_is_that_of_the_metrics_settings(hosts: dict[str, str], probed: str) -> None:
    environment = {f"DRAGOMAN_{name}": host for name, host in hosts.items()}
    assert address({**environment, "DRAGOMAN_METRICS_PORT": "9464"}) == (probed, 9464)
