"""The plan of a campaign: what is struck, how often, and when to stop looking."""

import dataclasses
import functools
import math
import statistics
from typing import Any

import numpy as np

from ...campaign.allocation import FIRST
from ...faults.fault_models import FAULT_MODELS, VALUES, Pattern
from ...faults.injection import STAGES
from ...faults.number_formats import Format
from ...faults.profiles.profile import DefectProfile
from ...faults.profiles.reader import parse_profile
from ...faults.schedule import ONCE, Schedule
from ...machine.reading import fits
from ...models.bits import ALL_ONES, NewBits
from ...models.fault import LARGEST_OPERAND, Operand
from ...models.site import Site
from ...runs.steps import Address, horizon_or_end, numbered
from ...seam.measure import NONFINITE_RULES
from ...seam.stages import BESIDE, CHECKPOINT, UPDATE
from ...seam.workload import Workload, format_option
from ...workloads.registry import find_workload, restore_workload
from .wanted import WantedOutcome

# How long an experiment is watched, the first the longest (docs/campaign.md, How an experiment ends).
EXITS = ("full", "exact", "conditions")
LARGEST = 10_000_000  # experiments of a plan
ALTERED = "altered"  # values of a model that is an altered checkpoint
PROFILED = "profile"  # values of a model that is a defect profile


