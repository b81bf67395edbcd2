"""A real server in a process of its own, and what can be seen of it from outside."""

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
"""How long a server may take to end."""

GAUGES = ("dragoman_queue_sequences", "dragoman_queue_tokens", "dragoman_active_rows")
"""What is 0 where nothing is going on."""

NO_PROXY = build_opener(ProxyHandler({}))
"""For addresses of this machine."""


class ServerProcess:
    """`dragoman serve`, from when it is ready."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Waits for the lines that say where it listens. Raises RuntimeError where it ends instead."""
        self.pid = process.pid
        self._process = process
        said: list[str] = []
        for line in process.stdout or ():
            said.append(line)
            found = re.search(r"gRPC on (\S+), metrics on (\S+)", line)
            if found:
                self.address, self._metrics = found[1], found[2]
                return
        raise RuntimeError(f"the server ended with status {process.wait()}: {''.join(said)}")

    def resident_bytes(self) -> int:
        """Its memory that is resident now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time that it has used so far, of all its threads, its own and the system's."""
        # The name, in brackets, may hold anything; user and system time are the 12th and 13th field after it.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def open_files(self) -> int:
        """Its file descriptors."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def threads(self) -> int:
        """Its threads."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def page(self) -> str:
        """Its metrics, as they are scraped."""
        with NO_PROXY.open(self._metrics, timeout=END_SECONDS) as page:
            text: str = page.read().decode()
        return text

    def metric(self, name: str) -> float:
        """The sum of all samples of that name; 0 if there are none."""
        return sum_of(self.page(), name)

    def at_rest(self, seconds: float) -> bool:
        """Whether nothing waits or runs in it any more, at the latest after so many seconds."""
        until = time.monotonic() + seconds
        while any(map(self.metric, GAUGES)):
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True


def sum_of(page: str, name: str) -> float:
    """The sum of all samples of that name on a page of metrics."""
    lines = (line for line in page.splitlines() if re.match(rf"{name}[ {{]", line))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def sums_by(page: str, name: str, label: str) -> Counter[str]:
    """The sums of all samples of that name, by the value of a label."""
    found = Counter[str]()
    for line in page.splitlines():
        value = re.match(rf'{name}{{[^}}]*{label}="([^"]*)"', line)
        if value:
            found[value[1]] += int(float(line.rpartition(" ")[2]))
    return found


@contextmanager
def server_process(bundle: Path, *options: str, cpus: Set[int] | None = None) -> Iterator[ServerProcess]:
    """Serve `bundle` on free ports of the loopback, on `cpus` alone if given; ended when left."""
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
    """Inside, this thread and whatever it starts run on `cpus` alone; None changes nothing."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
