"""Populations of single flips that are known in full, and samples from them as the product draws and estimates them.

`dlrm_flips.npz` has all 326,176 single flips of the parameters of a trained `dlrm` (the default one, on Adult), made by
trying each: per leaf, uint16 [elements, 32 bits], how many of 1,024 test examples get another decision.  Per table it
has how many of these examples read each row, as `rows/LEAF`.  Adult is of UCI, under CC BY 4.0
(`fault_injection/data/adult.md`).
"""

import pathlib

import numpy as np

from fault_injection.campaign.rates import score_interval
from fault_injection.questions.vulnerability.components import Component
from fault_injection.questions.vulnerability.plan import BATCH, Cell, FaultKind, PvfPlan, looks
from fault_injection.questions.vulnerability.rates import VulnerabilityRate, rate_of
from fault_injection.questions.vulnerability.results import TrialBatch, strata_of
from fault_injection.questions.vulnerability.sampling import parts_of, reach, split
from fault_injection.questions.vulnerability.trials import Reads

DLRM = pathlib.Path(__file__).parent / "data" / "dlrm_flips.npz"
BITS = tuple(range(32))


class Population:
    """All single flips of a component.

    Args:
      name: of the component.
      wrong: of each leaf by its name, [elements, 32], outputs that are wrong of so many.
      outputs: that each trial judges.
      rows: of each table by its leaf, how many examples read each row.
    """

    def __init__(self, name, wrong, outputs, rows=None):
        self.component = Component(name, tuple(wrong), tuple(map(len, wrong.values())))
        self.wrong, self.outputs = np.concatenate([np.asarray(each, np.int64) for each in wrong.values()]), outputs
        self.reads = {
            leaf: Reads(np.repeat(np.arange(len(counts)), counts), len(wrong[leaf]) // len(counts))
            for leaf, counts in (rows or {}).items()
        }
        self.share = float(self.wrong.mean()) / outputs

    def cell(self, trials):
        return Cell(self.component, True, FaultKind("flips", 1), trials)

    def plan(self, cell, half_width=None, confidence=0.95):
        return PvfPlan(None, 1, (cell,), BITS, None, "float32", None, half_width, confidence, 1)

    def sample(self, rng, trials):
        """Trials as `draw_trial` draws them, all at once and from one generator."""
        parts = parts_of(BITS, self.cell(trials), bool(self.reads))
        of, _ = split(parts, np.arange(trials))
        element, bit = np.zeros(trials, np.int64), np.zeros(trials, np.int64)
        for number, part in enumerate(parts):
            here = np.flatnonzero(of == number)
            if part.cases is not None:
                case = rng.permutation(part.cases)[: len(here)]
                element[here], bit[here] = case // len(part.bits), np.array(part.bits)[case % len(part.bits)]
            else:
                element[here], bit[here] = self._read(rng, len(here)), rng.choice(part.bits, len(here))
        reached, mean = self.reached(element)
        nothing = np.zeros(trials)
        place = element * 32 + bit
        return TrialBatch(self.wrong[element, bit], *[nothing] * 5, place, reached, self.outputs, mean, np.nan)

    def _read(self, rng, count):
        component, starts = self.component, np.cumsum((0, *self.component.sizes))
        sizes = np.array(
            [
                self.reads[leaf].width if leaf in self.reads else size
                for leaf, size in zip(component.leaves, component.sizes, strict=True)
            ]
        )
        leaf = rng.choice(len(sizes), count, p=sizes / sizes.sum())
        element = starts[leaf] + rng.integers(sizes[leaf])
        for number, name in enumerate(component.leaves):
            if name in self.reads:
                here = leaf == number
                element[here] += rng.choice(self.reads[name].rows, here.sum()) * self.reads[name].width
        return element

    def reached(self, element):
        leaf, index = self.component.where(element)
        found = np.ones(len(element))
        for number, name in enumerate(self.component.leaves):
            if name in self.reads:
                table, here = self.reads[name], leaf == number
                found[here] = (np.bincount(table.rows, minlength=len(element)) / len(table.rows))[
                    index[here] // table.width
                ]
        return found, reach(self.component, [], self.reads)[1]


def dlrm(path=DLRM):
    """The components and layers of the trained `dlrm`, by name."""
    stored = dict(np.load(path))
    outputs, rows = int(stored.pop("examples")), {k.removeprefix("rows/"): v for k, v in stored.items() if "rows/" in k}
    leaves = {k: v for k, v in stored.items() if "rows/" not in k}
    layers, found = list(dict.fromkeys(leaf.split("/")[0] for leaf in leaves)), {}
    groups = {"bottom MLP": "bot_", "embeddings": "emb_", "top MLP": "top_", **{layer: f"{layer}/" for layer in layers}}
    for name, start in groups.items():
        here = {leaf: v for leaf, v in leaves.items() if leaf.startswith(start)}
        found[name] = Population(name, here, outputs, {leaf: v for leaf, v in rows.items() if leaf in here})
    return found


def first(trials, count):
    """The first so many trials of a batch."""
    return TrialBatch._make([*(values[:count] for values in trials[:8]), *trials[8:]])


def rate(cell, plan, trials) -> VulnerabilityRate:
    return rate_of(*strata_of(plan.bits, cell, trials), plan.level(cell))


def stopped(population, rng, half_width, most):
    """The rate of trials that stop when its interval is narrow enough, as a plan with `half_width` does."""
    cell = population.cell(most)
    plan = population.plan(cell, half_width)
    trials = population.sample(rng, most)
    for look in looks(cell.batches):
        found = rate(cell, plan, first(trials, look * BATCH))
        if max(found.high - found.share, found.share - found.low) <= half_width:
            break
    return found


def by_effective_size(population, rng, trials):
    """The interval before: all flips as likely, Wilson's for Kish's effective size."""
    wrong = population.wrong.reshape(-1)[rng.integers(population.wrong.size, size=trials)]
    share, between = float(wrong.mean()) / population.outputs, float(wrong.var(ddof=1)) / population.outputs**2
    size = share * (1 - share) / (between / trials) if between else 0.0
    return score_interval(share, min(max(size, trials), trials * population.outputs), 0.95)
