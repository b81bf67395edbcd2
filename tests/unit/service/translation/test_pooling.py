import numpy as np
import pytest

from dragoman.client.values import Pooling
from dragoman.service.translation.pooling import pool

STATES = np.array([[1.0, -4.0], [0.0, 2.0], [2.0, -1.0]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (Pooling.MEAN, [1.0, -1.0]),
        (Pooling.CLS, [1.0, -4.0]),
        (Pooling.MAX, [2.0, 2.0]),
        (Pooling.NONE, STATES.tolist()),
    ],
)
def test_pooling_equals_values_computed_by_hand(pooling: Pooling, expected: list[float]) -> None:
    pooled = pool(STATES, pooling, normalize=False)
    assert pooled.tolist() == expected
    assert pooled.dtype == np.float32


@pytest.mark.parametrize("pooling", list(Pooling))
def test_normalized_vectors_have_length_1(pooling: Pooling) -> None:
    pooled = pool(STATES, pooling, normalize=True)
    lengths = np.linalg.norm(pooled, axis=-1)
    np.testing.assert_allclose(lengths, np.ones_like(lengths), atol=1e-6)
    plain = pool(STATES, pooling, normalize=False)
    np.testing.assert_allclose(pooled * np.linalg.norm(plain, axis=-1, keepdims=True), plain, rtol=1e-6)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_zero_vector_stays_zero(pooling: Pooling) -> None:
    assert not pool(np.zeros((2, 3), np.float32), pooling, normalize=True).any()


def test_one_token_is_its_own_mean() -> None:
    assert pool(STATES[:1], Pooling.MEAN, normalize=False).tolist() == [1.0, -4.0]


def test_the_states_are_not_modified() -> None:
    states = STATES.copy()
    pool(states, Pooling.NONE, normalize=True)
    assert (states == STATES).all()


def test_a_long_mean_is_exact() -> None:
    states = np.full((512, 1), 0.1, np.float32)
    assert pool(states, Pooling.MEAN, normalize=False)[0] == np.float32(0.1)
