"""`probe`: every n-th step a fixed input passes through the network, and its answer may not move too far at once.

Reference: the idea is LM-Fix's (MIT), which hashes the answers of a network that stands still (docs/detection.md).
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..runs.steps import Address
from ..seam.leaves import State
from ..seam.program import Program
from ..seam.report import StepReport
from .detector import Alarm, Memory, told
from .spike import Spike
from .watch import Watcher

NAME = "probe"


@dataclasses.dataclass(frozen=True)
class ProbeSettings(Spike):
    """Settings of the detector: `Spike`'s, of the distance between one answer and the next.

    Attributes:
      every: n; steps are counted over all epochs, and after number n − 1 is the first probe.
    """

    signals: ClassVar[tuple[str, ...]] = ()

    window: int = 20
    deviations: float = 20.0
    floor: float = 0.1
    warm_up: int = 5
    every: int = 5


class Probed(NamedTuple):
    """What the watch knows between two steps: the answer before, and the memory of its distances."""

    answer: jax.Array
    distances: Memory


class Probe(Watcher):
    """Asks the network the same question every n-th step.

    The answer is the loss of each example of the first test batch, in evaluation: with the running statistics, which no
    training step reads.  Of a training whose forward pass is not known by itself it is the loss of its `evaluate`.  The
    distance of two answers is the root mean square of their difference; a `Spike` of distances raises an alarm.
    """

    detector: ProbeSettings

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        number = self.number(at)
        if (number + 1) % self.detector.every:
            return [], 0.0
        answer, known = _answer(self.program, state), self.memory
        if known is None:
            distances, distance = self.detector.init([NAME]), jnp.where(jnp.isfinite(answer).all(), 0.0, jnp.nan)
        else:
            distances, distance = known.distances, _distance(answer, known.answer)
        value = np.asarray(jax.device_get(distance), np.float64)[None]
        if known is None and np.isfinite(value[0]):  # there is nothing to compare with
            self.memory = Probed(answer, distances)
            return [], 0.0
        with np.errstate(all="ignore"):
            distances, alarms = self.detector.update(distances, value)
        self.memory = Probed(answer if np.isfinite(value[0]) or known is None else known.answer, distances)
        return told(number, [NAME], value, alarms), float(alarms.excess[0])


def _answer(program: Program, state: State) -> Any:
    if program.forward is None:
        return jnp.float32(program.evaluate(state).loss)
    return program.forward.infer(state, program.forward.tests()[0], None).loss


@jax.jit
def _distance(one: jax.Array, other: jax.Array) -> jax.Array:
    difference = one.astype(jnp.float32) - other.astype(jnp.float32)
    return jnp.sqrt(jnp.mean(difference * difference))
