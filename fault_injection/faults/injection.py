"""An injection: one fault, or several, each at one (epoch, step) of one workload."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ..models.bits import NewBits, unstruck
from ..models.fault import INACTIVE, LARGEST_OPERAND, Fault, Operand
from ..models.site import Site, TensorSpec, make_fault, ruled_fault
from ..seam.measure import NONFINITE_RULES
from ..seam.stages import CHECKPOINT, GRADIENT, STATE, UPDATE, WORKER_GRADIENT
from ..seam.workload import Workload
from .element_bits import ElementBits, Position, format_new_bits, format_position, from_masks, ravel, to_masks, unravel
from .fault_models import FAULT_MODELS
from .number_formats import format_of
from .profiles.profile import DefectProfile
from .schedule import ONCE, Schedule

STAGES = {"fwrd_inject": "forward", "bkwd_inject": "backward"}  # of operations, as files name them
ALL = INACTIVE  # all workers, which share what is struck
# When a leaf is struck, by its stage and whether all workers share it; the number is the worker's.
WHEN = {
    (STATE, True): "before the step reads the state",
    (STATE, False): "before worker {} reads its copy of the state",
    (CHECKPOINT, True): "in the checkpoint from which the run restarts",
    (CHECKPOINT, False): "in the checkpoint that worker {} loads as the run restarts",
    (WORKER_GRADIENT, False): "before the gradient of worker {} is added to those of the others",
    (GRADIENT, True): "before the optimizer reads the summed gradient",
    (UPDATE, True): "before the update is added to the parameters",
}


@dataclasses.dataclass(frozen=True)
class Injection:
    """A fault at one (epoch, step) of one workload, or from there on; and perhaps further faults of the same training.

    It strikes an operand of an operation, or a leaf: of the state before the step reads it, of a
    gradient, or of the update.  What the elements become is said by their values or by their bits,
    never by both.

    >>> from fault_injection.workloads.registry import make_workload
    >>> injection = Injection(
    ...     workload=make_workload("resnet18_nobn"),
    ...     stage="fwrd_inject", fmodel="RD", worker=1, layer="fc", epoch=2, step=0, positions=((0, 3),), values=(1e9,)
    ... )
    >>> injection.fault().flip.view(np.float32)
    array([1.e+09], dtype=float32)
    >>> print(injection.sentence())
    In epoch 2, step 0 of resnet18_nobn on cifar10, in the forward pass of worker 1, element 0/3 becomes 1000000000.0 \
