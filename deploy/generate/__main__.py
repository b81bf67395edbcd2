"""`python -m deploy.generate deploy` writes what Prometheus and Grafana are provisioned with."""

import json
import sys
from pathlib import Path

from deploy.generate.alerts import ALERTS, RECORDINGS
from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.panels import grafana_json
from deploy.generate.rules import cases_file, rules_file

RULES = "prometheus/rules/dragoman.yml"


def files() -> dict[str, str]:
    """The contents of every file, by its path below deploy/."""
    dashboards = {
        f"grafana/dashboards/{name}.json": json.dumps(grafana_json(dashboard), indent=2, ensure_ascii=False) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }
    return {
        RULES: rules_file(RECORDINGS, ALERTS),
        "prometheus/tests/dragoman.yml": cases_file(ALERTS, "../rules/dragoman.yml"),
        **dashboards,
    }


if __name__ == "__main__":
    for path, text in files().items():
        (Path(sys.argv[1]) / path).write_text(text, encoding="utf-8")
