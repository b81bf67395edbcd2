import socket

import pytest
from prometheus_client import CollectorRegistry

from dragoman.service.exposition import Exposition
from dragoman.service.probe import ready


@pytest.mark.parametrize("state", [True, False])
def test_a_server_is_ready_when_it_says_so(state: bool) -> None:
    exposition = Exposition("127.0.0.1", 0, CollectorRegistry(), alive=lambda: True, ready=lambda: state)
    exposition.start()
    try:
        assert ready(exposition.port) is state
    finally:
        exposition.stop()


def test_where_nobody_listens_nothing_is_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not ready(port)
