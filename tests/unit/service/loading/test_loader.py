import sys
import types
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.bundle.manifest import Bundle, BundleError
from dragoman.service.cli import main
from dragoman.service.engine.providers import CudaOptions, ProviderError
from dragoman.service.errors import StartupError
from dragoman.service.loading import runtime_check
from dragoman.service.loading.loader import load_model, verify_model
from dragoman.service.loading.runtime_check import INSTALL_RUNTIME, as_configured, check_runtime
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import manifest, write_bundle, write_tokenizer


def install(monkeypatch: pytest.MonkeyPatch, *distributions: str) -> None:
    """Pretend that exactly these runtimes are installed."""

    def version(name: str) -> str:
        if name not in distributions:
            raise PackageNotFoundError(name)
        return "9.9"

    monkeypatch.setattr(runtime_check, "version", version)
    module = types.SimpleNamespace(onnxruntime=types.SimpleNamespace(__version__="9.9")) if distributions else None
    monkeypatch.setitem(sys.modules, "dragoman.bundle.runtime", module)


def bring(monkeypatch: pytest.MonkeyPatch, module: str, **content: Any) -> None:
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**content))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    write_tokenizer(tmp_path / "tokenizer")
    write_bundle(tmp_path)
    return Bundle(tmp_path, manifest())


@pytest.mark.parametrize("distribution", ["onnxruntime", "onnxruntime-gpu"])
def test_a_single_runtime_gives_its_version(monkeypatch: pytest.MonkeyPatch, distribution: str) -> None:
    install(monkeypatch, distribution)
    assert check_runtime() == "9.9"


def test_a_missing_runtime_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(StartupError) as caught:
        check_runtime()
    assert str(caught.value) == f"ONNX Runtime is not installed: {INSTALL_RUNTIME}"


def test_two_runtimes_in_one_folder_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "onnxruntime", "onnxruntime-gpu")
    with pytest.raises(StartupError, match="are both installed, in one folder: uninstall both, then pip install"):
        check_runtime()


class Loaded(FakeRunner):
    provider = "CPUExecutionProvider"

    def __init__(self, bundle: Bundle, *, provider: str, threads: int, max_rows: int, cuda: CudaOptions) -> None:
        super().__init__(max_rows)


class NoDevice(Loaded):
    def __init__(self, bundle: Bundle, *, provider: str, threads: int, max_rows: int, cuda: CudaOptions) -> None:
        raise ProviderError("provider cuda is asked for, and there is no device")


class NoGraph(Loaded):
    def __init__(self, bundle: Bundle, *, provider: str, threads: int, max_rows: int, cuda: CudaOptions) -> None:
        raise RuntimeError("Load model failed:\n  Protobuf parsing failed.\n")


def test_the_provider_reported_is_the_one_in_use(monkeypatch: pytest.MonkeyPatch, bundle: Bundle) -> None:
    install(monkeypatch, "onnxruntime")
    bring(monkeypatch, "dragoman.service.engine.ort_runner", OrtRunner=Loaded)
    model = load_model(bundle, ServerSettings(provider="auto"))
    assert (model.provider, model.runtime_version) == ("CPUExecutionProvider", "9.9")
    assert model.load_seconds >= 0
    assert model.warmup_seconds >= 0


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        (NoDevice, "provider cuda is asked for, and there is no device"),
        (NoGraph, "the model could not be loaded: RuntimeError: Load model failed: Protobuf parsing failed."),
    ],
)
def test_a_load_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, bundle: Bundle, runner: type[FakeRunner], message: str
) -> None:
    install(monkeypatch, "onnxruntime")
    bring(monkeypatch, "dragoman.service.engine.ort_runner", OrtRunner=runner)
    with pytest.raises(StartupError) as caught:
        load_model(bundle, ServerSettings(provider="cuda"))
    assert str(caught.value) == message


class VerificationError(Exception):
    pass


def bring_verification(monkeypatch: pytest.MonkeyPatch, outcome: Exception | tuple[Any, ...]) -> None:
    def verify_bundle(bundle: Bundle, *, threads: int, provider: str, progress: Callable[[str], None] | None) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    install(monkeypatch, "onnxruntime")
    bring(monkeypatch, "dragoman.bundle.verify", verify_bundle=verify_bundle, VerificationError=VerificationError)


VERIFICATIONS = [
    (
        VerificationError("golden answers: text 3 differs"),
        "the bundle failed its verification: golden answers: text 3 differs",
    ),
    (
        BundleError("golden.json: not JSON\n at 1"),
        "the bundle could not be verified: BundleError: golden.json: not JSON at 1",
    ),
]


@pytest.mark.parametrize(("outcome", "message"), VERIFICATIONS)
def test_a_failed_verification_names_the_check(
    monkeypatch: pytest.MonkeyPatch, bundle: Bundle, outcome: Exception, message: str
) -> None:
    bring_verification(monkeypatch, outcome)
    with pytest.raises(StartupError) as caught:
        verify_model(bundle, threads=1)
    assert str(caught.value) == message


@pytest.mark.parametrize(("outcome", "message"), VERIFICATIONS)
def test_the_verify_command_prints_a_failure_in_one_line(
    monkeypatch: pytest.MonkeyPatch, bundle: Bundle, outcome: Exception, message: str
) -> None:
    bring_verification(monkeypatch, outcome)
    result = CliRunner().invoke(main, ["verify", str(bundle.folder)])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")


def test_the_verify_command_ends_with_a_table(monkeypatch: pytest.MonkeyPatch, bundle: Bundle) -> None:
    checks = (types.SimpleNamespace(name="golden", detail="64 texts"), types.SimpleNamespace(name="alone", detail="ok"))
    bring_verification(monkeypatch, checks)
    result = CliRunner().invoke(main, ["verify", str(bundle.folder)])
    assert (result.exit_code, result.stdout) == (0, "golden  64 texts\nalone   ok\n")


@pytest.mark.parametrize(
    ("wanted", "provider", "has_device", "met"),
    [
        ("cpu", "CPUExecutionProvider", True, True),
        ("cuda", "CPUExecutionProvider", True, False),
        ("cuda", "CUDAExecutionProvider", True, True),
        ("auto", "CPUExecutionProvider", True, False),
        ("auto", "CUDAExecutionProvider", True, True),
        ("auto", "CPUExecutionProvider", False, True),
    ],
)
def test_the_cpu_meets_auto_only_without_a_gpu(wanted: str, provider: str, has_device: bool, met: bool) -> None:
    assert as_configured(wanted, provider, has_device) is met
