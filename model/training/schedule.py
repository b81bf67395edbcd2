"""The learning rate schedule."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Learning rate: linear growth to a peak, then cosine decay to `floor` times the peak."""

    peak: float
    """The highest learning rate."""

    warmup_steps: int
    """Steps from zero to the peak."""

    floor: float = 0.005
    """The final rate, as a fraction of the peak."""

    def rate(self, step: int, progress: float) -> float:
        """The rate of step `step` (from 0); `progress` in [0, 1] is the completed fraction of the run."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return self.peak * warm * (self.floor + (1.0 - self.floor) * cosine)
