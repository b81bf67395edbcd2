"""Rules that docker-compose.yml must keep."""

from collections.abc import Iterator, Mapping
from typing import Any

LOOPBACK = "127.0.0.1"


def faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Violations in the output of `docker-compose --profile '*' config --format json`."""
    services: Mapping[str, Any] = config["services"]
    for name, service in services.items():
        for port in service.get("ports", ()):
            if port.get("host_ip") != LOOPBACK:
                yield f"{name} publishes port {port['target']} beyond {LOOPBACK}"
        if not _is_pinned(service["image"]):
            yield f"{name} has image {service['image']}, which is not pinned"
        if not {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]):
            yield f"{name} has no CPU or memory limit"
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind" and not volume.get("read_only"):
                yield f"{name} may write to {volume['target']}"
    with_gpu = {name for name, service in services.items() if _devices(service)}
    if with_gpu != {name for name, service in services.items() if "gpu" in service.get("profiles", ())}:
        yield f"GPUs are reserved by {sorted(with_gpu)}; only services of the profile gpu may, and all must"


def _is_pinned(image: str) -> bool:
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag not in ("", "latest")


def _devices(service: Mapping[str, Any]) -> Any:
    return service["deploy"]["resources"].get("reservations", {}).get("devices")
