"""The strata of a plan's faults: by fault model, pass, kind, layer, and what the bit is for that is inverted.

All of it is known before anything runs, and so are the weights of strata: sites are uniform, leaves by their size,
models by their weight, and a bit is uniform among those of its model.  What is proved harmless is not told apart,
because no workload says which of its results nobody reads.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...faults.fault_models import FAULT_MODELS
from ...faults.injection import STAGES
from ...faults.number_formats import Format, format_of
from ...machine.errors import InputError
from ...models.fault import Operand
from ...models.site import Site
from ...seam.leaves import part_of
from ...seam.stages import CHECKPOINT
from .plan import Model, Plan
from .wanted import DIMENSIONS

ORDER = ("model", "bit", "kind", "pass", "layer")  # in which dimensions that a plan does not ask for are added
MANY = 400  # strata up to which such dimensions are added
MOST = 4000  # strata that a plan can ask for
HIGHEST, INTEGER = "highest exponent bit", "bits of an integer"
PARTS = {"exponent": "other exponent bits", "sign": "sign", "mantissa": "mantissa"}


class StratumPart(NamedTuple):
    """Faults that are drawn alike, a part of a stratum.

    Attributes:
      site: name of the operation or leaf.
      model: the fault model, which draws bits of one role alone where it inverts one.
      weight: their share of all faults.
      labels: what they are, by `DIMENSIONS`; empty for the bit of a model that has no one bit.
    """

    site: str
    model: Model
    weight: float
    labels: tuple[str, ...]


class FaultStratum(NamedTuple):
    """Faults that are alike in some dimensions.

    Attributes:
      labels: by the dimensions of the division.
      weight: their share of all faults.
      kinds: what it consists of.
      chances: float64 [kinds], of each within the stratum.
    """

    labels: tuple[str, ...]
    weight: float
    kinds: tuple[StratumPart, ...]
    chances: np.ndarray


class Division(NamedTuple):
    """The strata of a plan.

    Attributes:
      dimensions: of `DIMENSIONS`, in which strata differ.
      left_out: those in which faults of one stratum differ, so that no rate by them is known.
      strata: with weights that add up to 1.
    """

    dimensions: tuple[str, ...]
    left_out: tuple[str, ...]
    strata: tuple[FaultStratum, ...]

    def cells(self, dimension: str) -> dict[str, tuple[int, ...]]:
        """The numbers of the strata of each value of a dimension; not of faults that have none."""
        at = self.dimensions.index(dimension)
        found: dict[str, list[int]] = {}
        for number, stratum in enumerate(self.strata):
            if label := stratum.labels[at]:
                found.setdefault(label, []).append(number)
        return {label: tuple(numbers) for label, numbers in found.items()}

    def title(self, number: int) -> str:
        """A stratum for people: what it is in each dimension."""
        return ", ".join(filter(None, self.strata[number].labels)) or "all faults"


@functools.lru_cache(maxsize=4)
def divided(plan: Plan) -> Division:
    """The strata of a plan that asks for a width: by what it asks for, and as fine as leaves them few.

    Raises:
      InputError: what it asks for makes too many, or tells no faults apart: a profile has not one bit.
    """
    assert plan.wanted is not None
    kinds, chosen = list(_kinds(plan)), [d for d in DIMENSIONS if d in plan.wanted.by]
    for dimension in chosen:
        if not any(kind.labels[DIMENSIONS.index(dimension)] for kind in kinds):
            raise InputError(f"wanted.by: no fault of this plan has a {dimension} of its own; leave it out")
    if (many := _count(kinds, chosen)) > MOST:
        what = f"by {', '.join(chosen)} makes {many:,} strata; expected {MOST:,} at most"
        raise InputError(f"wanted.by: {what}: ask for fewer of them, or for fewer sites or fault models")
    for dimension in ORDER:
        more = [d for d in DIMENSIONS if d in (*chosen, dimension)]
        if _count(kinds, [dimension]) > 1 and _count(kinds, more) <= max(MANY, _count(kinds, chosen)):
            chosen = more
    found: dict[tuple[str, ...], list[StratumPart]] = {}
    for kind in kinds:
        found.setdefault(_labels(kind, chosen), []).append(kind)
    strata = []
    for labels, those in found.items():
        weights = np.array([kind.weight for kind in those])
        strata.append(FaultStratum(labels, float(weights.sum()), tuple(those), weights / weights.sum()))
    left_out = tuple(d for d in DIMENSIONS if d not in chosen and _count(kinds, [d]) > 1)
    return Division(tuple(chosen), left_out, tuple(strata))


def _labels(kind: StratumPart, dimensions: list[str]) -> tuple[str, ...]:
    return tuple(kind.labels[DIMENSIONS.index(dimension)] for dimension in dimensions)


def _count(kinds: list[StratumPart], dimensions: list[str]) -> int:
    return len({_labels(kind, dimensions) for kind in kinds})


def _kinds(plan: Plan) -> Iterator[StratumPart]:
    models, sites = sum(model.weight for model in plan.models), plan.targets
    sizes = {name: math.prod(site.shapes[Operand.INPUT]) for name, site in sites.items()}
    if plan.leaf in (None, CHECKPOINT):
        sizes = dict.fromkeys(sizes, 1)
    whole = sum(sizes.values())
    for name, site in sites.items():
        kind = part_of(name) if plan.leaf else plan.workload.kind(site)
        where = site.stage, kind, layer_of(site)
        for model in plan.models:
            weight = sizes[name] / whole * model.weight / models
            for role, (restricted, share) in _by_role(model, format_of(site.operands[model.operand].dtype)).items():
                yield StratumPart(name, restricted, weight * share, (model.name, *where, role))


def layer_of(site: Site) -> str:
    """The layer of an operation or of a leaf; of a part of the state, which has many, its name."""
    if site.layer and site.stage not in STAGES.values() and "/" in site.name:
        return site.name.split("/")[-2]
    return site.layer or site.name


@functools.cache
def _by_role(model: Model, format: Format) -> dict[str, tuple[Model, float]]:
    """A model for the bits of each role, and its share of the model's faults; itself where it has no one bit."""
    if model.values not in ("bit_flip", "stuck") or (model.values == "bit_flip" and not FAULT_MODELS[model.name].one):
        return {"": (model, 1.0)}
    bits: tuple[int, ...] = dict(model.options).get("bits", ()) or tuple(range(format.width))
    found: dict[str, list[int]] = {}
    for bit in bits:
        found.setdefault(role_of(format, bit), []).append(bit)
    return {
        role: (dataclasses.replace(model, options=(("bits", tuple(those)),)), len(those) / len(bits))
        for role, those in found.items()
    }


def role_of(format: Format, bit: int) -> str:
    """What a bit is for, as strata tell bits apart.

    >>> from fault_injection.faults.number_formats import FLOAT32
    >>> [role_of(FLOAT32, bit) for bit in (31, 30, 29, 0)]
    ['sign', 'highest exponent bit', 'other exponent bits', 'mantissa']
    """
    role = format.role(bit)
    if role == "exponent 1":
        return HIGHEST
    return PARTS.get(role.partition(" ")[0], INTEGER)
