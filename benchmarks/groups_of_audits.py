"""What groups of audits cost and give in a campaign such as the reference: steps, and widths of the rate's interval.

    python benchmarks/groups_of_audits.py --out groups_of_audits.json

Nothing runs: `campaign.two_phase` says how wide the interval of the rate of what was not masked is where no audit comes
to another outcome, with the outcomes and the steps of the reference campaign (results/README.md).  One interval holds
whatever groups hide, the other on the premise that groups that ended masked hide nothing.
"""

import argparse
import pathlib

import pairs  # noqa: F401

from fault_injection.campaign.rates import score_interval
from fault_injection.campaign.two_phase import Guesses, two_phase
from fault_injection.machine.files import write_json

# Of the reference campaign: shares of its 2,400 experiments, and steps.
EXPERIMENTS, EARLY, BAD, CONFIDENCE = 2400, 1746 / 2400, 327 / 2400, 0.95
PUBLISHED, VERDICT, WALK, GOLDEN, AUDIT = 392.3, 4.4, 0.4, 3520, 436

# Experiments, share of early verdicts audited, audits in a group (1: none), and share of these followed alone besides.
PLANS = (
    (2400, 0.081, 1, 1.0),
    (2400, 0.405, 20, 0.2),
    (2400, 0.2, 20, 0.05),
    (2400, 0.2, 64, 0.01),
    (2800, 0.25, 64, 0.01),
)


def width(experiments, audits, alone):
    """Of the interval; `alone` of the audits were followed by themselves, all others are in groups that were masked."""
    early, bad = EARLY * experiments, BAD * experiments
    nested = None if alone == audits else Guesses(audits, 0, alone, 0)
    kinds = [Guesses(early, 0, 0 if nested else audits, 0, nested=nested)]
    found = two_phase(bad, experiments - early - bad, kinds, CONFIDENCE)
    return found.high - found.low


def row(experiments, share, most, alone):
    audits = round(share * EARLY * experiments)
    followed = round(alone * audits)
    runs = audits if most == 1 else followed + audits / most
    steps = experiments * (VERDICT + WALK) + GOLDEN + AUDIT * runs
    return {
        "experiments": experiments,
        "audits": audits,
        "together": most,
        "alone": followed,
        "steps": steps,
        "part": EXPERIMENTS * PUBLISHED / steps,
        "width": width(experiments, audits, followed),
        "width_if_groups_hide_nothing": width(experiments, audits, audits),
    }


def cheapest(wanted):
    """The campaign without groups of which the interval is as narrow as wanted, in the fewest steps."""
    found = []
    for experiments in range(2400, 7201, 400):
        few, enough = 1, round(EARLY * experiments)
        if width(experiments, enough, enough) > wanted:
            continue
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if width(experiments, middle, middle) <= wanted else (middle, enough)
        found.append(row(experiments, enough / (EARLY * experiments), 1, 1.0))
    return min(found, key=lambda one: one["steps"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    low, high = score_interval(BAD, EXPERIMENTS, CONFIDENCE)
    print(f"{EXPERIMENTS} runs, all followed to the end: {100 * (high - low):.1f} points wide")
    rows = [row(*plan) for plan in PLANS] + [cheapest(high - low)]
    for one in rows:
        groups = "no groups" if one["together"] == 1 else f"groups of {one['together']}, {one['alone']} alone"
        print(
            f"{one['experiments']} experiments, {one['audits']} audits, {groups}: {one['steps']:,.0f} steps "
            f"(1/{one['part']:.1f}), {100 * one['width']:.1f} points wide, "
            f"{100 * one['width_if_groups_hide_nothing']:.1f} if groups hide nothing"
        )
    if options.out:
        write_json(options.out, {"full": high - low, "plans": rows})


if __name__ == "__main__":
    main()
