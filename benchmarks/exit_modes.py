"""Verdicts of campaigns that end experiments early against those of one that runs each to the end.

The campaigns are of plans that differ in `exit` and in the number of experiments only, so that experiment i is the
same in all of them.  The claims are about those that both have; every difference is listed with the rules of both,
which state the tolerance, and the twins of the golden run that it is from.
"""

import argparse
import pathlib

import pairs

from fault_injection.campaign.rates import wilson
from fault_injection.campaign.store import Store
from fault_injection.machine.files import write_json
from fault_injection.runs.outcome import UNDECIDED

BOUNDS = {"exact": 1.0, "conditions": 0.99}  # share of the decided verdicts that agree, at least
MOST_UNDECIDED = 0.1


def read(folder):
    """Exit mode, plan without what may differ, and verdicts by number."""
    with Store(folder) as store:
        plan = store.plan()
        rows = store.query("SELECT number, outcome, rule, exit, steps, site, model FROM experiments")
    plan_of_all = {name: value for name, value in plan.identity().items() if name != "exit"}
    return plan.exit, plan_of_all, {row["number"]: dict(row) for row in rows}


def compare(folder, full_plan, full):
    """Print, and return, what a campaign's verdicts have in common with the full ones."""
    mode, plan, found = read(folder)
    if plan != full_plan:
        raise SystemExit(f"{folder}: another plan than the full campaign's")
    common = sorted(full.keys() & found.keys())
    if not common:
        raise SystemExit(f"{folder}: no experiment is in the full campaign too")
    decided = [i for i in common if found[i]["outcome"] != UNDECIDED]
    differing = [i for i in decided if found[i]["outcome"] != full[i]["outcome"]]
    agreeing = wilson(len(decided) - len(differing), len(decided), pairs.CONFIDENCE)
    undecided = 1 - len(decided) / len(common)
    steps = [sum(of[i]["steps"] for i in common) / len(common) for of in (found, full)]
    met = agreeing.share >= BOUNDS[mode] and undecided <= MOST_UNDECIDED
    print(
        f"claim: {mode}: {agreeing.found} of {agreeing.total} decided verdicts as in full mode, {agreeing.share:.2%} "
        f"[{agreeing.low:.2%}, {agreeing.high:.2%}], bound {BOUNDS[mode]:.0%}; undecided {undecided:.2%}, bound "
        f"{MOST_UNDECIDED:.0%}: {'met' if met else 'not met'}; steps an experiment {steps[0]:.1f}, full {steps[1]:.1f}"
    )
    for i in differing:
        of, reference = found[i], full[i]
        print(f"  {i}: {of['model']} at {of['site']}: {of['outcome']} ({of['rule']})")
        print(f"    full: {reference['outcome']} ({reference['rule']})")
    numbers = {"common": len(common), "decided": len(decided), "differing": differing, "met": met}
    return {"mode": mode, "steps": steps[0], "steps_full": steps[1], **numbers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("full", type=pathlib.Path, help="folder of the campaign in full mode")
    parser.add_argument("others", type=pathlib.Path, nargs="+", help="folders of the others")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    options = parser.parse_args()
    mode, plan, full = read(options.full)
    if mode != "full":
        parser.error(f"{options.full} is in exit mode {mode}")
    claims = [compare(folder, plan, full) for folder in options.others]
    if options.out:
        write_json(options.out, {"claims": claims})


if __name__ == "__main__":
    main()
