"""The seam: what a run needs of the thing that is trained.  Nothing above it knows a network or a dataset."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ..machine.errors import InputError
from ..models.fault import Fault, Faults
from .leaves import Batch, State
from .measure import Evaluation, Measure
from .outputs import Outputs
from .report import Inference, StepReport
from .state_spec import StateSpec


@dataclasses.dataclass(frozen=True)
class ForwardPasses:
    """Forward passes of a program's network in evaluation.

    Attributes:
      tests: the test data in batches, on the devices.
      infer: `(state, batch, fault or None) -> Inference`: one forward pass.  A fault strikes forward operations of
        the sites that the program was made for; its positions count in operands that have as many examples as
        the batch.
    """

    tests: Callable[[], list[Batch]]
    infer: Callable[[State, Batch, Fault | None], Inference]


def _unwatched(*_: Any) -> Any:
    raise InputError("the activations of this program cannot be watched; expected a network of `models/` or a Training")


@dataclasses.dataclass(frozen=True)
class Extras:
    """What some programs can do or say besides.

    Attributes:
      unreported: why steps cannot report a reduction, empty where they can; it may take steps to find out.
      remark: what is to be known of a reduction that steps report, empty where nothing is.
      gradient_scale: √(n / B²) of parameters by name, with n the number of partial sums in one of a parameter's
        gradients and B the examples of the global batch; empty where that is not known.
      undo: the state before a step, from the one after it and the step's report of whole gradients (the reduction
        `whole/parameter_gradients`), by the optimizer's algebraic inverse: up to rounding, and without running
        statistics, which stay as they are.  None where there is none.
      own_step: how far `step` is from the step that a user wrote, as JSON values with a `sentence`; it takes some
        steps.  Empty where they are the same.
      lower: what the program compiles, before compilation (`jax.stages.Lowered`), from shapes alone, by its name:
        `step`; `faulty_step`, with a fault of one element; where the program has them `evaluate`, of one batch, and
        `infer` without a fault.
      load: the state on the host that a checkpoint of the user's own has; None where nothing but files of ours, by the
        names of the leaves, is read.
      trains_without_statistics: whether it is known that no step reads a running statistic of a norm.
    """

    unreported: Callable[[str], str] = lambda reduction: ""
    remark: Callable[[str], str] = lambda reduction: ""
    gradient_scale: Callable[[], Mapping[str, float]] = dict
    undo: Callable[[State, StepReport], State] | None = None
    own_step: Callable[[], Mapping[str, Any]] = dict
    lower: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    load: Callable[[pathlib.Path], State] | None = None
    trains_without_statistics: bool = False


@dataclasses.dataclass(frozen=True)
class Program:
    """The functions of one workload on one set of devices, each compiled at its first call.

    A step is a pure function of a state, a batch and the address (epoch, step).  `step` and
    `faulty_step` compute the same bits while no fault strikes.

    Attributes:
      state: names, roles and shapes of the state's arrays, and who has a copy of it.
      steps_per_epoch: steps in each epoch.
      devices: how many it runs on.
      measure: what the loss head measures; it may have to read the data.
      data: hash of the data; it reads them.
      init: the state before the first step, on the host.
      place: puts a state of the host on the devices.
      batch: the batch of (epoch, step), on the devices.
      step: `(state, batch, epoch, step) -> state, report`; consumes the state's buffers.
      faulty_step: `(state, batch, epoch, step, fault) -> state, report`; the state survives, so
        that the control can start from it.  It can strike the sites that the program was made for.
      evaluate: loss and metric of a state on the test data.
      joined: the state on the devices that a strategy makes of what several loaders have read, see `start`; None
        where what loader 0 has read is the state.
      restated: the state with its leaves of the role `KEPT` brought up to date, after others were changed outside of
        a step.
      forward: its forward passes in evaluation; None where it is not known to have such passes.
      activations: elements of one example's activation by layer, in the order of the forward pass.  It raises
        InputError where the program cannot say.
      watching: the same program whose steps, and `infer` where it has that, watch activations after a profile
        (`models.observe.dr_dna.Profile`): they report the values that it names among the reductions; or the samples
        among the tensors, if the profile has no histograms yet.  It shares what is compiled; None watches nothing.
        It raises InputError where the program cannot watch.
      outputs: `(state, examples, measured) -> Outputs`: what a state says of test data, of so many examples or of all
        (None); if `measured`, how bad it is by the measure alone.
      extras: what else it can do or say.
    """

    state: StateSpec
    steps_per_epoch: int
    devices: int
    measure: Callable[[], Measure]
    data: Callable[[], str]
    init: Callable[[], State]
    place: Callable[[State], State]
    batch: Callable[[int, int], Batch]
    step: Callable[[State, Batch, int, int], tuple[State, StepReport]]
    faulty_step: Callable[[State, Batch, int, int, Faults], tuple[State, StepReport]]
    evaluate: Callable[[State], Evaluation]
    joined: Callable[[Callable[[int], State]], State] | None = None
    restated: Callable[[State], State] = lambda state: state
    forward: ForwardPasses | None = None
    activations: Callable[[], Mapping[str, int]] = _unwatched
    watching: "Callable[[Any], Program]" = _unwatched
    outputs: Callable[[State, int | None, bool], Outputs] | None = None
    extras: Extras = Extras()

    def start(self, load: Callable[[int], State]) -> State:
        """The state on the devices from which training starts.

        Args:
          load: gives one copy of the state on the host, as loader r has read it; the strategy decides what of it
            counts.  Several processes call `start` together, and each calls `load` for the loaders on its own devices.
        """
        return self.place(load(0)) if self.joined is None else self.joined(load)

    def forward_passes(self) -> ForwardPasses:
        """Its forward passes in evaluation; raises InputError where there are none."""
        if self.forward is None:
            raise InputError("this program has no forward passes in evaluation; expected a network of `models/`")
        return self.forward
