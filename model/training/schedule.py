"""The learning rate over a run."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to a peak, then half a cosine down to a small part of it."""

    peak: float
    """The highest learning rate."""

    warmup_steps: int
    """Steps from nothing to the peak."""

    floor: float = 0.005
    """What is left at the end, as a part of the peak."""

    def rate(self, step: int, progress: float) -> float:
        """The rate of step `step` (from 0), where `progress` in [0, 1] is the part of the run that is done."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return self.peak * warm * (self.floor + (1.0 - self.floor) * cosine)