@dataclasses.dataclass(frozen=True)
class Model:
    """A fault model of a plan.

    Attributes:
      name: key of `FAULT_MODELS`; of an altered checkpoint the name of its file; of a defect profile its own.
      weight: its share of the experiments, in proportion to the sum of weights.
      values: key of `VALUES`, what the elements become; the model's own unless told otherwise.  `ALTERED` of an
        altered checkpoint, of which nothing is drawn.
      options: of the value source, `bits` or `patterns`; of an altered checkpoint `index` and `flip`, the positions
        of its elements and the bits that are inverted in each; of a profile `text`, that of its file.
    """

    name: str
    weight: float
    values: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def operand(self) -> Operand:
        """The operand struck."""
        if (profile := self.profile) is not None:
            return profile.operand
        return Operand.INPUT if self.values == ALTERED else FAULT_MODELS[self.name].operand

    @property
    def profile(self) -> DefectProfile | None:
        """The defect profile that it is; None of another model."""
        return parse_profile(dict(self.options)["text"], self.name, self.name) if self.values == PROFILED else None

    def draw(self, rng: np.random.Generator, size: int, format: Format) -> NewBits:
        """Which elements of an operand are struck, and what they become."""
        if self.values == ALTERED:
            options = dict(self.options)
            index, flip = np.array(options["index"], np.int64), np.array(options["flip"], np.uint64)
            return NewBits.inverted(index, flip.astype(format.mask))
        index = FAULT_MODELS[self.name].places(rng, size)
        return VALUES[self.values](**dict(self.options))(rng, index, size, format)

    @property
    def sound(self) -> bool:
        """Whether this is a model of a plan; perhaps somebody wrote it by hand."""
        if self.values == PROFILED:
            return self.profile is not None and 0 < self.weight < 1e6
        if self.values != ALTERED:
            VALUES[self.values](**dict(self.options))
            return self.name in FAULT_MODELS and 0 < self.weight < 1e6
        options = dict(self.options)
        index, flip = options["index"], options["flip"]
        limits = [(number, LARGEST_OPERAND) for number in index] + [(number, ALL_ONES) for number in flip]
        whole = all(type(number) is int and 0 <= number <= limit for number, limit in limits)
        return whole and len(index) == len(set(index)) == len(flip) > 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A campaign, checked.

    Attributes:
      workload: with all its options.
      experiments: how many; the most, if a width is wanted.
      half_width, confidence: what their number was calculated from, or None.
      epochs: among which the fault's is drawn.
      sites: names of the operations struck, or of the leaves of the state, of the stages and patterns asked for.
      models: fault models with their weights.
      seed: of all that is drawn.
      exit: one of `EXITS`.
      horizon: steps to follow a run after its fault; None follows it to the end of the training.
      audit: share of the early verdicts that are run to the end all the same.
      audit_near: the same share of those near a threshold, by `Conditions.near`, besides; None for no more.
      twins: golden runs one unit in the last place apart, for the tolerance of verdicts.
      nonfinite: one of `NONFINITE_RULES`: what ends a run when it is not finite.
      schedule: when a fault strikes again.
      audit_open: whether the plan's file leaves `audit` open, so that it follows from `experiments` or from the width.
      settled: as many consecutive steps a run has to be as near to the golden one as a twin, to end there; None follows
        it on, see `settled.Settled`.
      settled_follow: share of the runs that settled which are followed to the end all the same.
      together: how many audits of early verdicts that say *Masked* are followed in one run; None follows each by
        itself, see `together`.
      together_alone: share of these audits that are followed by themselves all the same.
      wanted: a rate and how narrow its interval shall be; None where the number of experiments is fixed.
    """

    workload: Workload
    experiments: int
    half_width: float | None
    confidence: float
    epochs: tuple[int, ...]
    sites: tuple[str, ...]
    models: tuple[Model, ...]
    seed: int
    exit: str
    horizon: int | None
    audit: float
    audit_near: float | None
    twins: int
    nonfinite: str = NONFINITE_RULES[0]
    schedule: Schedule = ONCE
    audit_open: bool = False
    settled: int | None = None
    settled_follow: float = 0.0
    together: int | None = None
    together_alone: float = 0.0
    wanted: WantedOutcome | None = None

    @functools.cached_property
    def targets(self) -> dict[str, Site]:
        """What is struck, by name."""
        return {name: self.workload.target(name) for name in self.sites}

    @functools.cached_property
    def leaf(self) -> str | None:
        """Which leaves are struck, as a stage of sites; None where operations are."""
        stage = next(iter(self.targets.values())).stage
        return None if stage in STAGES.values() else stage

    @property
    def restarts(self) -> bool:
        """Whether each experiment restarts from an altered checkpoint that the plan lists."""
        return self.models[0].values == ALTERED

    @property
    def beyond_premises(self) -> bool:
        """Whether its faults strike what no rule of early verdicts speaks of; see `conditions`."""
        return self.leaf in (*BESIDE, UPDATE) and self.schedule.single

    @property
    def audits_first(self) -> bool:
        """Whether its audits are made before all else, because a rule ends other runs only if they support it."""
        return self.beyond_premises and self.exit == "conditions"

    @property
    def owners(self) -> int:
        """Of how many workers each has its own of what is struck; 0 where they share it."""
        return self.workload.owners(next(iter(self.targets.values())))

    @property
    def supported(self) -> frozenset[str]:
        """What the program of its runs has to be able to strike."""
        return frozenset() if self.leaf in BESIDE else frozenset(self.sites)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in each epoch of the workload."""
        return self.workload.steps_per_epoch

    @property
    def steps(self) -> range:
        """Steps of an epoch among which the fault's is drawn: a checkpoint is saved between epochs."""
        return range(1 if self.leaf == CHECKPOINT else self.steps_per_epoch)

    @property
    def end(self) -> Address:
        """The last step of the training."""
        return Address(self.workload.epochs - 1, self.steps_per_epoch - 1)

    def last_step(self, fault: Address) -> Address:
        """The last step that an experiment may run, by the horizon."""
        return horizon_or_end(self.workload.epochs, self.steps_per_epoch, fault, self.horizon)

    def followed(self, epoch: int, step: int) -> int:
        """How many steps an experiment at a step takes that is followed as far as it may be."""
        at, last = Address(epoch, step), self.last_step(Address(epoch, step))
        return numbered(last, self.steps_per_epoch) - numbered(at, self.steps_per_epoch) + 1

    @property
    def golden_epochs(self) -> int:
        """Epochs of the golden run that its experiments are compared with."""
        if self.horizon is None or self.twins or (self.exit == "conditions" and (self.audit or self.audit_near)):
            return self.workload.epochs
        return self.last_step(Address(max(self.epochs), self.steps_per_epoch - 1)).epoch + 1

    @property
    def golden_steps(self) -> int:
        """Steps of the golden run and its twins, which are taken twice where their distances are measured."""
        once = self.golden_epochs * self.steps_per_epoch * (1 + self.twins)
        return once if self.settled is None else 2 * once

    def sentence(self) -> str:
        """The plan in words."""
        size = f"{self.experiments} experiments"
        if self.wanted is not None:
            most = f", at most {size}" if self.experiments < LARGEST else ""
            size = f"{self.wanted.sentence()} at {self.confidence:.0%}{most}"
        if self.half_width is not None:
            size += f", for rates within ±{self.half_width:g} at {self.confidence:.0%}"
        ends = "to the end of the training" if self.horizon is None else f"for at most {self.horizon} steps"
        of = "defect profiles" if self.models[0].values == PROFILED else "fault models"
        models = f"{of} {', '.join(model.name for model in self.models)}"
        if self.restarts:
            models = f"{len(self.models)} altered checkpoints"
        struck = "sites" if self.leaf is None else f"leaves ({self.leaf})"
        if self.together is not None:
            ends += (
                f"; audits of masked early verdicts {self.together} in one run, {self.together_alone:.0%} of these by "
                "themselves all the same"
            )
        w, again = self.workload, "" if self.schedule == ONCE else f", {self.schedule}"
        if self.settled is not None:
            ends += (
                f", or until it was as near to the golden run as a twin for {self.settled} steps, "
                f"{self.settled_follow:.0%} of these to the end all the same"
            )
        return (
            f"{size}, on {w.title} ({w.details}): {len(self.sites)} {struck}, "
            f"{len(self.epochs)} of {w.epochs} epochs; {models}{again}; "
            f"exit mode {self.exit}, followed {ends}"
        )

    def identity(self) -> dict[str, Any]:
        """What determines experiment i and its verdict: everything but how many there are, or how narrow they make it.

        Where a width is wanted the stratum of experiment i follows from outcomes before it, and so from what was wanted
        then, which the store keeps.
        """
        known = dataclasses.asdict(self)
        for extent in ("experiments", "half_width", "confidence", "audit_open", "wanted"):
            del known[extent]
        if self.wanted is not None:
            asked = {"outcome": self.wanted.outcome, "by": self.wanted.by, "confidence": self.confidence}
            known["wanted"] = asked
        if self.exit != "conditions":  # no verdict to audit
            del known["audit"], known["audit_near"]
        if self.settled is None:
            del known["settled"], known["settled_follow"]
        if self.together is None:
            del known["together"], known["together_alone"]
        return known

    def grown(self, begun: "Plan | None") -> "Plan":
        """This plan with the share of audits that its campaign began with, where its file leaves the share open.

        Which experiments are audited is drawn with that share, so a campaign that grows keeps it.
        """
        return dataclasses.replace(self, audit=begun.audit) if begun and self.audit_open and begun.audit_open else self


