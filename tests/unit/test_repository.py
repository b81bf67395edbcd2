import ast
import re
import tomllib
from collections.abc import Iterator
from distutils.core import run_setup
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PARTS = ("bundle", "model", "export", "client", "service")
PROTOS = ROOT / "protos" / "dragoman" / "v1"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def floor(requirements: list[str], name: str) -> str:
    (requirement,) = (r for r in map(Requirement, requirements) if r.name == name)
    (specifier,) = (s for s in requirement.specifier if s.operator == ">=")
    return specifier.version


def names(requirements: list[str]) -> set[str]:
    return {Requirement(requirement).name for requirement in requirements}


def test_every_folder_with_code_is_packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    packaged = run_setup("setup.py", stop_after="init").package_dir
    with_code = {path.parent.relative_to(ROOT) for part in PARTS for path in (ROOT / part).rglob("*.py")}
    assert packaged == {
        "dragoman.v1": "protos/dragoman/v1",
        **{f"dragoman.{'.'.join(folder.parts)}": folder.as_posix() for folder in with_code},
    }


def test_every_part_is_marked_as_typed() -> None:
    markers = [*(ROOT / part / "py.typed" for part in PARTS), PROTOS / "py.typed"]
    assert [marker for marker in markers if not marker.is_file()] == []


def called(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            yield ast.unparse(call.func), call


def test_no_file_is_read_in_a_way_that_could_run_what_it_holds() -> None:
    """Bundles and checkpoints come from anywhere."""
    running = {"eval", "exec", "compile", "__import__", "np.load", "numpy.load", "torch.jit.load", "yaml.load"}
    faults = []
    for path in (path for part in PARTS for path in (ROOT / part).rglob("*.py")):
        tree = ast.parse(path.read_text())
        faults += [f"{path}: {name}" for name, _ in called(tree) if name in running or name.startswith("pickle.")]
        faults += [
            f"{path}: {name} without weights_only"
            for name, call in called(tree)
            if name == "torch.load"
            and not any(each.arg == "weights_only" and ast.unparse(each.value) == "True" for each in call.keywords)
        ]
        faults += [
            f"{path}: {word}" for word in ("trust_remote_code", "register_custom_ops") if word in path.read_text()
        ]
    assert faults == []


def test_floors_are_what_generated_code_demands(project: dict[str, Any]) -> None:
    messages, service = ((PROTOS / f"translation_pb2{kind}.py").read_text() for kind in ("", "_grpc"))
    protobuf = re.search(r"^# Protobuf Python Version: (\S+)$", messages, re.MULTILINE)
    grpcio = re.search(r"^GRPC_GENERATED_VERSION = '(\S+)'$", service, re.MULTILINE)
    assert protobuf
    assert grpcio
    assert floor(project["dependencies"], "protobuf") == protobuf[1]
    grpc_family = sorted(name for name in names(project["dependencies"]) if name.startswith("grpcio"))
    assert {name: floor(project["dependencies"], name) for name in grpc_family} == dict.fromkeys(grpc_family, grpcio[1])


def test_a_client_installs_no_runtime_and_no_torch(project: dict[str, Any]) -> None:
    assert names(project["dependencies"]).isdisjoint({"onnx", "onnxruntime", "onnxruntime-gpu", "onnxscript", "torch"})


def test_only_the_extras_cpu_and_gpu_bring_a_runtime_and_share_nothing(project: dict[str, Any]) -> None:
    runtimes = {
        extra: sorted(name for name in names(requirements) if name.startswith("onnxruntime"))
        for extra, requirements in project["optional-dependencies"].items()
    }
    assert {extra: found for extra, found in runtimes.items() if found} == {
        "cpu": ["onnxruntime"],
        "gpu": ["onnxruntime-gpu"],
    }
    extras = project["optional-dependencies"]
    assert names(extras["cpu"]).isdisjoint(names(extras["gpu"]))


def test_export_and_train_pin_one_torch(project: dict[str, Any]) -> None:
    pins = {
        extra: [requirement for requirement in project["optional-dependencies"][extra] if "torch" in requirement]
        for extra in ("export", "train")
    }
    assert pins["export"] == pins["train"]
    assert len(pins["export"]) == 1
    assert pins["export"][0].startswith("torch==")


def test_every_command_of_another_part_loads(project: dict[str, Any]) -> None:
    commands = entry_points(group="dragoman.commands")
    assert set(commands.names) == set(project["entry-points"]["dragoman.commands"])
    for command in commands:
        assert isinstance(command.load(), click.Command)


def locked(name: str) -> dict[str, tuple[str, int]]:
    """The release of each package in a lock of the image, and how many wheels it may come from."""
    lines = (ROOT / "deploy" / "image" / f"{name}.lock").read_text().replace("\\\n", "").splitlines()
    found = {}
    for line in (line for line in lines if not line.startswith("#")):
        pin, *hashes = line.split()
        package, version = pin.split("==")
        assert hashes == re.findall(r"--hash=sha256:[0-9a-f]{64}", line), line
        found[package] = (version, len(hashes))
    return found


def needs(project: dict[str, Any], lock: str) -> list[str]:
    """What the project asks of the environment that a lock makes."""
    if lock == "build":
        building: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        return building
    extras = project["optional-dependencies"]
    wanted: list[str] = project["dependencies"] + extras[lock] + extras["traces"]
    return wanted


@pytest.mark.parametrize("lock", ["build", "cpu", "gpu"])
def test_the_image_is_made_of_releases_that_the_project_takes(project: dict[str, Any], lock: str) -> None:
    pins = locked(lock)
    wanted = map(Requirement, needs(project, lock))
    unfit = [str(want) for want in wanted if want.name not in pins or pins[want.name][0] not in want.specifier]
    assert unfit == []


@pytest.mark.parametrize("lock", ["build", "cpu", "gpu"])
def test_every_wheel_of_the_image_is_known_by_its_hash_wherever_it_comes_from(lock: str) -> None:
    assert [name for name, (_, wheels) in locked(lock).items() if not wheels] == []
    text = (ROOT / "deploy" / "image" / f"{lock}.lock").read_text()
    assert "://" not in text
    assert "index" not in text


def test_both_variants_of_the_image_differ_in_their_runtime_alone() -> None:
    cpu, gpu = locked("cpu"), locked("gpu")
    different = {name for name in cpu.keys() | gpu.keys() if cpu.get(name) != gpu.get(name)}
    assert {name for name in different if not name.startswith("nvidia-")} == {"onnxruntime", "onnxruntime-gpu"}
