"""Populations whose outcomes are all known, and campaigns on them as `Allocation` draws and judges them."""

import pathlib
from typing import NamedTuple

import numpy as np

from fault_injection.campaign.allocation import Allocation, KnownRate, KnownStratum, Proxy, WantedRate
from fault_injection.campaign.audited import audited, audited_bounds

DLRM = pathlib.Path(__file__).parent / "data" / "dlrm_flips.npz"  # `flip_populations` says where it is from


class Campaign(NamedTuple):
    """What came of a campaign.

    Attributes:
      rates: at its end.
      trials: how many.
      covered: of each rate, whether its interval contained it at every look.
    """

    rates: list[KnownRate]
    trials: int
    covered: list[bool]


class Enumerated:
    """A population.

    Args:
      outcomes: float64 [cases], in [0, 1].
      labels: [cases], of strata, of any kind; one stratum where None.
      highest: float64 [cases], what an outcome is known to be at most; 1 where None.
    """

    def __init__(self, outcomes, labels=None, highest=None):
        self.outcomes = np.asarray(outcomes, float).ravel()
        labels = np.zeros(self.outcomes.size) if labels is None else np.asarray(labels).ravel()
        self.names, self.of = np.unique(labels, return_inverse=True)
        self.cases = np.bincount(self.of)
        self.high = np.ones(len(self.cases))
        if highest is not None:
            self.high = np.zeros(len(self.cases))
            np.maximum.at(self.high, self.of, np.asarray(highest, float).ravel())
        self.members = np.split(np.argsort(self.of, kind="stable"), np.cumsum(self.cases)[:-1])

    @property
    def rate(self):
        return float(self.outcomes.mean())

    def strata(self, again):
        """Strata; whether cases can be drawn again."""
        weights = self.cases / self.cases.sum()
        return [
            KnownStratum(weight, None if again else int(cases), 0.0, high)
            for weight, cases, high in zip(weights, self.cases, self.high, strict=True)
        ]

    def rate_of(self, wanted):
        here = np.isin(self.of, range(len(self.cases)) if wanted.strata is None else wanted.strata)
        return float(self.outcomes[here].mean())

    def campaign(self, seed, wanted, *, again=False, most=np.inf, proxy=None, early=None, chances=None, watch=None):
        """Draws until every rate is as narrow as asked, or there are `most` trials.

        Args:
          wanted: rates, or the width of the rate of all.
          again: whether cases can be drawn again.
          proxy: float64 [cases], a guess of each outcome.
          early: float64 [cases], early verdicts, 0 or 1, of which some are audited; with `again` alone.
          chances: of an audit, of an early verdict of 0 and of 1.
          watch: called with each block and its outcomes.
        """
        rng = np.random.default_rng(seed)
        wanted = [WantedRate("all", wanted)] if isinstance(wanted, float) else wanted
        strata = self.strata(again)
        if early is not None:
            low, high = audited_bounds(list(enumerate(chances)))
            strata = [stratum._replace(low=low, high=high) for stratum in strata]
        allocation = Allocation(strata, wanted)
        deck = _Deck(self, again, rng)
        truth, covered = [self.rate_of(rate) for rate in wanted], np.ones(len(wanted), bool)
        while allocation.counts.sum() < most and (draws := allocation.draw(rng, proxy=deck.proxy(proxy))):
            case = deck.take(draws.strata)
            y = self.outcomes[case]
            if early is not None:
                chance = np.asarray(chances)[early[case].astype(int)]
                y = audited(early[case], np.where(rng.random(len(y)) < chance, y, np.nan), chance)
            allocation.observe(draws, y, None if proxy is None else proxy[case])
            if watch:
                watch(draws, y)
            covered &= [
                rate.low - 1e-12 <= mean <= rate.high + 1e-12
                for rate, mean in zip(allocation.rates(), truth, strict=True)
            ]
        return Campaign(allocation.rates(), int(allocation.counts.sum()), covered.tolist())