def restore_plan(kept: dict[str, Any]) -> Plan:
    """The plan whose fields were kept as JSON.

    Raises:
      ValueError: they are not those of a plan; perhaps somebody wrote them by hand.
      InputError: the file of a user's own workload is gone.
    """
    try:
        plan = _restored_plan(kept)
        workload = plan.workload
        options = {**workload.OPTIONS, **workload.REQUIRED}
        read = {
            name: option.kind.parse(str(format_option(getattr(workload, name)))) for name, option in options.items()
        }
        as_written = find_workload(workload.name).changed(**read) == workload and workload.contradiction() is None
        models = bool(plan.models) and all(model.sound for model in plan.models)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    for field in dataclasses.fields(plan):
        if not fits(getattr(plan, field.name), field.type):
            raise ValueError(f"{field.name} has another type than a plan's")
    sound = {
        "workload": as_written,
        "experiments": 0 < plan.experiments <= LARGEST,
        "confidence": 0.5 <= plan.confidence < 1,
        "epochs": bool(plan.epochs) and all(0 <= epoch < plan.workload.epochs for epoch in plan.epochs),
        "sites": bool(plan.sites) and all(workload.find(site) is not None for site in plan.sites),
        "models": models and len({model.values == ALTERED for model in plan.models}) == 1,
        "seed": 0 <= plan.seed < 2**31,
        "exit": plan.exit in EXITS,
        "horizon": plan.horizon is None or plan.horizon > 0,
        "audit": 0 <= plan.audit <= 1 and 0 <= (plan.audit_near or 0) <= 1,
        "twins": 0 <= plan.twins < 100,
        "settled": plan.settled is None or (plan.settled > 0 and plan.twins > 1 and plan.exit != "full"),
        "settled_follow": 0 <= plan.settled_follow <= 1,
        "together": plan.together is None or (plan.together > 1 and _can_be_grouped(plan)),
        "together_alone": 0 <= plan.together_alone <= 1,
        "wanted": plan.wanted is None or (plan.wanted.sound and _can_be_wanted(plan)),
    }
    for name, right in sound.items():
        if not right:
            raise ValueError(f"its value of {name} is not one of a plan")
    return plan


def _can_be_grouped(plan: Plan) -> bool:
    """Whether audits of the rest of a plan can be followed several in one run."""
    single = plan.schedule.single and not plan.restarts and not plan.audits_first
    return plan.exit == "conditions" and single and plan.wanted is None and plan.settled is None and plan.audit > 0


def _can_be_wanted(plan: Plan) -> bool:
    """Whether a width can be wanted of the rest of a plan."""
    audited = plan.exit != "conditions" or plan.audit > 0
    ends = plan.horizon is None and plan.settled is None
    return plan.experiments >= FIRST and ends and not plan.restarts and audited


def _restored_plan(kept: dict[str, Any]) -> Plan:
    known = dict(kept)
    known["workload"] = restore_workload(known["workload"])
    known["models"] = tuple(
        Model(**{**model, "options": tuple((name, _restored(name, value)) for name, value in model["options"])})
        for model in known["models"]
    )
    known["schedule"] = Schedule(**known.get("schedule", {}))
    if (wanted := known.get("wanted")) is not None:
        known["wanted"] = WantedOutcome(**{**wanted, "outcome": tuple(wanted["outcome"]), "by": tuple(wanted["by"])})
    known |= {name: tuple(known[name]) for name in ("epochs", "sites")}
    return Plan(**known)


def _restored(name: str, value: list[Any]) -> tuple[Any, ...] | str:
    if name == "text":
        return str(value)
    return tuple(Pattern(*row) for row in value) if name == "patterns" else tuple(value)


def sample_size(half_width: float, confidence: float) -> int:
    """Experiments for a rate to be known within ± `half_width`, whatever it is: n = z² ¼ / e².

    Reference: Leveugle, Calvez, Maistri, Vanhauwaert, DATE 2009, for a large population and
    p = ½; 385 for 5 % and 9604 for 1 % at 95 % as printed there, one more than its 16587 for 1 %
    at 99 %, z being rounded there.
    """
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    return math.ceil(z * z / 4 / half_width**2)
