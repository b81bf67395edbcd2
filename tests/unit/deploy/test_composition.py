from typing import Any

import pytest

from tests.deploy.composition import faults

LIMITS = {"cpus": 2, "memory": "1"}


def service(**changes: object) -> dict[str, Any]:
    return {
        "image": "shop/server:1.2",
        "deploy": {"resources": {"limits": LIMITS}},
        "ports": [{"host_ip": "127.0.0.1", "target": 50051}],
        "volumes": [{"type": "bind", "target": "/bundle", "read_only": True}, {"type": "volume", "target": "/data"}],
        **changes,
    }


def gpu(*profiles: str) -> dict[str, Any]:
    resources = {"limits": LIMITS, "reservations": {"devices": [{"driver": "nvidia"}]}}
    return service(profiles=list(profiles), deploy={"resources": resources})


def test_valid_composition_has_no_faults() -> None:
    assert list(faults({"services": {"server": service(profiles=["cpu"]), "server-gpu": gpu("gpu")}})) == []


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (service(ports=[{"target": 50051}]), "s publishes port 50051 beyond 127.0.0.1"),
        (service(ports=[{"host_ip": "0.0.0.0", "target": 1}]), "s publishes port 1 beyond 127.0.0.1"),
        (service(image="host:5000/server"), "s has image host:5000/server, which is not pinned"),
        (service(image="server:latest"), "s has image server:latest, which is not pinned"),
        (service(deploy={"resources": {"limits": {"cpus": 1}}}), "s has no CPU or memory limit"),
        (service(volumes=[{"type": "bind", "target": "/bundle"}]), "s may write to /bundle"),
        (gpu(), "GPUs are reserved by ['s']; only services of the profile gpu may, and all must"),
        (service(profiles=["gpu"]), "GPUs are reserved by []; only services of the profile gpu may, and all must"),
    ],
)
def test_each_fault_is_named(bad: dict[str, Any], fault: str) -> None:
    assert list(faults({"services": {"s": bad}})) == [fault]
