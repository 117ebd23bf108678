"""`score`: detectors and recovery, scored on the outcomes of a campaign."""

import argparse
import dataclasses
import pathlib

from ..detection.registry import DETECTORS
from ..machine.errors import InputError
from ..questions.outcomes.driver import campaign
from ..questions.outcomes.standing import finished
from ..questions.outcomes.store import Store, open_plan
from ..questions.scoreboard.alarms import enter_alarms
from ..questions.scoreboard.board import read_board
from ..questions.scoreboard.comparison import TABLES, advice, said, table
from ..questions.scoreboard.driver import plan_lines, watch_campaign
from ..questions.scoreboard.exported import export_logs
from ..questions.scoreboard.settings import read_settings
from ..questions.scoreboard.store import ScoreStore
from ..questions.scoreboard.tasks import ScoreTask
from .arguments import tell, tell_json
from .examples import SHIPPED
from .plan_options import driving, places, plan_options

SETS = SHIPPED / "injections" / "sets"
LONGEST = 60  # characters of a detector's name


def add(sub: argparse.ArgumentParser) -> None:
    names = ", ".join(path.stem for path in sorted(SETS.glob("*.toml")))
    plan_options(sub, "folder of the campaign and its scoreboard", f"TOML file, with a table [score]; or {names}")
    text = "a detector that watches too: a name, or one of your own, FILE.py:NAME; may be given several times"
    sub.add_argument("--detector", action="append", default=[], metavar="NAME", help=text)
    text = "write what a detector may see of each run to a folder, for one in another framework, and end"
    sub.add_argument("--export-logs", type=pathlib.Path, metavar="LOGS", help=text)
    text = "read the alarms of such a detector: CSV with the columns run,step,level,tensor"
    sub.add_argument("--alarms", type=pathlib.Path, metavar="FILE.csv", help=text)
    sub.add_argument("--name", metavar="NAME", help="what the scoreboard calls the detector of --alarms")
    sub.add_argument("--table", choices=TABLES, help="print the table of all detectors, and nothing else")


def run(options: argparse.Namespace) -> None:
    _require_consistent(options)
    known = places(options)
    file = _plan_file(options.plan)
    plan, settings = read_settings(file, options.detector)
    if options.name in (*DETECTORS, *settings.detectors):
        raise InputError(f"--name {options.name[:LONGEST]!r} is a detector that watches; choose another name")
    task = ScoreTask(plan, settings=settings, **known)
    lines = plan_lines(task)
    if not options.json and not options.table:
        for line in lines:
            tell(line)
    if options.check:
        if options.json:
            tell_json({"plan": lines})
        return
    out, executors = driving(options)
    if not finished(out, plan):  # else what is watched is compared with what was judged
        campaign(task, out, executors(), str(file))
    task = dataclasses.replace(task, plan=plan.grown(open_plan(out)))
    if options.export_logs is not None:
        runs = export_logs(task, settings, out, options.export_logs, executors())
        if options.json:
            tell_json({"logs": str(options.export_logs), "runs": runs})
            return
        tell(f"{runs} runs in {options.export_logs}; manifest.json has the rules")
        tell(f"  fault-injection score {options.plan} --out {out} --alarms ALARMS.csv --name NAME")
        return
    watch_campaign(task, out, executors())
    if options.alarms is not None:
        with Store(out) as judged:
            key = judged.about()["plan_key"]
        with ScoreStore(out, write=True) as store:
            enter_alarms(store, task.plan, key, options.alarms, options.name)
    _show(options, out)


def _show(options: argparse.Namespace, out: pathlib.Path) -> None:
    from ..questions.scoreboard.page import write_scoreboard_page  # Matplotlib is slow to import

    page, board = write_scoreboard_page(out), read_board(out)
    if options.json:
        tell_json({"score": str(page), **said(board)})
    elif options.table:
        tell(TABLES[options.table](table(board)).rstrip("\n"))
    else:
        for one in advice(board):
            tell(one.sentence())
        tell(f"written to {page}")


def _require_consistent(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if (options.alarms is None) != (options.name is None):
        raise InputError("--alarms FILE.csv and --name NAME go together")
    if options.name is not None and not (options.name.isprintable() and 0 < len(options.name) <= LONGEST):
        raise InputError(f"--name {options.name[:LONGEST]!r}; expected 1 to {LONGEST} characters that can be printed")
    given = [f"--{name}" for name in ("export-logs", "alarms") if getattr(options, name.replace("-", "_"))]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are two steps; give one of them")
    if options.table and (options.json or options.export_logs):
        raise InputError("--table goes neither with --json, which has its numbers, nor with --export-logs")


def _plan_file(given: pathlib.Path) -> pathlib.Path:
    """The file of a plan, or of a frozen set of this name."""
    shipped = SETS / f"{given}.toml"
    return shipped if not given.exists() and given.parent == pathlib.Path() and shipped.is_file() else given
