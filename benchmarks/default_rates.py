"""How often the interval of a default campaign contains the rate that following every run gives.

Each campaign is made once, every run followed to its end; its rows say what an early verdict would have been, too.
A default campaign of the same plan has the same faults.  It audits those that its own plan draws, and believes the
other early verdicts; of faults beyond the rules' premises only those of rules that its audits support.  So its interval
follows from the same rows, and is compared with the rate of all ends.
"""

import argparse
import pathlib
import tempfile

import pairs

from fault_injection.campaign.rates import wilson
from fault_injection.machine.environment import prepare
from fault_injection.machine.errors import Untrustworthy
from fault_injection.machine.files import write_json
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions, Rule
from fault_injection.questions.outcomes.experiment import Laboratory, run_experiment
from fault_injection.questions.outcomes.plan import Plan
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.result import Result
from fault_injection.questions.outcomes.sampling import draw_experiment
from fault_injection.questions.outcomes.support import Support
from fault_injection.questions.outcomes.tally import tally_of
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import MASKED, UNDECIDED

TRAININGS = pairs.ROOT / "tests" / "premises_steps.py"
RANDOM, FLIPS = "RD = 1\nN16_RD = 1", "FLIPS_1 = { weight = 1, bits = [30] }\nFLIPS_4 = 1"
SIGNS = 'FLIPS_8 = { weight = 1, bits = [31] }\nFLIPS_16 = { weight = 1, values = "zero" }'
OPERATIONS = (
    "sgd", "accumulated", "accumulated_plainly", "adan", "prodigy", "ademamix", "schedule_free", "adafactor", "muon",
    "adam_by_hand", "averaged", "scaled", "normed",
)  # fmt: skip
# Training, stage, what is struck, and by which fault models.
KINDS = [
    *((name, "backward", "grad_wt:*", RANDOM) for name in OPERATIONS),
    ("averaged", "state", "shadow/*", FLIPS),
    ("sgd", "state", "params/*", SIGNS),
    ("accumulated", "state", "opt/*", FLIPS),
]
PLAN = """
workload = "{file}:{name}"
[faults]
experiments = {experiments}
epochs = [0, 1, 2]
stages = ["{stage}"]
sites = ["{sites}"]
seed = {seed}
[faults.models]
{models}
[run]
exit = "{exit}"
"""


def campaigns(kind: tuple[str, str, str, str], seeds: int, experiments: int, cache: pathlib.Path) -> list[dict]:
    """Campaigns of one training, one for each seed: the rate of all ends, and the default's interval."""
    name, stage, sites, models = kind

    def plan(seed, exit):
        fields = {"file": TRAININGS, "name": name, "stage": stage, "sites": sites, "models": models}
        return parse_plan(PLAN.format(**fields, experiments=experiments, seed=seed, exit=exit), TRAININGS)

    first = plan(0, "full")
    golden = Golden(first.workload, first.workload.program(first.supported), cache)
    golden.make(first.workload.epochs)
    found = []
    for seed in range(seeds):
        full, default = plan(seed, "full"), plan(seed, CONDITIONS)
        lab = Laboratory(full, golden, Conditions(), golden.folder / f"walks{seed}")
        numbers = sorted(range(experiments), key=lambda number: draw_experiment(full, number).epoch)
        results = [run_experiment(lab, number, tuple(Rule)) for number in numbers]
        ends = [result.outcome for result in results if result.outcome != UNDECIDED]
        rate = wilson(sum(outcome != MASKED for outcome in ends), len(ends))
        interval = tally_of(rows_of(results, default), default).not_masked(default.confidence)
        early = [result for result in results if result.early_outcome is not None]
        found.append(
            {
                "training": f"{name}, {stage} {sites}",
                "seed": seed,
                "experiments": experiments,
                "early": len(early),
                "wrong": sum(result.early_outcome != result.outcome for result in early),
                "full": rate._asdict(),
                "default": interval._asdict(),
                "contains": interval.low <= rate.share <= interval.high,
                "width": (interval.high - interval.low) / (rate.high - rate.low),
            }
        )
    return found


def rows_of(results: list[Result], default: Plan) -> list[dict]:
    """What the store of a default campaign says of runs that were followed to the end, each with its early verdict."""
    audits = {result.number for result in results if draw_experiment(default, result.number).audited}
    trusted = set(Rule)
    if default.audits_first:
        trusted = {Rule.VARIANCE, *(rule for rule in Rule if _support(rule, results, audits).enough)}
    rows = []
    for result in results:
        row = {"exit": result.exit, "outcome": result.outcome, "near": result.near, "early_rule": None, "ended": None}
        audited = result.number in audits
        if result.early_rule is not None and (audited or result.early_rule in trusted):
            ended = result.outcome if audited else None
            guess = {"outcome": result.early_outcome, "early_rule": result.early_rule, "ended": ended}
            row |= {"exit": CONDITIONS, **guess}
        rows.append({**row, "n": 1})
    return rows


def _support(rule: Rule, results: list[Result], audits: set[int]) -> Support:
    theirs = [result for result in results if result.early_rule == rule and result.number in audits]
    return Support(rule, len(theirs), sum(result.outcome != result.early_outcome for result in theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=7, help="campaigns of each training")
    parser.add_argument("--experiments", type=int, default=60, help="of each campaign")
    parser.add_argument("--training", help="of these alone, and the same of what is struck: TRAINING, STAGE SITES")
    parser.add_argument("--out", type=pathlib.Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    prepare()
    found = []
    with tempfile.TemporaryDirectory() as cache:
        for kind in KINDS:
            if options.training not in (None, f"{kind[0]}, {kind[1]} {kind[2]}"):
                continue
            try:
                ours = campaigns(kind, options.seeds, options.experiments, pathlib.Path(cache))
            except Untrustworthy as error:
                print(f"{kind[0]}, {kind[1]} {kind[2]}: refused: {error}", flush=True)
                continue
            found += ours
            print(
                f"{ours[0]['training']:40s} contained in {sum(one['contains'] for one in ours)} of {len(ours)}; "
                f"early {sum(one['early'] for one in ours)}, wrong {sum(one['wrong'] for one in ours)}; "
                f"width {max(one['width'] for one in ours):.2f} times full's at most",
                flush=True,
            )
    contained, kinds = sum(one["contains"] for one in found), len({one["training"] for one in found})
    print(
        f"claim: the default's interval contains the full rate in {contained} of {len(found)} campaigns of {kinds} "
        f"kinds of training, bound 95 %: {'met' if contained >= 0.95 * len(found) else 'not met'}"
    )
    if options.out:
        write_json(options.out, found)


if __name__ == "__main__":
    main()
