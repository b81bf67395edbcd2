"""Traces of calls, sent to a collector if the settings name an endpoint."""

from typing import Protocol

from dragoman.service.errors import StartupError
from dragoman.service.settings import ServerSettings
from dragoman.service.telemetry.call_log import Call

INSTALL_TRACES = "pip install '.[traces]' in a clone of dragoman"


class Traces(Protocol):
    """A sink for ended calls."""

    def note(self, call: Call) -> None:
        """Trace a call that has ended. Neither waits nor raises, even if the trace is lost."""

    def close(self) -> None:
        """Send the remaining spans, and end. May wait long for a collector that does not answer."""


class NoTraces:
    """Traces nothing."""

    def note(self, call: Call) -> None:
        """See `Traces`."""

    def close(self) -> None:
        """See `Traces`."""


def open_traces(settings: ServerSettings) -> Traces:
    """Traces as set in `settings`. Raises StartupError, with the command to install, if a package is missing."""
    if not settings.traces_endpoint:
        return NoTraces()
    try:
        # Imported here alone, so that servers without traces never load OpenTelemetry.
        from dragoman.service.telemetry.call_spans import CallSpans, otlp_provider
    except ImportError as error:
        raise StartupError(f"traces need OpenTelemetry, but {error.name} is missing: {INSTALL_TRACES}") from error
    return CallSpans(otlp_provider(settings.traces_endpoint, settings.traces_ratio))
