"""`python -m deploy.generate deploy` writes the files that provision Prometheus and Grafana."""

import sys
from pathlib import Path

from deploy.generate.alerts import ALERTS, RECORDINGS
from deploy.generate.dashboards import dashboard_files
from deploy.generate.rules import cases_file, rules_file


def files() -> dict[str, str]:
    """The contents of every generated file, by its path below deploy/."""
    return {
        "prometheus/rules/dragoman.yml": rules_file(RECORDINGS, ALERTS),
        "prometheus/tests/dragoman.yml": cases_file(ALERTS, "../rules/dragoman.yml"),
        **{f"grafana/dashboards/{name}.json": text for name, text in dashboard_files().items()},
    }


if __name__ == "__main__":
    for path, text in files().items():
        (Path(sys.argv[1]) / path).write_text(text, encoding="utf-8")
