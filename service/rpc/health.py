"""Health by grpc.health.v1: a status for each model, as SERVICE/NAME, and one for the whole server."""

from collections.abc import Callable, Collection

from grpc_health.v1 import health, health_pb2

from dragoman.v1.names import SERVICE

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


async def report_health(
    servicer: health.aio.HealthServicer, names: Collection[str], ready: Callable[[str], bool]
) -> None:
    """Set the status of each model in `names`, then that of the server, which is SERVING when all models are."""
    for name in names:
        await servicer.set(f"{SERVICE}/{name}", SERVING if ready(name) else NOT_SERVING)
    for whole in ("", SERVICE):
        await servicer.set(whole, SERVING if all(map(ready, names)) else NOT_SERVING)
