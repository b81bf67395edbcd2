"""docker-compose.yml brought up beside whatever else runs on this engine: a project and ports of its own."""

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

# The stand-in for Prometheus's image that CI has keeps its data in a folder of root's.
OVERRIDE = """\
services:
  prometheus:
    user: "0"
"""


class CommandError(Exception):
    """A command failed; the message has its words."""


@dataclass(frozen=True)
class Stack:
    """Some services of docker-compose.yml."""

    options: tuple[str, ...]
    """Of docker-compose, before its command."""
    environment: dict[str, str]
    server: str
    """HOST:PORT of gRPC."""
    metrics: str
    """URL of /metrics."""
    prometheus: str
    """URL of Prometheus."""

    def compose(self, *arguments: str) -> str:
        """Run docker-compose, and give what it prints. Raises CommandError."""
        return run([str(COMPOSE), *self.options, *arguments], environment=self.environment)

    def up(self, *services: str) -> None:
        """Start `services` of images that are there, and wait until they are healthy. Raises CommandError."""
        self.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", str(UP_SECONDS), *services)

    def inspect(self, service: str) -> Any:
        """What the engine says of the service's container. Raises CommandError."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        return json.loads(run(["docker", "inspect", container]))[0]

    def python(self, service: str, program: str) -> str:
        """Run a Python program inside the service's container, and give what it prints. Raises CommandError."""
        return self.compose("exec", "--no-TTY", service, "python", "-c", program)


@contextmanager
def stack() -> Iterator[Stack]:
    """A stack of which nothing runs yet; when left, nothing runs any more, and its volumes are gone."""
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
    command: Sequence[str], environment: dict[str, str] | None = None, given: bytes | None = None, shown: bool = False
) -> str:
    """Run `command` in the repository's root, and give what it prints; `shown` prints it at once instead.

    `environment` is added to this process's own, and `given` is its input. Raises CommandError.
    """
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | (environment or {}),
            input=given or b"",
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{' '.join(command)}: {error}") from error
    said = (done.stdout or b"").decode(errors="replace")
    if done.returncode:
        raise CommandError(f"{' '.join(command)} ended with status {done.returncode}\n{said}")
    return said


def _free_port(taken: ExitStack) -> int:
    """A port that nobody listens on; kept until `taken` is closed, so that the next one is another."""
    server = taken.enter_context(socket.create_server(("127.0.0.1", 0)))
    return int(server.getsockname()[1])
