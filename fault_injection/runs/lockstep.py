"""Two runs in lockstep: each step of a faulty run is taken beside the same step of its golden run, and both compared.

Both are taken by one executable, which tells the whole results of its operations: the golden one with an inactive
fault.  What they tell is reduced on the devices, and only numbers leave them.  The tensors of both steps are alive
until that is done: a step takes about twice the memory for activations that a backward pass keeps, and two states.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..models.fault import Fault, Faults, as_one, each_of, inactive_fault
from ..models.observe.difference import TensorDifference, differences
from ..models.observe.reductions import RESULTS, WHOLE
from ..seam.leaves import Batch, State
from ..seam.program import Program
from ..seam.report import StepReport
from .steps import Address

Step = Callable[[State, Batch, int, int, Faults], tuple[State, StepReport]]
Check = Callable[[Address, StepReport], object]


class StepDifferences(NamedTuple):
    """How the tensors of one step differ from the golden ones.

    Attributes:
      at: the step.
      differences: of each tensor that was told or is part of the state after it, by name: numbers of the host.
      sizes: elements of each.
      loss: of the golden step and of the faulty one.
    """

    at: Address
    differences: dict[str, TensorDifference]
    sizes: dict[str, int]
    loss: tuple[float, float]


class Lockstep:
    """Takes steps of a faulty run beside the golden run's.

    Attributes:
      program: the golden run's, but for its steps, which are these: a faulty run's `Course` is given it.
      compared: of each step taken, in their order.

    Args:
      program: the golden run's.
      telling: a step that can be struck, and tells whole results.
      state: the golden state before the first step.
      inactive: a fault that strikes nothing, of a kind for which `telling` is compiled anyway; None if any will do.
      check: compares what each golden step says with the golden run's record, and raises where they differ.
    """

    def __init__(self, program: Program, telling: Step, state: State, inactive: Fault | None, check: Check):
        self._check, self._telling, self._inactive = check, telling, inactive or inactive_fault()
        self._state, self._names = state, program.state.names
        self.program: Program = dataclasses.replace(program, step=self._unstruck, faulty_step=self._struck)
        self.compared: list[StepDifferences] = []

    def _unstruck(self, state: State, batch: Batch, epoch: int, step: int) -> tuple[State, StepReport]:
        new, told = self._both(state, batch, Address(epoch, step), self._inactive)
        return new, told._replace(struck=None)

    def _struck(self, state: State, batch: Batch, epoch: int, step: int, fault: Faults) -> tuple[State, StepReport]:
        return self._both(state, batch, Address(epoch, step), fault)

    def _both(self, state: State, batch: Batch, at: Address, fault: Faults) -> tuple[State, StepReport]:
        """The faulty step and its report, without what was only told to be compared."""
        kinds = ((len(one.index), None, one.keep.dtype, one.rule is not None) for one in each_of(fault))
        calm = as_one(tuple(inactive_fault(*kind) for kind in kinds))  # which the same executable takes
        self._state, clean = self._telling(self._state, batch, *at, calm)
        new, told = self._telling(state, batch, *at, fault)
        ours, theirs = self._tensors(self._state, clean), self._tensors(new, told)
        counts, magnitudes = differences([*ours.values()], [theirs[name] for name in ours])
        sizes = {name: int(np.prod(tensor.shape)) for name, tensor in ours.items()}
        told, clean = (each._replace(tensors={}, reductions={}) for each in (told, clean))
        counts, magnitudes, losses, clean = jax.device_get((counts, magnitudes, (clean.loss, told.loss), clean))
        self._check(at, clean)
        found = {name: TensorDifference(*counts[i], *magnitudes[i]) for i, name in enumerate(ours)}
        self.compared.append(StepDifferences(at, found, sizes, (float(losses[0]), float(losses[1]))))
        return new, told

    def _tensors(self, state: State, told: StepReport) -> dict[str, Any]:
        """The tensors of a step by name: results of operations, the loss, gradients, and the state after it."""
        whole = {f"gradient{name.removeprefix(WHOLE)}": each for name, each in told.reductions.items()}
        leaves: Sequence[Any] = jax.tree.leaves(state)
        return told.tensors[RESULTS] | {"loss": told.loss} | whole | dict(zip(self._names, leaves, strict=True))
