"""Traces of calls, for whoever collects them; there are none unless an endpoint is set."""

from typing import Protocol

from dragoman.service.errors import StartupError
from dragoman.service.settings import ServerSettings
from dragoman.service.telemetry.call_log import Call

INSTALL_TRACES = "pip install 'dragoman[traces]'"


class Traces(Protocol):
    """Where calls are traced."""

    def note(self, call: Call) -> None:
        """Trace a call that has ended; neither waits nor raises, whatever becomes of the trace."""

    def close(self) -> None:
        """Send what has not been sent, and end. May wait long, where nobody takes it."""


class NoTraces:
    """See `Traces`."""

    def note(self, call: Call) -> None:
        """See `Traces`."""

    def close(self) -> None:
        """See `Traces`."""


def open_traces(settings: ServerSettings) -> Traces:
    """Traces as the settings want them. Raises StartupError that says what to install, where that is missing."""
    if not settings.traces_endpoint:
        return NoTraces()
    try:
        # Nothing else loads OpenTelemetry.
        from dragoman.service.telemetry.call_spans import CallSpans, otlp_provider
    except ImportError as error:
        raise StartupError(f"traces need OpenTelemetry, of which {error.name} is missing: {INSTALL_TRACES}") from error
    return CallSpans(otlp_provider(settings.traces_endpoint, settings.traces_ratio))
