"""How many trials a rate takes by strata, and how many by simple random sampling, on populations known in full.

    python benchmarks/estimators.py --out estimators.json

Both draw until the interval of the overall rate is as narrow as asked, and have the same interval, which holds at
every look.  The populations are

- all 326,176 single flips of a trained `dlrm` (`tests/enumerated.py`), and its components: strata by component and by
  role of the bit; embedding rows also by how many examples read them, which bounds the harm of a flip;
- the same where bounds of each stratum are known: twice its worst case, as a proof could give it.  The benchmark takes
  them from the population, so this row says what such a proof would be worth, and nothing of what can be proved;
- all 357,504 single flips of the state of a small training (`results/populations/adam`), each followed to its end: what
  was not masked, and two outcomes that are rarer; strata by kind of leaf, epoch, role of the bit, and whether it is set
  before the flip, all of which is known beforehand;
- a million cases of which 2 % may do harm, and one in 1,000 does: strata tell these 2 % apart; once the others are
  not known to be harmless, and once they are.

Cases are drawn `again` or `once`.  A campaign covers if its interval contained the rate at every look.

A third number is the width of an interval from one sequence for each stratum at the level α/strata, added up, of the
same trials, in units of the wanted width.
"""

import argparse
import pathlib
import sys
import time

import numpy as np
import pairs

sys.path.insert(0, str(pairs.ROOT / "tests"))
sys.path.insert(0, str(pairs.ROOT / "results"))
from enumerated import Enumerated, dlrm, dlrm_component
from training_flips import KINDS, kind, training_flips

from fault_injection.campaign.sequences import ConfidenceSequence
from fault_injection.machine.files import write_json
from fault_injection.runs.outcome import MASKED, SHARP, SHORT_TERM

WIDTHS = (0.5, 0.2, 0.1)  # of both ends together, of the rate itself
BOUND = 0.1
SIZE, HARMFUL, RATE = 1_000_000, 20_000, 1e-3


def training():
    """Flips of the state of a training by outcome, with their strata."""
    flips, every, labels = training_flips("populations/adam"), [], []
    bits, kinds = np.arange(32), list(KINDS.values())
    for name, leaf in flips.leaves.items():
        words = leaf.value.view(np.uint32)[..., None]
        role = np.where(bits >= 20, bits, 0)  # the mantissa's three highest bits by themselves
        strata = (kinds.index(kind(name)) * 32 + role) * 2 + (words >> bits.astype(np.uint32) & 1)
        every.append(leaf.outcome.ravel())
        labels.append((strata * 100 + flips.times[:, 0, None, None]).ravel())
    outcome, of = np.concatenate(every), np.concatenate(labels)
    found = {"training, not masked": Enumerated(outcome != flips.outcomes.index(MASKED), of)}
    for name in (SHORT_TERM, SHARP):
        found[f"training, {name}"] = Enumerated(outcome == flips.outcomes.index(name), of)
    return found


def populations():
    """The populations by their names."""
    flips = dlrm()
    worst = np.zeros(len(flips.cases))
    np.maximum.at(worst, flips.of, flips.outcomes)
    found = {"dlrm, all": flips}
    found |= {f"dlrm, {name}": dlrm_component(flips, name) for name in ("bot", "emb", "top")}
    found["dlrm, bounds proved"] = Enumerated(flips.outcomes, flips.of, np.minimum(2 * worst, flips.high)[flips.of])
    found |= training()
    of = np.arange(SIZE) < HARMFUL
    harm = np.random.default_rng(0).permutation(HARMFUL) < RATE * SIZE
    outcomes = np.append(harm, np.zeros(SIZE - HARMFUL))
    return found | {"rare": Enumerated(outcomes, of), "rare, rest proved": Enumerated(outcomes, of, of)}


class StratumByStratum:
    """One sequence for each stratum, all together at the level of one."""

    def __init__(self, population):
        self.weights, level = population.cases / population.cases.sum(), 1 - 0.05 / len(population.cases)
        self.high = population.high
        self.sequences = [ConfidenceSequence(level, 0, high) for high in population.high]

    def __call__(self, draws, y):
        for stratum in np.unique(draws.strata):
            self.sequences[stratum].update(y[draws.strata == stratum], 0, self.high[stratum])

    @property
    def width(self):
        return float(sum(w * np.diff(one.interval())[0] for w, one in zip(self.weights, self.sequences, strict=True)))


def row(name, population, part, samples, again):
    """A line of the table."""
    plain, width = Enumerated(population.outcomes), part * population.rate
    simple = [plain.campaign(seed, width, again=again) for seed in range(samples)]
    others = [StratumByStratum(population) for _ in range(samples if again else 0)]
    strata = [
        population.campaign(seed, width, again=again, watch=others[seed] if again else None) for seed in range(samples)
    ]
    told = {
        "population": name,
        "rate": population.rate,
        "again": again,
        "width": part,
        "simple": float(np.mean([campaign.trials for campaign in simple])),
        "strata": float(np.mean([campaign.trials for campaign in strata])),
        "simple_covered": sum(campaign.covered[0] for campaign in simple),
        "strata_covered": sum(campaign.covered[0] for campaign in strata),
        "stratum_by_stratum": float(np.mean([one.width for one in others])) / width if again else None,
        "samples": samples,
    }
    told["ratio"] = told["strata"] / told["simple"]
    apart = f", stratum by stratum {told['stratum_by_stratum']:.1f} times as wide" if again else ""
    print(
        f"{name:24s} {population.rate:.2e} {'again' if again else 'once':5s} ±{part / 2:4.0%}  simple "
        f"{told['simple']:11,.0f}  strata {told['strata']:8,.0f}  ratio 1/{1 / told['ratio']:<6.1f} covered "
        f"{told['simple_covered']}, {told['strata_covered']} of {samples}{apart}",
        flush=True,
    )
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--samples", type=int, default=10, help="campaigns of each kind, by seeds 0, 1, … (default %(default)s)"
    )
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    options = parser.parse_args()
    start, rows = time.monotonic(), []
    for name, population in populations().items():
        for part in WIDTHS:
            rows += [row(name, population, part, options.samples, again) for again in (True, False)]
    print(f"{time.monotonic() - start:.0f} s")
    campaigns = 2 * options.samples * len(rows)
    covered = sum(one["simple_covered"] + one["strata_covered"] for one in rows)
    [claimed] = [one for one in rows if one["population"] == "dlrm, all" and one["width"] == 0.1 and one["again"]]
    print(
        f"claim: strata / simple random sampling, all flips of dlrm within 5 %, {claimed['ratio']:.3f}, bound {BOUND}: "
        f"{'met' if claimed['ratio'] <= BOUND else 'not met'}"
    )
    print(
        f"claim: intervals contain the rate at every look in {covered} of {campaigns} campaigns, bound 94 %: "
        f"{'met' if covered >= 0.94 * campaigns else 'not met'}"
    )
    if options.out:
        write_json(options.out, rows)


if __name__ == "__main__":
    main()
