"""The precisions of a bundle, and how near to its reference each has to stay.

The reference is the PyTorch model in the same precision. In float32 the two differ by rounding in the seventh digit.
In int8 such a difference can move a value over the border between two of its 255 steps, so that single logits differ
visibly. In float16 it can move one to the next float16, a step of the fourth digit: in a tiny checkpoint and in the one
that we ship, states and logits came within 0.03, log-probabilities within 0.015. How much the precision itself costs is
a check of its own, against float32.
"""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "int8", "float16"]


@dataclass(frozen=True)
class Tolerance:
    """Bounds on the way from a reference to its export."""

    value: float
    """By how much a state or a logit may differ, relative to 1 or to the value itself."""
    log_prob: float
    """By how much a log-probability may differ."""
    margin: float
    """Where the two largest logits lie closer than this, noise may decide between them: nothing is proven there."""
    whole: float
    """The least part of the texts that must be free of such steps."""
    replay_margin: float
    """The same on another machine than the reference's, whose arithmetic differs by more."""


TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(value=1e-3, log_prob=1e-3, margin=1e-3, whole=0.95, replay_margin=1e-2),
    "int8": Tolerance(value=0.5, log_prob=0.25, margin=0.25, whole=0.0, replay_margin=0.5),
    "float16": Tolerance(value=0.1, log_prob=0.05, margin=0.05, whole=0.0, replay_margin=0.25),
}


@dataclass(frozen=True)
class Loss:
    """What a reduced precision may lose against float32."""

    agreement: float
    """Of the steps with the same prefix, the least part in which it must choose as float32 does."""
    drop: float
    """By how much the mean log-probability of float32's tokens may drop."""
    cosine: float
    """Without a decoder: the least mean cosine of a text's mean state with float32's."""


LOSSES: dict[Precision, Loss] = {
    "int8": Loss(agreement=0.97, drop=0.05, cosine=0.98),
    "float16": Loss(agreement=0.98, drop=0.01, cosine=0.999),
}
