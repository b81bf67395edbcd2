"""Server in a separate process, with its metrics, memory and processor time seen from outside."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

END_SECONDS = 60
"""Time limit for a server to end."""

GAUGES = ("dragoman_queue_sequences", "dragoman_queue_tokens", "dragoman_active_rows")
"""Gauges that are 0 on an idle server."""

NO_PROXY = build_opener(ProxyHandler({}))
"""Opener for addresses of this machine, without a proxy."""


class ServerProcess:
    """Ready `dragoman serve` process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Wait for the line with the addresses. Raises RuntimeError if the process ends first."""
        self.pid = process.pid
        self._process = process
        lines: list[str] = []
        for line in process.stdout or ():
            lines.append(line)
            found = re.search(r"gRPC on (\S+), metrics on (\S+)", line)
            if found:
                self.address, self._metrics = found[1], found[2]
                return
        raise RuntimeError(f"the server ended with status {process.wait()}: {''.join(lines)}")

    def resident_bytes(self) -> int:
        """Resident memory now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """User and system time of all threads so far."""
        # The name, in brackets, may hold anything; user and system time are the 12th and 13th field after it.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process.poll() is None

    def open_files(self) -> int:
        """Number of open file descriptors."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def threads(self) -> int:
        """Number of threads."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def page(self) -> str:
        """Page of metrics, scraped now."""
        with NO_PROXY.open(self._metrics, timeout=END_SECONDS) as page:
            text: str = page.read().decode()
        return text

    def metric(self, name: str) -> float:
        """Sum of all samples of that name; 0 without any."""
        return sum_of(self.page(), name)

    def at_rest(self, seconds: float) -> bool:
        """Wait until all gauges are 0, at most `seconds`. Returns whether they are."""
        until = time.monotonic() + seconds
        while any(map(self.metric, GAUGES)):
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True


def sum_of(page: str, name: str) -> float:
    """Sum of all samples of that name on a page of metrics."""
    lines = (line for line in page.splitlines() if re.match(rf"{name}[ {{]", line))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def sums_by(page: str, name: str, label: str) -> Counter[str]:
    """Sums of all samples of that name, by the value of a label."""
    found = Counter[str]()
    for line in page.splitlines():
        value = re.match(rf'{name}{{[^}}]*{label}="([^"]*)"', line)
        if value:
            found[value[1]] += int(float(line.rpartition(" ")[2]))
    return found


@contextmanager
def server_process(bundle: Path, *options: str, cpus: Set[int] | None = None) -> Iterator[ServerProcess]:
    """Serve `bundle` on free loopback ports, pinned to `cpus` if given; the server ends on exit."""
    command = [sys.executable, "-m", "dragoman.service.cli", "serve", str(bundle), "--no-verify"]
    command += ["--port", "0", "--metrics-port", "0", "--log-calls-per-second", "0", *options]
    with pinned(cpus):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
    with process:
        try:
            yield ServerProcess(process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def pinned(cpus: Set[int] | None) -> Iterator[None]:
    """Pin this thread and the processes it starts to `cpus`; None changes nothing."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
