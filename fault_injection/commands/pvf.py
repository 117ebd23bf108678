"""`pvf`: the parameter vulnerability factor of a trained network, at inference."""

import argparse
from typing import Any

from ..campaign.task import Task
from ..questions.vulnerability.driver import run_trials
from ..questions.vulnerability.plan_file import read_pvf_plan
from ..questions.vulnerability.results import foreseen
from ..questions.vulnerability.tasks import golden_of
from .arguments import tell, tell_json
from .estimates import golden_needed
from .plan_options import driving, places, plan_options


def add(sub: argparse.ArgumentParser) -> None:
    plan_options(sub, "folder of the trials")


def run(options: argparse.Namespace) -> None:
    known = places(options)
    plan = read_pvf_plan(options.plan)
    task = Task(plan, **known)
    if options.check:
        cells = {cell.name: foreseen(plan, cell) for cell in plan.cells}
        if options.json:
            tell_json({"plan": plan.sentence(), "cells": cells})
            return
        tell(plan.sentence())
        for name, cell in cells.items():
            highest = cell["strata"][0] if "strata" in cell else None
            part = f" ({highest['trials']:,} at bit {highest['bits'][0]})" if highest else ""
            least = cell.get("high_if_none_is_wrong")
            end = f"; if none is wrong, the interval ends at {100 * least:.2g} %" if least is not None else ""
            tell(f"  {name}: at most {cell['trials']:,} trials{part}, in {cell['bits']:,} bits{end}")
        for line in golden_needed(golden_of(task), plan.epoch, options.data_dir):
            tell(line)
        return
    if not options.json:
        tell(plan.sentence())
    out, executors = driving(options)
    results = run_trials(task, out, executors(), str(options.plan))
    from ..questions.vulnerability.page import write_vulnerability_page  # Matplotlib is slow to import

    page = write_vulnerability_page(results)
    if options.json:
        rates = {cell.name: results.rate(cell) for cell in plan.cells}
        stated: dict[str, dict[str, Any]] = {
            name: {"pvf": r.share, "low": r.low, "high": r.high, "trials": r.trials, "any_wrong": r.any_wrong.share}
            for name, r in rates.items()
        }
        clean = {}
        if plan.wanted.decides:
            clean = {"clean_positive": results.positive()}
            for each in plan.cells:
                stated[each.name]["wrong_decisions"] = results.ways(each)
        tell_json({"report": str(page), **clean, "cells": stated})
    else:
        tell(f"written to {page}")
