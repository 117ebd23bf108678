"""Verdicts of campaigns that end experiments early, compared with a campaign that runs every experiment to its end.

The plans may differ only in `exit`, in audits and in the number of experiments, so that experiment i is the same in all
campaigns.  Each claim is about the experiments that both campaigns have.  Every verdict that differs is listed with the
rules of both campaigns.  A rule states its tolerance and how many twins of the golden run are behind it.  An outcome is
latent if it is bad without a non-finite loss, and missed if the other campaign says that it is masked.
"""

import argparse
import pathlib

import pairs

from fault_injection.campaign.rates import at_most, wilson
from fault_injection.machine.files import write_json
from fault_injection.questions.outcomes.store import Store
from fault_injection.runs.outcome import LATENT, MASKED, UNDECIDED

BOUNDS = {"exact": 1.0, "conditions": 0.99}  # least share of the decided verdicts that must agree
MOST_UNDECIDED = 0.1
MAY_DIFFER = ("exit", "audit", "audit_near")


def read(folder):
    """The exit mode, the part of the plan that must be the same in all campaigns, and the experiments by number."""
    with Store(folder) as store:
        plan = store.plan()
        rows = store.query("SELECT number, outcome, rule, exit, steps, site, model FROM experiments")
    plan_of_all = {name: value for name, value in plan.identity().items() if name not in MAY_DIFFER}
    return plan.exit, plan_of_all, {row["number"]: dict(row) for row in rows}


def compare(folder, full_plan, full):
    """Compare a campaign's verdicts with the full ones; print the claim and return its numbers."""
    mode, plan, found = read(folder)
    if plan != full_plan:
        raise SystemExit(f"{folder}: its plan is not that of the full campaign")
    common = sorted(full.keys() & found.keys())
    if not common:
        raise SystemExit(f"{folder}: it shares no experiment with the full campaign")
    decided = [i for i in common if found[i]["outcome"] != UNDECIDED]
    differing = [i for i in decided if found[i]["outcome"] != full[i]["outcome"]]
    agreeing = wilson(len(decided) - len(differing), len(decided), pairs.CONFIDENCE)
    undecided = 1 - len(decided) / len(common)
    steps = [sum(of[i]["steps"] for i in common) / len(common) for of in (found, full)]
    latent = [i for i in common if full[i]["outcome"] in LATENT]
    missed = [i for i in latent if found[i]["outcome"] == MASKED]
    met = agreeing.share >= BOUNDS[mode] and undecided <= MOST_UNDECIDED and not missed
    most = at_most(len(missed), len(latent), pairs.CONFIDENCE)
    print(
        f"claim: {mode}: {agreeing.found} of {agreeing.total} decided verdicts are as in full mode, "
        f"{agreeing.share:.2%} [{agreeing.low:.2%}, {agreeing.high:.2%}], bound {BOUNDS[mode]:.0%}; "
        f"undecided {undecided:.2%}, bound {MOST_UNDECIDED:.0%}; "
        f"latent outcomes missed {len(missed)} of {len(latent)}, at most {most:.1%}, bound 0: "
        f"{'met' if met else 'not met'}; steps per experiment {steps[0]:.1f}, in full mode {steps[1]:.1f}"
    )
    for i in differing:
        of, reference = found[i], full[i]
        print(f"  {i}: {of['model']} at {of['site']}: {of['outcome']} ({of['rule']})")
        print(f"    full: {reference['outcome']} ({reference['rule']})")
    numbers = {"common": len(common), "decided": len(decided), "differing": differing, "met": met}
    numbers |= {"latent": len(latent), "missed": missed}
    return {"mode": mode, "steps": steps[0], "steps_full": steps[1], **numbers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("full", type=pathlib.Path, help="folder of the campaign in full mode")
    parser.add_argument("others", type=pathlib.Path, nargs="+", help="folders of the campaigns to compare with it")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    options = parser.parse_args()
    mode, plan, full = read(options.full)
    if mode != "full":
        parser.error(f"{options.full} is in exit mode {mode}, not full")
    claims = [compare(folder, plan, full) for folder in options.others]
    if options.out:
        write_json(options.out, {"claims": claims})


if __name__ == "__main__":
    main()
