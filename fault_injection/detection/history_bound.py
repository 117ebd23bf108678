"""`history_bound`: the optimizer's history, or a running variance, is larger than a fault-free step can make it.

Reference: He et al., ISCA 2023, and its artifact (docs/science.md; derivation in docs/detection.md).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..seam.leaves import MEANS, SQUARES, SUMS, Role
from ..seam.program import Program
from .activation_range import within
from .detector import Alarms, Array, Detector, namespace

DEVIATIONS = 20.0  # a fault-free sum beyond has a probability of 3e-89


class HistoryMemory(NamedTuple):
    """What a value may be, NaN where that is learned, and the largest so far; each [N]."""

    bound: Array
    largest: Array


@dataclasses.dataclass(frozen=True)
class HistoryBound(Detector):
    """Raises an alarm where a moment exceeds its bound, or a running variance what it has been.

    .. math::
      |m| ≤ 20 \\sqrt{n_l / B²}, \\qquad v ≤ (20 \\sqrt{n_l / B²})²

    with n_l the number of partial sums in one gradient of layer l and B the global batch.  Plain
    momentum has the first divided by 1 − μ.  An optimizer without history has its gradients looked
    at.  A running variance may be `margin` times the largest so far; one value has to be there.

    Attributes:
      bounds: by the name of the array.
      of: `history`, or `gradients_of_parameters` of an optimizer without history.
      margin: of running variances (ours).

    >>> from fault_injection.workloads.registry import make_workload
    >>> resnet = make_workload("resnet18", dataset="cifar10", width=64, batch_size=1024)
    >>> bounds = dict(history_bound(resnet.program()).bounds)
    >>> bounds["opt_state/m/basicblock_1_basic_0_conv1/kernel"]  # at 16x16 positions; 20 at 32x32
    10.0
    """

    bounds: tuple[tuple[str, float], ...]
    of: str = "history"
    margin: float = 10.0

    @property
    def signals(self) -> tuple[str, ...]:
        return (f"largest/{self.of}", "largest/running_variance")

    def init(self, names: Sequence[str]) -> HistoryMemory:
        known = dict(self.bounds)
        bound = np.array([known.get(name, math.nan) for name in names])
        return HistoryMemory(bound, np.full(len(names), math.nan))

    def update(self, memory: HistoryMemory, values: Array) -> tuple[HistoryMemory, Alarms]:
        xp = namespace(values)
        bound, largest = (xp.asarray(part) for part in memory)
        largest, alarms = within(bound, largest, values, self.margin)
        return HistoryMemory(bound, largest), alarms


def history_bound(program: Program, momentum: float = 0.9) -> HistoryBound:
    """The detector of a program.

    Args:
      momentum: μ of an optimizer with plain momentum.
    """
    scale, bounds = program.extras.gradient_scale(), {}
    watched = Role.HISTORY if program.state.moments else Role.GRADIENT
    for leaf in program.state.watched:
        parameter = _parameter(leaf.name, scale)
        if parameter is None or leaf.role != watched:
            continue
        first = DEVIATIONS * scale[parameter]
        if leaf.role == Role.GRADIENT or leaf.kind in MEANS:
            bounds[leaf.name] = first
        elif leaf.kind in SQUARES:
            bounds[leaf.name] = first**2
        elif leaf.kind in SUMS:
            bounds[leaf.name] = first / (1 - momentum)
    return HistoryBound(tuple(bounds.items()), "history" if program.state.moments else "gradients_of_parameters")


def _parameter(name: str, scale: Mapping[str, float]) -> str | None:
    """The parameter that an array of a state or of gradients belongs to: the longest name that ends its own."""
    fitting = [parameter for parameter in scale if name.endswith(f"/{parameter}")]
    return max(fitting, key=len, default=None)
