import os
import subprocess
import sys

import pytest

from dragoman.bundle.runtime import TELEMETRY_OFF

SAY = f"import os, dragoman.service.engine.ort_runner; print(os.environ[{TELEMETRY_OFF!r}])"


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_the_runtime_reports_to_nobody_unless_told_to(before: str | None, after: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != TELEMETRY_OFF}
    if before is not None:
        environment[TELEMETRY_OFF] = before
    run = subprocess.run([sys.executable, "-c", SAY], env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == [after], run.stderr
