"""docker-compose.yml as a separate project on free ports, so that other containers on the engine do not interfere."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPOSE = Path(sys.executable).with_name("docker-compose")

UP_SECONDS = 180
COMMAND_SECONDS = 900

# CI's stand-in for Prometheus's image keeps its data in a folder of root's.
OVERRIDE = """\
services:
  prometheus:
    user: "0"
"""


class CommandError(Exception):
    """A command failed; the message contains its output."""


@dataclass(frozen=True)
class Stack:
    """Services of docker-compose.yml."""

    options: tuple[str, ...]
    """Global options of docker-compose."""
    environment: dict[str, str]
    server: str
    """HOST:PORT of gRPC."""
    metrics: str
    """URL of /metrics."""
    prometheus: str
    """URL of Prometheus."""

    def compose(self, *arguments: str) -> str:
        """Output of a docker-compose command. Raises CommandError."""
        return run([str(COMPOSE), *self.options, *arguments], environment=self.environment)

    def up(self, *services: str) -> None:
        """Start `services` from existing images, and wait until they are healthy. Raises CommandError."""
        self.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", str(UP_SECONDS), *services)

    def inspect(self, service: str) -> Any:
        """`docker inspect` of the service's container. Raises CommandError."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        return json.loads(run(["docker", "inspect", container]))[0]

    def python(self, service: str, program: str) -> str:
        """Output of a Python program run inside the service's container. Raises CommandError."""
        return self.compose("exec", "--no-TTY", service, "python", "-c", program)


@contextmanager
def stack() -> Iterator[Stack]:
    """A stack with no service started; on exit its services are stopped and its volumes removed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as taken:
        override = Path(folder) / "override.yml"
        override.write_text(OVERRIDE, encoding="utf-8")
        server, metrics, prometheus = (_free_port(taken) for _ in range(3))
        taken.close()
        environment = {
            "DRAGOMAN_PORT": str(server),
            "DRAGOMAN_METRICS_PORT": str(metrics),
            "PROMETHEUS_PORT": str(prometheus),
        }
        found = Stack(
            ("--project-name", f"dragoman-test-{os.getpid()}", "--file", "docker-compose.yml", "--file", str(override)),
            environment,
            f"127.0.0.1:{server}",
            f"http://127.0.0.1:{metrics}/metrics",
            f"http://127.0.0.1:{prometheus}",
        )
        try:
            yield found
        finally:
            found.compose("down", "--volumes", "--timeout", "10")


def run(
    command: Sequence[str], environment: dict[str, str] | None = None, stdin: bytes | None = None, shown: bool = False
) -> str:
    """Output of `command`, run in the repository's root; with `shown` it goes to the terminal instead.

    `environment` is added to that of this process. Raises CommandError.
    """
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | (environment or {}),
            input=stdin or b"",
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{' '.join(command)}: {error}") from error
    output = (done.stdout or b"").decode(errors="replace")
    if done.returncode:
        raise CommandError(f"{' '.join(command)} ended with status {done.returncode}\n{output}")
    return output


def _free_port(taken: ExitStack) -> int:
    """An unused port; it stays bound until `taken` is closed, so that the next call returns another one."""
    server = taken.enter_context(socket.create_server(("127.0.0.1", 0)))
    return int(server.getsockname()[1])