in the output [128×10] of fc.

    Attributes:
      workload: with all its options.
      stage: `fwrd_inject`, `bkwd_inject`, or the stage of a leaf, such as `state`.
      fmodel: published name of the fault model; it selects the operand.  Empty for a leaf.
      worker, epoch, step: where, counted from 0; `ALL` workers share the state, the summed gradient and the update.
      layer: name of the site, or of the leaf.
      positions: coordinates in the operand of one worker, or in the leaf, at least one; none with a profile.
      values: what each of them becomes, rounded to the operand's type.
      bits: what becomes of the bits of each.
      horizon: steps to go on after the fault; None goes on to the end of the training.
      nonfinite: one of `NONFINITE_RULES`: what ends the run when it is not finite.
      schedule: when it strikes again after its first step.
      profile: a defect profile, which says in place of positions, values and bits what is struck.
      draw: tells devices of one profile apart, see `DefectProfile.rule`.
      also: further faults of the same workload, horizon and rule, in the order of `together`, none with further ones.
        All else that is said here is said of the first fault.

    Raises:
      ValueError: values and bits are both given or both absent, or are not one for each position;
        `nonfinite` is no rule; or the faults in `also` do not go with it.
    """

    workload: Workload
    stage: str
    fmodel: str
    worker: int
    layer: str
    epoch: int
    step: int
    positions: tuple[Position, ...]
    values: tuple[float, ...] = ()
    bits: tuple[ElementBits, ...] = ()
    horizon: int | None = None
    nonfinite: str = "loss"
    schedule: Schedule = ONCE
    profile: DefectProfile | None = None
    draw: int = 0
    also: "tuple[Injection, ...]" = ()

    def __post_init__(self) -> None:
        if self.profile is not None and (self.values or self.bits or self.positions):
            raise ValueError("a profile says what is struck, and takes neither positions nor values nor bits")
        if self.profile is None and bool(self.values) == bool(self.bits):
            raise ValueError("an injection has either values or bits")
        if len(self.values or self.bits) != len(self.positions):
            raise ValueError(f"{len(self.values or self.bits)} values or bits for {len(self.positions)} positions")
        if self.nonfinite not in NONFINITE_RULES:
            raise ValueError(f"nonfinite {self.nonfinite!r}; expected one of {', '.join(NONFINITE_RULES)}")
        shared = operator.attrgetter("workload", "horizon", "nonfinite")
        if any(one.also or shared(one) != shared(self) for one in self.also):
            raise ValueError("further faults have the workload, the horizon and the rule of the first, and no others")
        if list(self.every) != sorted(self.every, key=_order):
            raise ValueError("the fault that strikes first stands first; see Injection.together")
        for one, other in itertools.combinations(self.every, 2):
            if (problem := clash(one, other)) is not None:
                raise ValueError(problem)

    @classmethod
    def drawn(
        cls,
        *,
        workload: Workload,
        site: Site,
        fmodel: str,
        worker: int,
        epoch: int,
        step: int,
        bits: NewBits | None,
        profile: DefectProfile | None = None,
        draw: int = 0,
        horizon: int | None = None,
        nonfinite: str = "loss",
        schedule: Schedule = ONCE,
    ) -> Self:
        """The injection whose fault a fault model drew; `fault()` of it is that fault, bit by bit.

        Args:
          site: one of `workload.sites()`.
          fmodel: empty with a profile.
          bits: what becomes of which elements of the operand of the one worker; None with a profile.
          profile, draw: in place of a fault model.

        Raises:
          ValueError: a position lies outside the operand, or the masks are none that a fault model draws.
        """
        of_operation = site.stage in STAGES.values()
        drawn: dict[str, Any] = {"profile": profile, "draw": draw, "positions": ()}
        if bits is not None:
            tensor = site.operands[FAULT_MODELS[fmodel].operand if of_operation else Operand.INPUT]
            drawn = {"positions": tuple(unravel(bits.index, tensor.shape)), "bits": from_masks(bits, tensor)}
        return cls(
            workload=workload,
            stage=next((published for published, stage in STAGES.items() if stage == site.stage), site.stage),
            fmodel=fmodel if of_operation else "",
            worker=worker,
            layer=site.name,
            epoch=epoch,
            step=step,
            **drawn,
            horizon=horizon,
            nonfinite=nonfinite,
            schedule=schedule,
        )

    @classmethod
    def together(cls, *faults: "Injection") -> "Injection":
        """One injection of several faults, whatever their order: the one that strikes first stands first.

        >>> from fault_injection.workloads.registry import make_workload
        >>> place = {"workload": make_workload("resnet18"), "stage": "fwrd_inject", "fmodel": "RD", "worker": 1}
        >>> later = Injection(**place, layer="fc", epoch=2, step=0, positions=((0, 3),), values=(1e9,))
        >>> sooner = dataclasses.replace(later, epoch=1)
        >>> both = Injection.together(later, sooner)
        >>> both.epoch, [one.epoch for one in both.every], both == Injection.together(sooner, later)
        (1, [1, 2], True)

        Raises:
          ValueError: they are not of one workload, horizon and rule, or two strike the same at one step.
        """
        first, *others = sorted(faults, key=_order)
        return dataclasses.replace(first, also=tuple(others))

    @property
    def every(self) -> "tuple[Injection, ...]":
        """Each fault as an injection by itself, the one that strikes first as the first."""
        return (dataclasses.replace(self, also=()), *self.also) if self.also else (self,)

    def changed(self, change: "Callable[[Injection], Injection]") -> "Injection":
        """The injection in which each fault has been changed by a function of it alone."""
        return self.together(*map(change, self.every))

    @property
    def operand(self) -> Operand:
        """The operand struck; that of a leaf is `INPUT`, because the step reads it."""
        if self.profile is not None:
            return self.profile.operand
        return Operand.INPUT if self.of_leaf else FAULT_MODELS[self.fmodel].operand

    @property
    def of_leaf(self) -> bool:
        """Whether a leaf is struck, and not an operation."""
        return self.stage not in STAGES

    @property
    def site(self) -> Site:
        """The operation, or the leaf, that is struck, with its operands' shapes."""
        return self.workload.target(self.layer)

    @property
    def tensor(self) -> TensorSpec:
        """Shape and type of the operand struck, of one worker."""
        return self.site.operands[self.operand]

    @property
    def steps_per_epoch(self) -> int:
        """Steps in each epoch of the workload."""
        return self.workload.steps_per_epoch

    @property
    def number(self) -> int:
        """The number of its first step, counted from the first of the training."""
        return self.epoch * self.steps_per_epoch + self.step

    def fault(self) -> Fault:
        """The fault as the compiled step takes it.

        Raises:
          ValueError: a position lies outside the operand, or is listed twice.
        """
        if self.profile is not None:
            return ruled_fault(self.site, self.operand, self.worker, self.profile.rule(self.site, self.draw))
        index = ravel(self.positions, self.tensor.shape)
        if self.bits:
            masks = to_masks(self.bits, index, self.tensor.shape)
        else:
            masks = NewBits.given(index, format_of(self.tensor.dtype).bits(self.values))
        return make_fault(self.site, self.operand, self.worker, **vars(masks))

    def sentence(self) -> str:
        """The faults in English, without old values, which only the run can tell."""
        if self.also:
            return " ".join(one.sentence() for one in self.every)
        where = "" if self.profile is not None else format_position(self.positions[0])
        if self.profile is not None:
            what = f"the defect profile {self.profile.name} strikes: {self.profile.sentence()}"
        elif len(self.positions) > 1:
            what = (
                f"{len(self.positions)} elements from {where} to {format_position(self.positions[-1])} are overwritten"
            )
        elif self.values:
            what = f"element {where} becomes {self.values[0]!r}"
        else:
            what = f"element {where} {_becomes(self.bits[0], self.tensor.dtype)}"
        shape = "×".join(map(str, self.tensor.shape))
        when = f"In epoch {self.epoch}, step {self.step} of {self.workload.title}"
        if self.of_leaf:
            said = (
                f"{when}, {WHEN[self.stage, self.worker == ALL].format(self.worker)}, {what} in {self.layer} [{shape}]"
            )
        else:
            operand = f"the {self.operand.name.lower()} [{shape}] of {self.layer}"
            said = f"{when}, in the {self.site.stage} pass of worker {self.worker}, {what} in {operand}"
        return f"{said}{self.schedule.sentence()}."


