"""The precisions of a bundle, and the tolerances of each against its reference.

The reference is the PyTorch model in the same precision. In float32 the two differ by rounding in the seventh digit.
In int8 such a difference can move a value across the border between two of its 255 steps, so that single logits differ
visibly. In float16 it can move a value to the next float16, a step in the fourth digit: for a tiny checkpoint and for
the shipped one, states and logits came within 0.03, log-probabilities within 0.015. The loss of the precision itself is
checked separately, against float32.
"""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "int8", "float16"]


@dataclass(frozen=True)
class Tolerance:
    """Bounds on the differences between a reference and its export."""

    value: float
    """Largest difference of a state or a logit, relative to 1 or to the value, whichever is larger."""
    log_prob: float
    """Largest difference of a log-probability."""
    margin: float
    """If the two largest logits are closer than this, noise may decide between them: such a step proves nothing."""
    whole: float
    """Least share of texts that must be free of such steps."""
    replay_margin: float
    """`margin` on another machine than the reference's, where arithmetic differs more."""


TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(value=1e-3, log_prob=1e-3, margin=1e-3, whole=0.95, replay_margin=1e-2),
    "int8": Tolerance(value=0.5, log_prob=0.25, margin=0.25, whole=0.0, replay_margin=0.5),
    "float16": Tolerance(value=0.1, log_prob=0.05, margin=0.05, whole=0.0, replay_margin=0.25),
}


@dataclass(frozen=True)
class Loss:
    """Bounds on the loss of a reduced precision against float32."""

    agreement: float
    """Least share of steps, each after float32's own prefix, in which it chooses float32's token."""
    drop: float
    """Largest drop of the mean log-probability of float32's tokens."""
    cosine: float
    """Without a decoder: least mean cosine between a text's mean state and float32's."""


LOSSES: dict[Precision, Loss] = {
    "int8": Loss(agreement=0.97, drop=0.05, cosine=0.98),
    "float16": Loss(agreement=0.98, drop=0.01, cosine=0.999),
}
