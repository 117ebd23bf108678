"""Intervals of the numbers that were made before intervals covered, from what is shipped of them.

    python results/pvf/reestimate.py

Of these runs, `rates.json` has the factor of each cell and how many trials it took, and no trials.  All flips were
as likely, so the sum s of the shares of n trials spreads no more than a count of so many trials that make all outputs
wrong or none.  The ends are therefore those of such a count: the quantiles of Beta(s, n − s + 1) and of
Beta(s + 1, n − s), as `fault_injection/questions/vulnerability/rates.py` has them of trials.  They are wider than the
trials themselves would give.  What protection gains has no interval any more: a bootstrap's does not know
what no trial saw.

A file that has `strata` was made with intervals that cover, and is left alone.
"""

import json
import pathlib

from scipy.special import betaincinv

CONFIDENCE = 0.95


def main():
    for path in sorted(pathlib.Path(__file__).parent.glob("*/rates.json")):
        rates = json.loads(path.read_text())
        if any("strata" in cell for cell in rates["cells"]):
            continue
        for cell in rates["cells"]:
            if cell["kind"] != "all":
                cell["interval"] = interval(cell["pvf"] * cell["trials"], cell["trials"])
        rates["intervals"] = "of a count, from the factors and the numbers of trials: results/pvf/reestimate.py"
        if rates["protection"]:
            rates["protection"] |= {"low": None, "high": None}
        path.write_text(json.dumps(rates, indent=2) + "\n")


def interval(found, trials):
    """Clopper's and Pearson's ends of a count that need not be whole."""
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(found, trials - found + 1, tail)) if found > 0 else 0.0
    low = low if low > 1e-9 else 0.0  # a fraction of a trial
    return [low, float(betaincinv(found + 1, trials - found, 1 - tail)) if found < trials else 1.0]


if __name__ == "__main__":
    main()
