"""All dashboards, by the name of their file."""

from deploy.generate.engine_dashboard import ENGINE
from deploy.generate.memory_dashboard import MEMORY
from deploy.generate.overview_dashboard import OVERVIEW

DASHBOARDS = {"overview": OVERVIEW, "engine": ENGINE, "memory": MEMORY}
