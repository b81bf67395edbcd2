"""The gRPC side of a server: authentication, interceptor, methods, health and reflection on one port."""

import os
from collections.abc import Callable, Collection, Mapping

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dragoman.service.banner import at
from dragoman.service.errors import StartupError
from dragoman.service.lifecycle import Lifecycle
from dragoman.service.rpc.auth import Authenticator, CallerLimits
from dragoman.service.rpc.health import report_health
from dragoman.service.rpc.interceptor import CallInterceptor
from dragoman.service.rpc.ports import check_free
from dragoman.service.rpc.servicer import TranslationService
from dragoman.service.rpc.tokens import token_source
from dragoman.service.rpc.transport import exposure, port_binder, server_limits, transport_options
from dragoman.service.settings import ServerSettings
from dragoman.service.telemetry.call_log import CallLog
from dragoman.service.telemetry.memory_report import MemoryReporter
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.traces import open_traces
from dragoman.service.translation.served_model import ServedModel
from dragoman.v1 import translation_pb2_grpc
from dragoman.v1.names import METHODS, SERVICE


class GrpcServer:
    """Answers the calls of one server on its gRPC port. Belongs to one event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        models: Mapping[str, ServedModel],
        reporter: MemoryReporter,
        metrics: Metrics,
        lifecycle: Lifecycle,
    ) -> None:
        """`models` by name; the caller may replace entries at any time. `lifecycle` is the server's.

        Raises StartupError if tokens, certificates or traces are not as the settings need them.
        """
        self._settings = settings
        self._authenticator = Authenticator(
            token_source(settings.tokens_file, os.environ),
            CallerLimits(settings.token_calls_per_second, settings.token_calls),
        )
        self._bind = port_binder(settings)
        self.traces = open_traces(settings)
        call_log = CallLog(settings.log_calls_per_second, settings.log_texts)
        interceptor = CallInterceptor(
            SERVICE,
            METHODS,
            metrics,
            lifecycle,
            self._authenticator,
            settings.max_call_seconds,
            (call_log.note, self.traces.note),
        )
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(interceptors=[interceptor], options=transport_options(settings))
        translation_pb2_grpc.add_TranslationServiceServicer_to_server(
            TranslationService(models, server_limits(settings), reporter, settings.pivot), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about an exposed port, for the operator."""
        return exposure(self._settings, self._authenticator.closed)

    def bind(self) -> int:
        """Bind the port, and return its number. Raises StartupError if that fails."""
        host, port = self._settings.host, self._settings.port
        check_free(host, port)
        try:
            return self._bind(self._server, at(host, port))
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {host}, port {port}") from error

    async def start(self) -> None:
        """Answer calls from now on."""
        await self._server.start()

    async def report_health(self, names: Collection[str], ready: Callable[[str], bool]) -> None:
        """Set the health of each model in `names`, and of the server as a whole."""
        await report_health(self._health, names, ready)

    async def drain(self) -> None:
        """Report NOT_SERVING from now on, whatever else is reported."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Cancel what is left after `grace_seconds`, and close the port."""
        await self._server.stop(grace_seconds)
