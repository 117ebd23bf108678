"""`pvf`: the parameter vulnerability factor of a trained network, at inference."""

import argparse
from typing import Any

from ..campaign.task import Task
from ..questions.vulnerability.driver import run_trials
from ..questions.vulnerability.plan_file import read_pvf_plan
from ..questions.vulnerability.rates import VulnerabilityRate
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
            tell(f"  {name}: {_taken(cell)}")
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
        stated = {cell.name: _stated(results.rate(cell), plan.half_width is not None) for cell in plan.cells}
        clean = {}
        if plan.wanted.decides:
            clean = {"clean_positive": results.positive()}
            for each in plan.cells:
                stated[each.name]["wrong_decisions"] = results.ways(each)
        tell_json({"report": str(page), **clean, "cells": stated})
    else:
        for each in plan.cells:
            if (rate := results.rate(each)).more:
                tell(f"{each.name}: {rate.answer}")
        tell(f"written to {page}")


def _taken(cell: dict[str, Any]) -> str:
    """What a cell will take, in words."""
    bits, least = f"in {cell['bits']:,} bits", cell.get("trials_if_none_is_wrong")
    if least is None:
        return f"every one of {cell['trials']:,} trials, {bits}"
    if "trials_at_most" not in cell:
        end = f"if none is wrong, the interval ends at {100 * cell['high_if_none_is_wrong']:.2g} %"
        return f"{least:,} trials, {bits}; {end}"
    return f"{least:,} trials if none is wrong, about {cell['trials_at_most']:,} at most, {bits}"


def _stated(rate: VulnerabilityRate, asked: bool) -> dict[str, Any]:
    """A rate for JSON; and whether it is as narrow as asked, if that was."""
    anyone = None if rate.any_wrong is None else rate.any_wrong.share
    known = {"pvf": rate.share, "low": rate.low, "high": rate.high, "trials": rate.trials, "any_wrong": anyone}
    return known | ({"answer": rate.answer} if asked else {})
