"""All dashboards, by the name of their file."""

from dragoman.service.views.engine import ENGINE
from dragoman.service.views.memory import MEMORY
from dragoman.service.views.overview import OVERVIEW

DASHBOARDS = {"overview": OVERVIEW, "engine": ENGINE, "memory": MEMORY}
