"""The number of computing threads: at most one per allowed processor, or an explicit number."""

import os
import subprocess
import sys

import pytest

from dragoman.bundle.manifest import Bundle

LOAD = """
import os, sys
from pathlib import Path

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from dragoman.bundle.runtime import onnxruntime

# The runtime starts with one thread that does not compute.
before = len(os.listdir("/proc/self/task"))
from dragoman.bundle.manifest import open_bundle
from dragoman.service.loading.loader import load_model
from dragoman.service.settings import ServerSettings

lanes, per_lane = map(int, sys.argv[2:])
settings = ServerSettings(provider="cpu", lanes=lanes, threads_per_lane=per_lane)
model = load_model(open_bundle(Path(sys.argv[1])), settings)
print(len(model.runners), len(os.listdir("/proc/self/task")) - before)
"""


def loaded(bundle: Bundle, lanes: int, per_lane: int) -> tuple[int, int]:
    """The lanes, and the threads besides theirs, of a process on one processor after warming up `bundle`."""
    command = [sys.executable, "-c", LOAD, str(bundle.folder), str(lanes), str(per_lane)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stderr == "", "no complaint about affinity either"
    runners, threads = map(int, run.stdout.split())
    return runners, threads


needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins processes")


@needs_affinity
@pytest.mark.parametrize("lanes", [1, 3])
def test_on_one_processor_only_the_lanes_compute(bundle: Bundle, lanes: int) -> None:
    assert loaded(bundle, lanes, 0) == (lanes, 0)


@needs_affinity
def test_an_explicit_number_of_threads_is_used(bundle: Bundle) -> None:
    # Each of the two graphs has a pool; a lane runs one of the graphs at a time, and pools sleep between runs.
    assert loaded(bundle, 1, 3) == (1, 2 * 2)
