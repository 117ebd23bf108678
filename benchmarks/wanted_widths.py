"""How many experiments, and about how many training steps, a wanted width takes, by the share of audits.

    python benchmarks/wanted_widths.py --out wanted_widths.json

Campaigns are drawn and judged as the command does it, on the population of `tests/wanted_population.py`, whose outcomes
are about those of the reference campaign by fault model and bit, and whose early verdicts are right.  Steps are counted
as that campaign took them (results/README.md): 4.4 for a verdict, and 436 more for an audit.
"""

import argparse
import pathlib
import sys

import numpy as np
import pairs

sys.path.insert(0, str(pairs.ROOT / "tests"))
from wanted_population import simulated, wanted_plan

from fault_injection.machine.files import write_json

WIDTHS, AUDITS, SEEDS = (0.08, 0.04, 0.02), (0.05, 0.1, 0.2), 3
VERDICT, AUDIT = 4.4, 436


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    for width in WIDTHS:
        for audit in AUDITS:
            found = []
            for seed in range(SEEDS):
                answer, _ = simulated(wanted_plan(seed, f"width = {width}", f"audit = {audit}"))
                rate = answer.rates()[0].rate
                found.append((answer.experiments, VERDICT * answer.experiments + AUDIT * rate.audits, answer.blocks))
            experiments, steps, blocks = np.mean(found, axis=0)
            rows.append({"width": width, "audit": audit, "experiments": experiments, "steps": steps, "blocks": blocks})
            cost = f"{experiments:,.0f} experiments, {steps:,.0f} steps, {blocks:.0f} blocks"
            print(f"width {width:g}, audit {audit:g}: {cost}")
    if options.out:
        write_json(options.out, rows)


if __name__ == "__main__":
    main()
