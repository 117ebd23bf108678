"""The commands of campaigns: `campaign`, `report`, `export`, and `replay` of one experiment."""

import argparse
import pathlib
from collections.abc import Callable

from ..campaign.plan import Plan
from ..machine.errors import InputError
from .arguments import place_options, positive, whole


def run_campaign(options) -> None:
    """`campaign PLAN --out DIR`: run what is missing of it."""
    import jax

    from ..campaign.driver import campaign
    from ..campaign.executors import on_a_scheduler, on_this_machine
    from ..campaign.plan import read_plan

    jax.config.update("jax_platforms", "cpu")  # of this process alone: accelerators are the jobs'
    plan = read_plan(options.plan)
    print(describe(plan), flush=True)
    if options.check:
        return
    if options.out is None:
        raise InputError("--out DIR is missing: the folder of the campaign")
    if options.out.exists() and not options.out.is_dir():
        raise InputError("--out is a file, expected a folder", options.out)
    if options.scheduler and options.jobs:
        raise InputError("--jobs counts processes of this machine, --scheduler has its own; give one of them")
    executors = on_a_scheduler(options.scheduler) if options.scheduler else on_this_machine(options.jobs)
    campaign(_task(options, plan), options.out, executors)
    print(f"now: python -m fault_injection report {options.out}")


def run_report(options) -> None:
    """`report DIR`: write its report."""
    from ..campaign.report.sections import write_report

    print(f"written to {write_report(options.campaign)}")


def run_export(options) -> None:
    """`export DIR`: injection files of experiments, or its tables as Parquet."""
    from ..campaign.repeat import as_injection, export_tables
    from ..campaign.store import Store
    from ..faults.injection import write_injection

    out = options.out or options.campaign / "export"
    with Store(options.campaign) as store:
        plan, key = _plan_of(store)
        if not options.id:
            print(*export_tables(store, out), sep="\n")
    task = _task(options, plan)  # one for all, so that its laboratory is set up once
    for number in options.id or ():
        path = out / f"experiment_{number}.csv"
        write_injection(path, as_injection(task, number, key))
        print(path)


def replay_experiment(options) -> None:
    """`replay DIR --id N`: one experiment to the end."""
    from ..campaign import repeat
    from ..campaign.store import Store

    if options.id is None:
        raise InputError("which experiment? give its --id")
    with Store(options.campaign) as store:
        plan, key = _plan_of(store)
    out = options.out or options.campaign / f"experiment_{options.id}"
    command = ["python", "-m", "fault_injection", *options.arguments]
    result = repeat.replay_experiment(_task(options, plan), options.id, key, out, command)
    print(f"{result.outcome.outcome}: {result.outcome.rule}")
    print(f"written to {out}/")


def _task(options, plan: Plan):
    from ..campaign.jobs import Task

    return Task(plan, cache=options.cache, data_dir=options.data_dir, precision=options.precision)


def _plan_of(store) -> tuple[Plan, str]:
    """A campaign's plan and key."""
    if (plan := store.plan()) is None:
        raise InputError("the campaign has not begun", store.path)
    return plan, store.about()["plan_key"]


def describe(plan: Plan) -> str:
    """A plan in words."""
    w = plan.workload
    size = f"{plan.experiments} experiments"
    if plan.half_width is not None:
        size += f", for rates within ±{plan.half_width:g} at {plan.confidence:.0%}"
    ends = "to the end of the training" if plan.horizon is None else f"for at most {plan.horizon} steps"
    models = ", ".join(model.name for model in plan.models)
    return (
        f"{size}, on {w.name} with {w.dataset}: {len(plan.sites)} sites, {len(plan.epochs)} of {w.epochs} epochs; "
        f"fault models {models}; exit mode {plan.exit}, followed {ends}"
    )


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the campaign's commands; `command(name, run, text)` makes the parser of one."""
    text = "run a campaign: many injections of one plan, with their statistics; goes on where it stopped"
    sub = command("campaign", run_campaign, text)
    sub.add_argument("plan", type=pathlib.Path, metavar="PLAN", help="TOML file")
    sub.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of the campaign")
    sub.add_argument("--check", action="store_true", help="validate the plan, say what it means, and run nothing")
    sub.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one a processor or accelerator)")
    sub.add_argument("--scheduler", metavar="tcp://…", help="run on the workers of a Dask scheduler instead")
    place_options(sub)

    sub = command("report", run_report, "write the report of a campaign")
    sub.add_argument("campaign", type=pathlib.Path, metavar="DIR", help="folder of the campaign")

    sub = command("export", run_export, "write injection files of a campaign's experiments, or its tables as Parquet")
    sub.add_argument("campaign", type=pathlib.Path, metavar="DIR", help="folder of the campaign")
    sub.add_argument("--id", type=whole, nargs="+", metavar="N", help="experiments (default: the tables)")
    sub.add_argument("--out", type=pathlib.Path, help="folder to write to (default: DIR/export)")
    place_options(sub)
