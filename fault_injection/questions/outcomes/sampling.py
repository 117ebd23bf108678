"""Experiment i of a plan: drawn from (seed, i) alone, so that nothing that ran before it matters.

Where a plan wants a width, its stratum is drawn before, from the outcomes of earlier blocks; all else as ever.
"""

import dataclasses
import functools
import math

import numpy as np

from ...faults.injection import ALL, Injection
from ...faults.number_formats import format_of
from ...faults.schedule import Schedule
from ...machine.errors import InputError
from ...models.bits import NewBits
from ...models.fault import Fault, Operand
from ...models.site import Site, make_fault, ruled_fault
from ...runs.steps import Address
from ...runs.strikes import Strike
from ...seam.stages import CHECKPOINT
from .plan import Model, Plan
from .strata import divided

WHERE, WHAT, BLOCK = 0, 1, 2  # tell an experiment's two random streams apart, and that of a block's strata


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Where a fault strikes.

    Attributes:
      number: i, from 0.
      epoch, step, worker: counted from 0.
      site: name of the operation struck.
      model: the fault model, which names the operand.
      audited: whether an early verdict is compared with the run to the end.
      audited_near: the same of an early verdict near a threshold, where the plan tells these apart.
      followed: whether its run is followed to the end also once it has settled.
      alone: whether its audit is followed by itself also where groups of audits are followed in one run.
      stratum: its number in `strata.divided`, where the plan wants a width.
    """

    number: int
    epoch: int
    step: int
    worker: int
    site: str
    model: Model
    audited: bool
    audited_near: bool
    followed: bool
    alone: bool
    stratum: int | None = None

    @property
    def operand(self) -> Operand:
        """The operand struck."""
        return self.model.operand

    @property
    def title(self) -> str:
        """For people, and to count the processes lost over it."""
        return f"experiment {self.number}"


def draw_experiment(plan: Plan, number: int, stratum: int | None = None) -> Experiment:
    """Experiment `number`: epoch, step, worker and site each uniform, the model by its weight.

    In a stratum all is drawn as in the whole plan, given that it lies there: the weights of what strata consist of are
    those with which the plan draws it.

    Of leaves every element is as likely as any other, so one is drawn by its size; and no worker is
    drawn where all share them.  Of altered checkpoints that a plan lists each is taken once, in each epoch,
    by each count of loaders.  The streams are NumPy's, whose version is part of a campaign's key.

    Args:
      stratum: its number in `strata.divided`; given where the plan wants a width, and there alone.

    Raises:
      ValueError: it is missing, or has no effect.
    """
    if (stratum is None) != (plan.wanted is None):
        raise ValueError(f"experiment {number} of the stratum {stratum}: expected one exactly if a width is wanted")
    rng = np.random.default_rng([plan.seed, number, WHERE])
    weights = np.array([model.weight for model in plan.models])
    epoch = plan.epochs[rng.integers(len(plan.epochs))]
    step = int(rng.integers(len(plan.steps)))
    worker = int(rng.integers(plan.owners)) if plan.owners else ALL
    if stratum is not None:
        of = divided(plan).strata[stratum]
        kind = of.kinds[rng.choice(len(of.kinds), p=of.chances)]
        site, model = kind.site, kind.model
    else:
        uniform = plan.leaf in (None, CHECKPOINT)
        site = plan.sites[rng.integers(len(plan.sites))] if uniform else _drawn_leaf(plan, rng)
        model = plan.models[rng.choice(len(weights), p=weights / weights.sum())]
    found = Experiment(
        number=number,
        epoch=epoch,
        step=step,
        worker=worker,
        site=site,
        model=model,
        audited=bool(rng.random() < plan.audit),
        audited_near=bool(rng.random() < (plan.audit_near or 0)),
        followed=bool(rng.random() < plan.settled_follow),
        alone=bool(rng.random() < plan.together_alone),
        stratum=stratum,
    )
    if found.model.profile is not None and found.model.profile.worker is not None:
        found = dataclasses.replace(found, worker=found.model.profile.worker)
    if not plan.restarts:
        return found
    of_site, which = divmod(number, len(plan.models))
    of_epoch, place = divmod(of_site, len(plan.sites))
    epoch = plan.epochs[of_epoch % len(plan.epochs)]
    return dataclasses.replace(found, epoch=epoch, site=plan.sites[place], model=plan.models[which])


def _drawn_leaf(plan: Plan, rng: np.random.Generator) -> str:
    """A leaf, by its size."""
    sizes = np.array([math.prod(site.shapes[Operand.INPUT]) for site in plan.targets.values()])
    return plan.sites[rng.choice(len(sizes), p=sizes / sizes.sum())]


@dataclasses.dataclass(frozen=True)
class Choice:
    """An experiment's fault, drawn.

    Attributes:
      experiment: where it strikes.
      site: the operation struck, with its operands' shapes.
      bits: what becomes of which elements of the operand of the one worker; None of a defect profile.
    """

    experiment: Experiment
    site: Site
    bits: NewBits | None

    @property
    def at(self) -> Address:
        """The step struck."""
        return Address(self.experiment.epoch, self.experiment.step)

    @functools.cached_property
    def fault(self) -> Fault:
        """The fault as the compiled step takes it."""
        e = self.experiment
        if (profile := e.model.profile) is not None:
            return ruled_fault(self.site, e.operand, e.worker, profile.rule(self.site, e.number))
        return make_fault(self.site, e.operand, e.worker, **vars(self.bits))

    def strike(self, schedule: Schedule) -> Strike:
        """The fault as a run takes it, by the plan's schedule."""
        return Strike(self.site, self.fault, self.at, schedule.of_device(self.experiment.number))

    @property
    def one_bit(self) -> int | None:
        """The bit that is inverted in one element, or stuck in all; 0 is the lowest."""
        if self.bits is None:
            return None
        masks = set((self.bits.flip | ~self.bits.keep).tolist())
        alone = len(self.bits.index) == 1 or not (~self.bits.keep == 0).any()
        if not alone or len(masks) > 1 or (mask := masks.pop()).bit_count() != 1:
            return None
        return mask.bit_length() - 1

    def injection(self, plan: Plan) -> Injection:
        """The same fault as an injection file has it."""
        e = self.experiment
        return Injection.drawn(
            workload=plan.workload,
            site=self.site,
            fmodel="" if self.bits is None else e.model.name,
            worker=e.worker,
            epoch=e.epoch,
            step=e.step,
            bits=self.bits,
            profile=e.model.profile,
            draw=0 if self.bits is not None else e.number,
            horizon=plan.horizon,
            nonfinite=plan.nonfinite,
            schedule=plan.schedule.of_device(e.number),
        )


def choose(plan: Plan, experiment: Experiment) -> Choice:
    """Positions and values of an experiment's fault, by its model."""
    rng = np.random.default_rng([plan.seed, experiment.number, WHAT])
    site = plan.targets[experiment.site]
    if experiment.model.profile is not None:
        return Choice(experiment, site, None)
    tensor = site.operands[experiment.operand]
    size, format = math.prod(tensor.shape), format_of(tensor.dtype)
    return Choice(experiment, site, experiment.model.draw(rng, size, format))


def injection_of(plan: Plan, number: int, stratum: int | None = None) -> Injection:
    """Experiment `number` of a plan as an injection; nothing runs.

    Args:
      stratum: as of `draw_experiment`.

    Raises:
      InputError: the plan has no such experiment.
    """
    if not 0 <= number < plan.experiments:
        raise InputError(f"experiment {number} is not of this campaign; expected 0 to {plan.experiments - 1}")
    return choose(plan, draw_experiment(plan, number, stratum)).injection(plan)
