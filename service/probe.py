"""Ends with status 0 if the server of this container answers calls, else 1: `python -m dragoman.service.probe`.

The health check of the image. It imports next to nothing, since it runs every few seconds beside the model.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException

TIMEOUT_SECONDS = 4


def ready(port: int) -> bool:
    """Whether the server whose metrics are on `port` of the loopback says that it is ready."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if ready(int(os.environ["DRAGOMAN_METRICS_PORT"])) else 1)
