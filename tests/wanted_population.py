"""Campaigns that want a width, on faults whose outcomes are known: drawn and judged as the command does it.

Chances of outcomes are about those of the reference campaign (results/README.md).
"""

import numpy as np

from fault_injection.questions.outcomes.answer import StratifiedAnswer
from fault_injection.questions.outcomes.conditions import CONDITIONS
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.result import END
from fault_injection.questions.outcomes.sampling import draw_experiment
from fault_injection.runs.outcome import IMMEDIATE, MASKED, SLOW

BAD = {"N16_RD": 0.984, "RD_GLB": 0.962, "MEASURED": 0.26, "RD": 0.248}
HIGHEST = 0.45  # of flips of the highest exponent bit
LATENT = 0.1  # of the bad ones degrade slowly, others are not finite at once
EARLY = 0.85  # of the masked ones have an early verdict

PLAN = """
workload = "resnet18"
[options]
dataset = "digits"
width = 2
blocks = "1/1/1/1"
batch_size = 128
epochs = 20
[faults]
seed = {seed}
{faults}
[wanted]
{wanted}
[run]
{run}
"""


def wanted_plan(seed=0, wanted="width = 0.1", run="", faults=""):
    """All models of the reference plan, unless `faults` names others."""
    models = "" if "models" in faults else f"{faults}\n[faults.models]\n" + "\n".join(f"{name} = 1" for name in MODELS)
    return parse_plan(PLAN.format(seed=seed, wanted=wanted, run=run, faults=models or faults))


MODELS = (
    *("INPUT", "WT", "RBFLIP", "RD", "RD_CORRECT", "ZERO", "N16_RD", "N16_RD_CORRECT"),
    *("RD_GLB", "RD_CORRECT_GLB", "N64_INPUT", "N64_INPUT_GLB", "N64_WT", "N64_WT_GLB", "MEASURED"),
)


def chance(model):
    """Of a bad outcome, of a fault model that is drawn in a stratum."""
    if model.values == "bit_flip":
        return HIGHEST if dict(model.options).get("bits") == (30,) else 0.0
    return BAD.get(model.name, 0.0)


def share(outcome):
    """Of an outcome, or of several with an *or* between them, among the bad ones."""
    shares = {SLOW: LATENT, IMMEDIATE: 1 - LATENT, "not masked": 1.0}
    return sum(shares.get(name, 0.0) for name in outcome.split(" or "))


def truth(answer, rate):
    """What a rate of an answer is, from the plan's distribution alone."""
    division, weight, mean = answer.division, 0.0, 0.0
    at = division.dimensions.index(rate.dimension) if rate.dimension else None
    for stratum in division.strata:
        if at is None or stratum.labels[at] == rate.name:
            weight += stratum.weight
            mean += sum(kind.weight * chance(kind.model) for kind in stratum.kinds)
    bad = mean / weight
    return 1 - bad if rate.outcome == MASKED else bad * share(rate.outcome)


def honest(end, rng):
    """An early verdict of most that are masked."""
    return MASKED if end == MASKED and rng.random() < EARLY else None


def constant(end, rng):
    """Everything is said to be masked."""
    return MASKED


def inverted(end, rng):
    """Everything is said to be what it is not."""
    return SLOW if end == MASKED else MASKED


def row(plan, drawn, verdict, rng):
    """What a store has of an experiment; which verdict comes early is `verdict(end, rng)`."""
    bad = rng.random() < chance(drawn.model)
    end = MASKED if not bad else SLOW if rng.random() < LATENT else IMMEDIATE
    early = verdict(end, rng) if plan.exit == CONDITIONS else None
    near = int(rng.random() < 0.3)
    if early is None:
        return {"outcome": end, "exit": END, "near": 0, "early_rule": None, "audit_outcome": None}
    audited = drawn.audited or (near and drawn.audited_near) or early != MASKED
    known = {"early_rule": "at once", "audit_outcome": end if audited else None}
    return {"outcome": early, "exit": CONDITIONS, "near": near, **known}


def simulated(plan, verdict=honest):
    """A campaign to its end: the answer, and of each rate whether its interval contained it at every block's end."""
    answer, rng, covered, truths = StratifiedAnswer(plan), np.random.default_rng(plan.seed), None, None
    while block := answer.next():
        drawn = [draw_experiment(plan, n, h) for n, h in zip(block.numbers, block.strata, strict=True)]
        answer.observe(block, [row(plan, e, verdict, rng) for e in drawn])
        rates = answer.rates()
        truths = truths or [truth(answer, rate) for rate in rates]
        inside = [r.rate.low - 1e-9 <= t <= r.rate.high + 1e-9 for r, t in zip(rates, truths, strict=True)]
        covered = [a and b for a, b in zip(covered or inside, inside, strict=True)]
    return answer, covered
