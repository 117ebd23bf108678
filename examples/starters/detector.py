"""A detector of your own.  This command scores it, beside others, on faults of known consequence:

    fault-injection score PLAN.toml --detector NAME:detector --out DIR

It is pure: what it remembers is in the memory that it returns, and it changes nothing that it is given.  It sees the
fault-free steps up to a fault, the faulty step, and the steps after it; it is not told which is which.
"""

import numpy as np


class FarAbove:
    """An alarm where a value is `margin` times the largest so far.  It cannot see what stays below that.

    The first `warm_up` values are learned without an alarm: what starts at zero grows many times over at first.
    """

    signals = ("loss", "largest/state")  # EDIT: what it watches; docs/scoreboard.md#signals lists all kinds
    margin = 10.0  # EDIT
    warm_up = 8  # EDIT

    def init(self, names):
        """The memory before the first step.

        names: of the N values that each step has, such as "loss" and "params/fc/kernel".
        """
        return np.zeros((2, len(names)))  # EDIT: the largest value so far, and how many were learned

    def update(self, memory, values):
        """What one step gives.

        memory: before the step.
        values: float64 [N].  NaN and infinities are legal.

        Returns the memory after the step, and the excess [N]: each value in units of its threshold.  Above 1 is an
        alarm that stops the run; inf for what is not finite, and never NaN.
        """
        largest, learned = memory
        finite = np.isfinite(values)
        known = (learned >= self.warm_up) & (largest > 0)
        threshold = self.margin * np.where(known, largest, 1.0)
        excess = np.where(finite, np.where(known, np.abs(values) / threshold, 0.0), np.inf)  # EDIT
        calm = finite & (excess <= 1)  # what raises an alarm is not learned
        return np.where(calm, [np.maximum(largest, np.abs(values)), learned + 1], memory), excess


detector = FarAbove()
