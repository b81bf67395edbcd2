"""Ends with status 0 if the server of this container answers calls, else 1: `python -m dragoman.service.probe`.

The health check of the image. It imports next to nothing, since it runs every few seconds beside the model. It knows by
the settings' variables where to ask; it does not see options of the command.
"""

import os
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException

from dragoman.client.hosts import from_here

TIMEOUT_SECONDS = 4


def address(environment: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the metrics of the server that was started with `environment`."""
    host = environment.get("DRAGOMAN_METRICS_HOST") or environment.get("DRAGOMAN_HOST") or "127.0.0.1"
    return from_here(host), int(environment["DRAGOMAN_METRICS_PORT"])


def ready(host: str, port: int) -> bool:
    """Whether the server whose metrics are on `port` of `host` says that it is ready."""
    connection = HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if ready(*address(os.environ)) else 1)
