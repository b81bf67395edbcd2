import pytest

from benchmarks.speed.overhead import Call, record_calls, share_of
from dragoman.bundle.runtime import onnxruntime


def test_overhead_is_the_share_of_an_iteration_outside_the_graph() -> None:
    calls = [Call(0.0, 0.9), Call(1.0, 1.8), Call(2.0, 2.9), Call(3.0, 9.0)]
    share = share_of(calls)  # the last call's iteration has no end
    assert share.iteration_seconds == 1.0
    assert share.graph_seconds == pytest.approx(0.9)
    assert share.outside == pytest.approx(0.1)


def test_overhead_requires_a_complete_iteration() -> None:
    with pytest.raises(ValueError, match="are 1: the engine did not step through bindings"):
        share_of([Call(0.0, 1.0)])


def test_recording_restores_the_runtime_on_exit() -> None:
    before = onnxruntime.InferenceSession.run_with_iobinding
    with record_calls() as calls:
        assert onnxruntime.InferenceSession.run_with_iobinding is not before
    assert onnxruntime.InferenceSession.run_with_iobinding is before
    assert calls == []
