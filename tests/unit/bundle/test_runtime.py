import os
import subprocess
import sys

import pytest

from dragoman.bundle.runtime import TELEMETRY_OFF

PRINT = f"import os, dragoman.service.engine.ort_runner; print(os.environ[{TELEMETRY_OFF!r}])"


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_unless_turned_on(before: str | None, after: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != TELEMETRY_OFF}
    if before is not None:
        environment[TELEMETRY_OFF] = before
    run = subprocess.run([sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == [after], run.stderr