class _Deck:
    """Cases of a population, drawn from each stratum by chance."""

    def __init__(self, population, again, rng):
        self.population, self.again, self.rng = population, again, rng
        self.order = [members if again else rng.permutation(members) for members in population.members]
        self.drawn = np.zeros(len(population.cases), int)

    def take(self, strata):
        case = np.empty(len(strata), int)
        for stratum in np.unique(strata):
            here = np.flatnonzero(strata == stratum)
            members, start = self.order[stratum], self.drawn[stratum]
            if self.again:
                case[here] = members[self.rng.integers(len(members), size=len(here))]
            else:
                case[here] = members[start : start + len(here)]  # an error where more are asked for than there are
                self.drawn[stratum] += len(here)
        return case

    def proxy(self, values):
        if values is None:
            return None
        open_ = [values[members[start:]] for members, start in zip(self.order, self.drawn, strict=True)]
        columns = [(f.mean(), f.min(), f.max()) if len(f) else (0.0, 0.0, 0.0) for f in open_]
        return Proxy(*map(np.array, zip(*columns, strict=True)))


def dlrm(by=("component", "role"), reads=True):
    """All single flips of the parameters of a trained `dlrm`: of each, the share of examples that it makes wrong.

    Args:
      by: what makes strata: `component`, `leaf`, and `role` of the bit, each of the sign and of the exponent by
        itself, and the mantissa in two.
      reads: whether it is known how many examples read an element: embedding rows are divided by that, in powers of
        two, and a flip cannot make more examples wrong.
    """
    stored = dict(np.load(DLRM))
    examples, rows = int(stored.pop("examples")), {k[5:]: v for k, v in stored.items() if k.startswith("rows/")}
    leaves = {name: values for name, values in stored.items() if not name.startswith("rows/")}
    sizes = [len(values) for values in leaves.values()]
    part = [{"bot": 0, "emb": 1, "top": 2}[name[:3]] for name in leaves]
    read = [
        np.repeat(rows[leaf], len(values) // len(rows[leaf])) / examples if leaf in rows else np.ones(len(values))
        for leaf, values in leaves.items()
    ]
    octave = np.ceil(np.log2(np.maximum(np.concatenate(read), 2.0**-12)))
    bits = np.arange(32)
    labels = {
        "component": np.repeat(part, sizes)[:, None] + 0 * bits,
        "leaf": np.repeat(np.arange(len(leaves)), sizes)[:, None] + 0 * bits,
        "role": np.where(bits >= 23, bits, np.where(bits >= 20, 22, 19)) + np.zeros((sum(sizes), 1), int),
        "reads": (12 + octave if reads else 0 * octave).astype(int)[:, None] + 0 * bits,
    }
    label = np.zeros((sum(sizes), 32), int)
    for name in (*by, "reads"):
        label = 100 * label + labels[name]
    highest = np.where(np.concatenate(read) > 0, 2.0**octave, 0)[:, None] + 0.0 * bits if reads else None
    return Enumerated(np.concatenate(list(leaves.values())) / examples, label, highest)


def dlrm_component(population, name):
    """One of the three components, `bot`, `emb` or `top`, as a population of its own."""
    [asked] = [rate for rate in dlrm_components(population) if rate.name == name]
    here = np.isin(population.of, asked.strata)
    return Enumerated(population.outcomes[here], population.of[here], population.high[population.of[here]])


def dlrm_components(population, width=np.inf):
    """The rates of its components, where no stratum is of two."""
    leaves = [name for name in np.load(DLRM).files if "rows/" not in name and name != "examples"]
    part = np.repeat([name[:3] for name in leaves], [32 * len(np.load(DLRM)[name]) for name in leaves])
    of = np.array([part[members[0]] for members in population.members])
    return [WantedRate(name, width, tuple(np.flatnonzero(of == name))) for name in ("bot", "emb", "top")]