def _order(one: Injection) -> tuple[object, ...]:
    """By time; those of one step by what they strike, which is not the same."""
    return one.epoch, one.step, one.layer


def clash(one: Injection, other: Injection) -> str | None:
    """Why two faults of one workload cannot be in one injection; None where they can.

    Two faults strike different operations or leaves at a step: what came of elements that both strike would depend on
    which comes first.
    """
    at_load = one.stage == other.stage == CHECKPOINT
    leaves = sorted((one.layer, other.layer), key=len)
    if not (at_load or one.layer == other.layer or (one.of_leaf and leaves[1].startswith(f"{leaves[0]}/"))):
        return None
    sooner, later = sorted((one, other), key=_order)
    between, seed, steps = later.number - sooner.number, one.workload.seed, one.steps_per_epoch
    again = later.schedule.times(one.workload.epochs * steps - later.number, seed)
    common = next((after + later.number for after in again if sooner.schedule.strikes(between + after, seed)), None)
    if common is None:
        return None
    when = "in epoch {}, step {}".format(*divmod(common, steps))
    if at_load:
        return f"{when}, two faults strike the checkpoint that the run restarts from; expected one at a step"
    what = leaves[0] if one.layer == other.layer else f"{leaves[1]}, which is of {leaves[0]}"
    return f"{when}, two faults strike {what}; put the elements into one fault, or strike it at another step"


def _becomes(new: ElementBits, dtype: np.dtype) -> str:
    if new.source is not None:
        return f"becomes a copy of element {format_position(new.source)}"
    how, _, digits = format_new_bits(new, dtype).rpartition(":")
    return {"xor": "has its bits {} inverted", "set": "has its bits {} set", "clear": "has its bits {} cleared"}.get(
        how, "gets the bits {}"
    ).format(digits)


def too_large(site: Site) -> str | None:
    """What to say of a site with an operand of more elements than positions can count, or of wider ones than masks.

    None where there is none.

    >>> big = TensorSpec((2**16, 2**16), np.dtype(np.float32))
    >>> print(too_large(Site("fc", "fc", "forward", dict.fromkeys(Operand, big))))
    the input of fc has 4294967296 elements; expected at most 2147483647
    """
    for operand, tensor in site.operands.items():
        if (elements := math.prod(tensor.shape)) > LARGEST_OPERAND:
            return (
                f"the {operand.name.lower()} of {site.name} has {elements} elements; expected at most {LARGEST_OPERAND}"
            )
        if why := unstruck(tensor.dtype):
            return f"the {operand.name.lower()} of {site.name} is {tensor.dtype}, which {why}: no fault can strike it"
    return None
