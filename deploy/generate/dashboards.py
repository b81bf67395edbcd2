"""All dashboards."""

import json

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.generate.engine_dashboard import engine
from deploy.generate.memory_dashboard import memory
from deploy.generate.overview_dashboard import overview

DASHBOARDS = {"overview": overview, "engine": engine, "memory": memory}
"""Functions that build a dashboard, by the name of its file."""


def dashboard_files() -> dict[str, str]:
    """The JSON of each dashboard, by the name of its file without the suffix."""
    return {
        name: json.dumps(build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"
        for name, build in DASHBOARDS.items()
    }
