"""The seam: what a run needs of the thing that is trained.  Nothing above it knows a network or a dataset."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..machine.errors import InputError
from ..models.fault import Fault
from ..models.observe.dr_dna import Profile
from ..models.site import Site
from .leaves import Leaf, Role
from .measure import Evaluation, Measure
from .report import Inference, StepReport
from .trees import Batch, State


def _no_activations(*_: Any) -> Any:
    raise InputError("the activations of this program cannot be watched; expected a network of `models/`")


def _place_first(load: Callable[[int], State]) -> State:
    """Stands for a start that is to be made of `place`."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Program:
    """The functions of one workload on one set of devices, each compiled at its first call.

    A step is a pure function of a state, a batch and the address (epoch, step).  `step` and
    `faulty_step` compute the same bits while no fault strikes.

    Attributes:
      steps_per_epoch: steps in each epoch.
      abstract: shapes and dtypes of the state, as `jax.ShapeDtypeStruct`.
      leaves: names and roles of the state's leaves, in the order of `jax.tree.leaves`.
      gradients: names of the arrays whose magnitudes a report has before the state's.
      measure: what the loss head measures; it may have to read the data.
      data: hash of the data; it reads them.
      devices: how many it runs on.
      copies: workers that each have their own copy of the state, the leading axis of each leaf; 0 where all share one.
      init: the state before the first step, on the host.
      place: puts a state of the host on the devices.
      loaders: workers, or stages of a pipeline, that each load a checkpoint at the start.
      start: the state on the devices from which training starts, by the rule of the strategy, from `load(r)`: one
        copy of the state on the host, as loader r has read it.  Several processes call it together, and each
        calls `load` for the loaders on its own devices.
      diverges: whether the workers' copies differ without a fault.
      sharded: whether each device has a piece of a parameter, rather than all of it.
      batch: the batch of (epoch, step), on the devices.
      step: `(state, batch, epoch, step) -> state, report`; consumes the state's buffers.
      faulty_step: `(state, batch, epoch, step, fault) -> state, report`; the state survives, so
        that the control can start from it.  It can strike the sites that the program was made for.
      evaluate: loss and metric of a state on the test data.
      gradient_scale: √(n / B²) of parameters by name, with n the number of partial sums in one of a
        parameter's gradients and B the examples of the global batch; empty where that is not known.
      undo: the state before a step, from the one after it and the step's report of whole gradients
        (the reduction `whole/parameter_gradients`), by the optimizer's algebraic inverse: up to
        rounding, and without running statistics, which stay as they are.  None where there is none.
      restated: the state with its leaves of the role `KEPT` brought up to date, after others were changed outside of
        a step.
      own_step: how far `step` is from the step that a user wrote, as JSON values with a `sentence`; it takes some
        steps.  Empty where they are the same.
      reports: the reductions that steps can be asked to report.
      lower: the plain step before compilation, `jax.stages.Lowered`, for measurements; None where it is not known.
      lower_infer: the same of `infer` without a fault.
      tests: the test data in batches, on the devices.
      infer: `(state, batch, fault or None) -> Inference`: one forward pass in evaluation.  A fault
        strikes forward operations of the sites that the program was made for; its positions count
        in operands that have as many examples as the batch.
      exchanged: what `faulty_step` can strike between the passes and the new state, by name, where the program was
        made for it.
      activations: elements of one example's activation by forward operation, in the order of the pass.
      watching: the same program whose steps and `infer` watch activations after a profile: they
        report `dr_dna/activations/LAYER` among the reductions; or the samples among the tensors,
        if the profile has no histograms yet.  It shares what is compiled; None watches nothing.
    """

    steps_per_epoch: int
    abstract: State
    leaves: tuple[Leaf, ...]
    gradients: tuple[str, ...]
    measure: Callable[[], Measure]
    data: Callable[[], str]
    devices: int
    init: Callable[[], State]
    place: Callable[[State], State]
    batch: Callable[[int, int], Batch]
    step: Callable[[State, Batch, int, int], tuple[State, StepReport]]
    faulty_step: Callable[[State, Batch, int, int, Fault], tuple[State, StepReport]]
    evaluate: Callable[[State], Evaluation]
    gradient_scale: Callable[[], Mapping[str, float]] = dict
    restated: Callable[[State], State] = lambda state: state
    own_step: Callable[[], Mapping[str, Any]] = dict
    reports: frozenset[str] = frozenset()
    lower: Callable[[State, Batch], Any] | None = None
    lower_infer: Callable[[State, Batch], Any] | None = None
    undo: Callable[[State, StepReport], State] | None = None
    tests: Callable[[], list[Batch]] = _no_activations
    infer: Callable[[State, Batch, Fault | None], Inference] = _no_activations
    activations: Callable[[], Mapping[str, int]] = _no_activations
    exchanged: Callable[[], Mapping[str, Site]] = dict
    copies: int = 0
    loaders: int = 1
    start: Callable[[Callable[[int], State]], State] = _place_first
    diverges: bool = False
    sharded: bool = False
    watching: Callable[[Profile | None], "Program"] = _no_activations

    def __post_init__(self) -> None:
        if self.start is _place_first:
            object.__setattr__(self, "start", lambda load: self.place(load(0)))

    def single(self, state: State, worker: int) -> State:
        """One worker's copy of a state; the state itself where all workers share it.

        Args:
          state: such as a checkpoint of a golden run, on the host.
        """
        return jax.tree.map(lambda leaf: leaf[worker], state) if self.copies else state

    @functools.cached_property
    def watched(self) -> tuple[Leaf, ...]:
        """What the magnitudes of a report belong to: the gradients, then the state's leaves."""
        return (*(Leaf(name, Role.GRADIENT) for name in self.gradients), *self.leaves)

    def positions(self, role: Role, moment: str = "") -> list[int]:
        """Positions among the magnitudes of all arrays of a role; of one moment, if one is named."""
        return [i for i, leaf in enumerate(self.watched) if leaf.role == role and moment in ("", leaf.moment)]

    @property
    def moments(self) -> list[str]:
        """The moments of the optimizer's history, in the order of the state."""
        return list(dict.fromkeys(leaf.moment for leaf in self.leaves if leaf.role == Role.HISTORY))

    @property
    def state_bytes(self) -> int:
        """Size of a state."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.abstract))
