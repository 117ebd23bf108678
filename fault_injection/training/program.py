"""The seam: what a run needs of the thing that is trained.  Nothing above it knows a network or a dataset."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental.multihost_utils import process_allgather

from models.dr_dna import Profile
from models.fault import Fault, Struck
from models.site import Site

from ..machine.errors import InputError
from .digest import digest, magnitude
from .packed import Packed

Array = jax.Array | np.ndarray  # on a device, or fetched from it
State = Any  # any pytree of arrays
Batch = Any  # any pytree of arrays

NONFINITE_RULES = ("loss", "state")  # what has to stay finite for a run to go on, see `finite`; the first by default


class Role(enum.StrEnum):
    """What a leaf of a state, or a tensor that a step looks at, is to a training run."""

    GRADIENT = "gradients"
    PARAMETER = "parameters"
    STATISTIC = "statistics"  # running statistics but for variances
    VARIANCE = "running_variance"
    HISTORY = "history"  # what an optimizer keeps of past gradients
    KEPT = "kept"  # what a step keeps of other leaves, to report it; no fault strikes it
    OTHER = "other"


class Leaf(NamedTuple):
    """A named array of a state, or a gradient.

    Attributes:
      name: unique, such as `params/conv1/kernel`.
      role: what it is to the run.
      moment: of a leaf of the optimizer's history, which moment it belongs to, such as `m`.
    """

    name: str
    role: Role = Role.OTHER
    moment: str = ""


class Measure(NamedTuple):
    """What a loss head measures: by this metric runs are compared and judged.

    Attributes:
      name: of the metric, such as `accuracy`; `loss` where the loss itself is the metric.
      better: `higher` or `lower`.
      chance: what guessing gives.
      tolerance: a run whose metric at the end is worse by no more than this is no worse.
      limits: smallest and largest possible value, None where there are none.
    """

    name: str
    better: str
    chance: float
    tolerance: float
    limits: tuple[float, float] | None = None

    def worse(self, golden: Array | float, faulty: Array | float) -> Any:
        """By how much `faulty` is worse than `golden`; negative where it is better.

        >>> Measure("accuracy", "higher", 0.1, 0.02).worse(0.75, 0.5)
        0.25
        >>> Measure("loss", "lower", 2.3, 0.05).worse(0.75, 0.5)
        -0.25
        """
        return golden - faulty if self.better == "higher" else faulty - golden

    def lead(self, value: Array | float) -> Any:
        """How much better than guessing `value` is."""
        return self.worse(value, self.chance)

    @property
    def span(self) -> float:
        """What a lead over guessing is small or large in comparison with.

        It is the distance between the limits, 1 for an accuracy.  A metric without limits, such as a
        loss, has the size of what guessing gives.

        >>> Measure("accuracy", "higher", 0.1, 0.02, (0.0, 1.0)).span
        1.0
        >>> Measure("loss", "lower", 2.3, 0.05).span
        2.3
        """
        return self.limits[1] - self.limits[0] if self.limits else abs(self.chance)


class Evaluation(NamedTuple):
    """Mean loss and metric over the test data."""

    loss: float
    metric: float


@struct.dataclass
class StepReport:
    """What a step says of itself.

    Attributes:
      loss, metric: of the global batch, before the update.
      digest: uint32 [leaves of the state], see `digest.digest`.
      magnitude: float32 [gradients, then leaves of the state], largest absolute value of each;
        NaN or infinite exactly where an array has a non-finite element.
      struck: what the fault did, None without fault support.
      tensors: observations asked for, with leading axis [R].
      reductions: those asked for, by `REDUCTION/KIND/NAME`, see `models.reductions`.
    """

    loss: Array
    metric: Array
    digest: Array
    magnitude: Array
    struck: Struck | None = None
    tensors: dict[str, Any] = struct.field(default_factory=dict)
    reductions: Mapping[str, Array] = struct.field(default_factory=dict)


def report(
    loss: jax.Array,
    metric: jax.Array,
    gradients: Any,
    state: State,
    struck: Struck | None = None,
    tensors: dict[str, Any] | None = None,
    reductions: Mapping[str, Array] | None = None,
    known: Mapping[str, tuple[jax.Array, jax.Array]] | None = None,
) -> StepReport:
    """The report of a step, made inside it.

    Args:
      loss, metric: scalars, of the global batch.
      gradients: any pytree of arrays; their magnitudes come first.
      state: the one that the step returns.
      known: digest and magnitude of leaves of the state, by name, that the step knows without looking at them.
    """
    known = known or {}
    leaves = dict(zip(leaf_names(state), jax.tree.leaves(state), strict=True))
    unknown = [leaf for name, leaf in leaves.items() if name not in known]
    digests, largest = digest(unknown), magnitude((gradients, unknown))
    if known:
        found = [known[name] for name in leaves if name in known]
        place = np.argsort(np.argsort([name in known for name in leaves], kind="stable"))  # of each leaf, then
        gradient, of_state = jnp.split(largest, [len(jax.tree.leaves(gradients))])
        digests = jnp.append(digests, jnp.stack([one for one, _ in found]))[place]
        largest = jnp.append(gradient, jnp.append(of_state, jnp.stack([one for _, one in found]))[place])
    return StepReport(loss, metric, digests, largest, struck, tensors or {}, Packed(reductions or {}))


@struct.dataclass
class Inference:
    """What a forward pass in evaluation says of a batch.

    Attributes:
      loss, metric: [R,b,…], of each target, whatever its weight.
      predicted: int32 [R,b,…], the class of the largest logit.
      struck: what the fault did, None without one.
      tensors: observations asked for, with leading axis [R].
      reductions: those asked for, by `REDUCTION/KIND/NAME`.
    """

    loss: Array
    metric: Array
    predicted: Array
    struck: Struck | None = None
    tensors: dict[str, Any] = struct.field(default_factory=dict)
    reductions: Mapping[str, Array] = struct.field(default_factory=dict)


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


def leaf_names(tree: Any) -> list[str]:
    """Names of a tree's leaves by their paths.

    >>> leaf_names({"params": {"fc": {"bias": 0, "kernel": 1}}})
    ['params/fc/bias', 'params/fc/kernel']
    """
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def abstract(tree: Any) -> Any:
    """Shapes and dtypes of a tree of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.result_type(leaf)), tree)


def fetched(tree: Any) -> Any:
    """Arrays on the host, whole: also those of which several processes hold a piece each, which all have to ask for.

    >>> fetched({"a": jnp.arange(2)})
    {'a': array([0, 1], dtype=int32)}
    """
    if jax.process_count() == 1:
        return jax.device_get(tree)

    def whole(leaf: Any) -> Any:
        here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
        return leaf if here else process_allgather(leaf, tiled=True)

    return jax.device_get(jax.tree.map(whole, tree))


def same_bits(one: State, other: State) -> bool:
    """Whether two states are equal bit by bit; as numbers, −0 would equal 0, and NaN nothing.

    Of several processes all have to ask.

    >>> same_bits([np.float32(0.0)], [np.float32(-0.0)])
    False
    """
    pairs = zip(*map(jax.tree.leaves, fetched((one, other))), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def finite(report: StepReport, rule: str) -> bool:
    """Whether the step saw finite values only.

    Args:
      rule: one of `NONFINITE_RULES`: `loss` looks at the loss alone, `state` at gradients and the
        whole state as well.
    """
    looked_at = [report.loss] if rule == "loss" else [report.loss, report.magnitude]
    return all(bool(np.isfinite(values).all()) for values in looked_at)
