"""The image's health check: `python -m dragoman.service.probe` exits with 0 if the server answers calls, else 1.

It reads DRAGOMAN_METRICS_HOST (else DRAGOMAN_HOST) and DRAGOMAN_METRICS_PORT; it does not see command-line options. It
imports next to nothing, because it runs every few seconds beside the model.
"""

import os
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException

from dragoman.client.hosts import from_here

TIMEOUT_SECONDS = 4


def address(environment: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the metrics of a server started with `environment`."""
    host = environment.get("DRAGOMAN_METRICS_HOST") or environment.get("DRAGOMAN_HOST") or "127.0.0.1"
    return from_here(host), int(environment["DRAGOMAN_METRICS_PORT"])


def ready(host: str, port: int) -> bool:
    """Whether /readyz on `host` and `port` answers 200."""
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
