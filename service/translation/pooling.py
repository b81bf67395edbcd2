"""Pools the encoder's token states into one vector per text."""

import numpy as np
from numpy.typing import NDArray

from dragoman.client.values import Pooling


def pool(states: NDArray[np.float32], pooling: Pooling, normalize: bool) -> NDArray[np.float32]:
    """The vector [D] of one text, or with `Pooling.NONE` its vectors [S, D].

    `states` [S, D] hold the text's own tokens, end token last, without padding. `normalize` scales each vector to
    length 1 and leaves a zero vector unchanged.
    """
    pooled: NDArray[np.float64]
    match pooling:
        case Pooling.MEAN:
            pooled = states.mean(axis=0, dtype=np.float64)
        case Pooling.CLS:
            pooled = states[0].astype(np.float64)
        case Pooling.MAX:
            pooled = states.max(axis=0).astype(np.float64)
        case Pooling.NONE:
            pooled = states.astype(np.float64)
    if normalize:
        lengths = np.linalg.norm(pooled, axis=-1, keepdims=True)
        pooled = np.divide(pooled, lengths, out=pooled, where=lengths > 0)
    result: NDArray[np.float32] = pooled.astype(np.float32)
    return result
