"""`campaign`: many injections of one plan."""

import argparse
import collections
import dataclasses

from ..campaign.allocation import FIRST
from ..campaign.task import Task
from ..campaign.terminal import clock
from ..questions.outcomes import jobs
from ..questions.outcomes.audits import BAD, EARLY, expected
from ..questions.outcomes.conditions import CONDITIONS
from ..questions.outcomes.driver import campaign
from ..questions.outcomes.plan import Plan
from ..questions.outcomes.plan_file import read_plan
from ..questions.outcomes.sampling import draw_experiment
from ..questions.outcomes.standing import standing
from ..questions.outcomes.strata import divided
from .arguments import tell, tell_json
from .estimates import golden_needed
from .plan_options import driving, places, plan_options

DRAWN = 100_000  # experiments up to which `--check` draws them all, to count them by fault model


def add(sub: argparse.ArgumentParser) -> None:
    plan_options(sub, "folder of the campaign")


def run(options: argparse.Namespace) -> None:
    known = places(options)
    plan = read_plan(options.plan)
    task = Task(plan, **known)
    if options.check:
        _check(plan, task, options)
        return
    if not options.json:
        tell(plan.sentence())
    out, executors = driving(options)
    campaign(task, out, executors(), str(options.plan))
    if options.json:
        tell_json(standing(out).as_dict())
    else:
        tell(f"now: python -m fault_injection report {out}")


def _check(plan: Plan, task: Task[Plan], options: argparse.Namespace) -> None:
    """Say what the campaign would do and need."""
    lab = jobs.laboratory(task)
    made = plan.workload.data_at_hand(options.data_dir)
    drawn = _drawn(plan)
    disk, seconds = jobs.disk_bytes(plan, lab.golden), lab.golden.seconds_per_step() if made else None
    missing = plan.golden_epochs - (min(lab.golden.recorded(), plan.golden_epochs) if made else 0)
    golden_steps = plan.golden_steps - (plan.golden_epochs - missing) * plan.steps_per_epoch
    most = _steps_followed(plan)
    audits, audited = _audits(plan) if plan.wanted is None else (None, _strata(plan))
    least = most if plan.exit == "full" else 1.0
    if options.json:
        tell_json(
            {
                "plan": plan.sentence(),
                "experiments_by_model": drawn,
                "golden_epochs_missing": missing,
                "golden_steps": golden_steps,
                "steps_per_experiment": [least, most],
                "audits": audits,
                "disk_bytes": disk,
                "seconds_per_step": seconds,
            }
        )
        return
    tell(plan.sentence())
    if drawn:
        tell("Experiments by fault model: " + ", ".join(f"{name} {count}" for name, count in drawn.items()) + ".")
    for line in golden_needed(lab.golden, plan.golden_epochs, options.data_dir):
        tell(line)
    tell(f"It is another golden run than a replay's: {jobs.WHY_ANOTHER}.")
    twins = f"{plan.twins} twins, " if plan.twins else ""
    tell(f"Disk: up to {disk / 1e6:.0f} MB for the golden run, {twins}and the states that experiments fork from.")
    tell(
        f"Steps: {golden_steps} of the golden run and its twins; {least:.0f} per experiment if all end at once, "
        f"{most:.0f} if all are followed as far as the plan allows."
    )
    for line in audited:
        tell(line)
    if plan.wanted is not None:
        each = "" if seconds is None else f" An experiment takes {seconds * least:.2g} to {seconds * most:.2g} s."
        tell(f"Time: not known before the first blocks: how many experiments it takes depends on outcomes.{each}")
    elif seconds is None:
        tell("Time: not known before a golden run of this workload has been made on this machine.")
    else:
        low, high = (seconds * (golden_steps + plan.experiments * steps) for steps in (least, most))
        tell(f"Time of one job: {clock(low)} to {clock(high)}, at {seconds:.3f} s per step; compiling comes on top.")


def _audits(plan: Plan) -> tuple[dict[str, float] | None, list[str]]:
    """What audits of early verdicts would cost and leave open: numbers, and lines; none where no verdict is a guess."""
    if plan.exit != CONDITIONS:
        return None, []
    early = EARLY * plan.experiments
    alone = None if plan.together is None else plan.together_alone
    found = expected(plan.experiments, plan.audit * early, plan.confidence, alone)
    runs = found.audits if plan.together is None else found.audits * (plan.together_alone + 1 / plan.together)
    steps = runs * _steps_followed(dataclasses.replace(plan, horizon=None))
    numbers = {"share": plan.audit, "steps": steps, "steps_per_experiment": steps / plan.experiments, **found._asdict()}
    text = (
        f"Audits: {plan.audit:.1%} of early verdicts are followed to the end, about {found.audits:.0f} of {early:.0f} "
        f"if {EARLY:.0%} of the experiments have one: {steps:.0f} steps, {steps / plan.experiments:.1f} per experiment"
    )
    if plan.audit_near is not None:
        text += f". Of those near a threshold {plan.audit_near:.0%} more"
    if plan.audits_first:
        text += (
            ". They are made first, because the faults are beyond the rules' premises; if they do not support a rule, "
            "its runs are followed"
        )
    if plan.settled is not None:
        text += f". Runs that settle end sooner, and {plan.settled_follow:.0%} of these go on all the same"
    more = ""
    if plan.together is not None:
        text += (
            f", {plan.together} in one run, and {plan.together_alone:.0%} of them by themselves besides; more where a "
            "group does not end masked"
        )
        believed = expected(plan.experiments, found.audits, plan.confidence).width
        numbers["width_if_groups_hide_nothing"] = believed
        more = f"; {100 * believed:.2g} on the premise that groups hide nothing"
    widths = (
        f"If {BAD:.0%} of the other experiments are not masked, and no audit differs, the interval of the rate of what "
        f"was not masked is {100 * found.width:.2g} points wide{more}; {100 * found.full:.2g} if every run is followed."
    )
    return numbers, [f"{text}.", widths]


def _strata(plan: Plan) -> list[str]:
    """What is drawn where a width is wanted."""
    division = divided(plan)
    by = ", ".join(division.dimensions) or "nothing"
    growing = f"The first block has {FIRST} experiments, a later one a tenth of all so far, or {FIRST}."
    lines = [f"Strata: {len(division.strata)}, by {by}. {growing}"]
    if plan.exit == CONDITIONS:
        near = "" if plan.audit_near is None else f", of those near a threshold {plan.audit_near:.0%} more"
        lines.append(f"Audits: {plan.audit:.1%} of early verdicts{near}, and all that are not Masked.")
    return lines


def _drawn(plan: Plan) -> dict[str, int]:
    """How many experiments each fault model gets: drawn, or of a large plan what is expected.

    None where a width is wanted: outcomes decide.
    """
    if plan.wanted is not None:
        return {}
    if plan.experiments <= DRAWN:
        counts = collections.Counter(draw_experiment(plan, number).model.name for number in range(plan.experiments))
        return {model.name: counts[model.name] for model in plan.models}
    total = sum(model.weight for model in plan.models)
    return {model.name: round(plan.experiments * model.weight / total) for model in plan.models}


def _steps_followed(plan: Plan) -> float:
    """Mean number of steps per experiment, if all are followed as far as the plan allows."""
    lengths = [plan.followed(epoch, step) for epoch in plan.epochs for step in plan.steps]
    return sum(lengths) / len(lengths)
