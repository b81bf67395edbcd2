import pytest

from benchmarks.speed.overhead import Call, share_of, watched
from dragoman.bundle.runtime import onnxruntime


def test_the_share_is_what_the_graph_leaves_of_a_turn() -> None:
    calls = [Call(0.0, 0.9), Call(1.0, 1.8), Call(2.0, 2.9), Call(3.0, 9.0)]
    share = share_of(calls)  # the last call's turn has no end
    assert share.turn_seconds == 1.0
    assert share.graph_seconds == pytest.approx(0.9)
    assert share.outside == pytest.approx(0.1)


def test_without_a_whole_turn_there_is_no_share() -> None:
    with pytest.raises(ValueError, match="are 1: the engine did not step through bindings"):
        share_of([Call(0.0, 1.0)])


def test_the_runtime_is_watched_inside_only() -> None:
    before = onnxruntime.InferenceSession.run_with_iobinding
    with watched() as calls:
        assert onnxruntime.InferenceSession.run_with_iobinding is not before
    assert onnxruntime.InferenceSession.run_with_iobinding is before
    assert calls == []
