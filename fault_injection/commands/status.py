"""`status`: how far a campaign, its scoreboard, or a plan of trials is; one line each."""

import argparse
import pathlib
from typing import Any

from ..campaign.wording import plural, share
from ..questions.outcomes.standing import Standing, standing
from ..questions.outcomes.store import NAME
from ..questions.scoreboard.standing import ScoreStanding, has_score, score_standing
from ..questions.vulnerability.files import has_trials
from .arguments import json_option, tell, tell_json


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("campaign", type=pathlib.Path, metavar="DIR", help="folder of `campaign`, `score` or `pvf`")
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    folder, told = options.campaign, []
    known: dict[str, Any] = {}
    trials = has_trials(folder)
    if not trials or (folder / NAME).exists():  # a folder with nothing is refused as one without a campaign
        found = standing(folder)
        known |= found.as_dict()
        told.append(_campaign(found))
    if has_score(folder):
        score = score_standing(folder)
        known["score"] = score and score.as_dict()
        told.append(_score(score, folder))
    if trials:
        from ..questions.vulnerability.standing import trials_standing  # JAX is slow to import

        pvf = known["pvf"] = trials_standing(folder).as_dict()
        told.append(_trials(pvf, folder))
    if options.json:
        tell_json(known)
        return
    for line in told:
        tell(line)


def _campaign(found: Standing) -> str:
    """A campaign in a line: what it is, how far, its rate so far, how to go on."""
    if found.plan is None:
        return f"Campaign: It has not begun: there is no golden run yet. {_next(found)}"
    answer, what, rate = found.answer, "not masked", found.whole
    done = f"{found.done:,} of {plural(found.experiments, 'experiment')}"
    if answer is not None:
        done = f"{plural(found.done, 'experiment')}, {answer.standing}"
        first = next(one for one in answer.rates() if one.asked)
        what, rate = first.outcome, first.rate if answer.experiments else None
    known = f", {what} {share(rate)}" if rate is not None and rate.total else ""
    if found.together is not None and found.together.believed is not None:
        groups = f"{plural(found.together.masked, 'masked group')} of audits"
        shown = f"{share(found.together.believed)} if no harm hides in {groups}"
        known += f" ({shown}; {found.together.alone:,} followed alone show none)"
    if found.unstruck:
        known += f", nothing struck in {found.unstruck:,}"
    return f"Campaign on {found.plan.workload.title}: {done}{known}. {_next(found)}"


def _next(found: Standing) -> str:
    if found.running:
        return "It is running."
    if found.resumable:
        plan = found.plan_file or "PLAN"
        return f"It is not running. To go on: python -m fault_injection campaign {plan} --out {found.folder}"
    more = ""
    if found.left:
        more = " Its plan allows no more; raise faults.experiments to go on."
    return f"It is complete.{more} Its report: python -m fault_injection report {found.folder}"


def _score(found: ScoreStanding | None, folder: pathlib.Path) -> str:
    """A scoreboard in a line."""
    if found is None:
        return "Scoreboard: It has not begun."
    watching = plural(len(found.detectors), "detector")
    done = (
        f"{found.watched:,} of {plural(found.wanted, 'experiment')} watched by {watching}"
        f", {found.fault_free} of {plural(found.fault_free_wanted, 'fault-free run')}"
        f", cost {'measured' if found.cost else 'not measured yet'}"
    )
    if found.running:
        return f"Scoreboard: {done}. It is running."
    if found.complete:
        return f"Scoreboard: {done}. It is complete. Its page: python -m fault_injection report {folder}"
    return f"Scoreboard: {done}. It is not running. To go on: python -m fault_injection score PLAN --out {folder}"


def _trials(found: dict[str, Any], folder: pathlib.Path) -> str:
    """A plan of trials in a line."""
    done = f"Trials: {found['plan']}; {plural(found['parts'], 'part')} of blocks here"
    if found["running"]:
        return f"{done}. It is running."
    if found["told"]:
        return f"{done}. It is complete. Its page: python -m fault_injection report {folder}"
    return f"{done}. It is not running. To go on: python -m fault_injection pvf {found['plan_file']} --out {folder}"
