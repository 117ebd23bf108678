"""Experiment i of a plan: drawn from (seed, i) alone, so that nothing that ran before it matters."""

import dataclasses
import functools
import math

import numpy as np

from ...faults.injection import ALL, Injection
from ...faults.number_formats import format_of
from ...machine.errors import InputError
from ...models.bits import NewBits
from ...models.fault import Fault, Operand
from ...models.site import Site, make_fault
from ...runs.steps import Address
from ...seam.stages import CHECKPOINT
from .plan import Model, Plan

WHERE, WHAT = 0, 1  # tell an experiment's two random streams apart


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

    @property
    def operand(self) -> Operand:
        """The operand struck."""
        return self.model.operand


def draw_experiment(plan: Plan, number: int) -> Experiment:
    """Experiment `number`: epoch, step, worker and site each uniform, the model by its weight.

    Of leaves every element is as likely as any other, so one is drawn by its size; and no worker is
    drawn where all share them.  Of altered checkpoints that a plan lists each is taken once, in each epoch,
    by each count of loaders.  The streams are NumPy's, whose version is part of a campaign's key.
    """
    rng = np.random.default_rng([plan.seed, number, WHERE])
    weights = np.array([model.weight for model in plan.models])
    found = Experiment(
        number=number,
        epoch=plan.epochs[rng.integers(len(plan.epochs))],
        step=int(rng.integers(len(plan.steps))),
        worker=int(rng.integers(plan.owners)) if plan.owners else ALL,
        site=plan.sites[rng.integers(len(plan.sites))] if plan.leaf in (None, CHECKPOINT) else _drawn_leaf(plan, rng),
        model=plan.models[rng.choice(len(weights), p=weights / weights.sum())],
        audited=bool(rng.random() < plan.audit),
        audited_near=bool(rng.random() < (plan.audit_near or 0)),
        followed=bool(rng.random() < plan.settled_follow),
    )
    if not plan.restarts:
        return found
    of_site, model = divmod(number, len(plan.models))
    of_epoch, site = divmod(of_site, len(plan.sites))
    epoch = plan.epochs[of_epoch % len(plan.epochs)]
    return dataclasses.replace(found, epoch=epoch, site=plan.sites[site], model=plan.models[model])


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
      bits: what becomes of which elements of the operand of the one worker.
    """

    experiment: Experiment
    site: Site
    bits: NewBits

    @property
    def at(self) -> Address:
        """The step struck."""
        return Address(self.experiment.epoch, self.experiment.step)

    @functools.cached_property
    def fault(self) -> Fault:
        """The fault as the compiled step takes it."""
        e = self.experiment
        return make_fault(self.site, e.operand, e.worker, **vars(self.bits))

    @property
    def one_bit(self) -> int | None:
        """The bit that is inverted in one element, or stuck in all; 0 is the lowest."""
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
            fmodel=e.model.name,
            worker=e.worker,
            epoch=e.epoch,
            step=e.step,
            bits=self.bits,
            horizon=plan.horizon,
            nonfinite=plan.nonfinite,
            schedule=plan.schedule,
        )


def choose(plan: Plan, experiment: Experiment) -> Choice:
    """Positions and values of an experiment's fault, by its model."""
    rng = np.random.default_rng([plan.seed, experiment.number, WHAT])
    site = plan.targets[experiment.site]
    tensor = site.operands[experiment.operand]
    size, format = math.prod(tensor.shape), format_of(tensor.dtype)
    return Choice(experiment, site, experiment.model.draw(rng, size, format))


def injection_of(plan: Plan, number: int) -> Injection:
    """Experiment `number` of a plan as an injection; nothing runs.

    Raises:
      InputError: the plan has no such experiment.
    """
    if not 0 <= number < plan.experiments:
        raise InputError(f"experiment {number} is not of this campaign; expected 0 to {plan.experiments - 1}")
    return choose(plan, draw_experiment(plan, number)).injection(plan)
