"""`replicas`: the digests of the parameters are compared across the devices that hold a copy each."""

import dataclasses
import math
from typing import ClassVar

import jax
import numpy as np

from ..machine.errors import InputError
from ..runs.steps import Address
from ..seam.digest import digest
from ..seam.leaves import Role, State
from ..seam.program import Program
from ..seam.report import StepReport
from .detector import Alarm, AnyDetector, differing
from .watch import Watcher


@dataclasses.dataclass(frozen=True)
class ReplicaSettings(AnyDetector):
    """The detector has no settings."""

    signals: ClassVar[tuple[str, ...]] = ()
    remembers = False


class ReplicaComparison(Watcher):
    """Raises an alarm where a device's copy of a parameter differs from the first device's.

    It sees nothing where the workers share one state, and nothing that reaches all copies alike: a
    gradient that was summed over the workers does.
    """

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        chosen = self.program.state.places(Role.PARAMETER)
        leaves = jax.tree.leaves(state)
        copies = [[shard.data for shard in leaves[i].addressable_shards] for i in chosen]
        digests = [np.asarray(_digest([parts[device] for parts in copies])) for device in range(len(copies[0]))]
        differ = [i for other in digests[1:] for k, i in enumerate(chosen) if other[k] != digests[0][k]]
        found = differing(self.number(at), [self.program.state.leaves[i].name for i in differ])
        return found, math.inf if found else 0.0


_digest = jax.jit(digest)


def replicas(program: Program) -> ReplicaSettings:
    """The detector of a program.

    Raises:
      InputError: there are no copies to compare.
    """
    if program.devices < 2:
        raise InputError("replicas compares the copies on several devices; this run has one device")
    if program.state.strategy.diverges:
        raise InputError("replicas compares copies; without a fault, the strategy of this run lets them differ")
    if "params" in program.state.strategy.sharded:
        raise InputError("replicas compares the copies on several devices; here each device has a piece of a parameter")
    return ReplicaSettings()
