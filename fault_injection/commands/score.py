"""`score`: detectors and recovery, scored on the outcomes of a campaign."""

import argparse
import dataclasses
import datetime
import pathlib
import shlex

from ..detection.own_detector import is_own, shown_name
from ..detection.registry import DETECTORS
from ..machine.errors import InputError
from ..machine.files import write_json
from ..questions.outcomes.driver import campaign
from ..questions.outcomes.standing import finished
from ..questions.outcomes.store import Store, open_plan
from ..questions.scoreboard.alarms import enter_alarms
from ..questions.scoreboard.board import read_board
from ..questions.scoreboard.comparison import TABLES, cheapest_pairs, said, table
from ..questions.scoreboard.driver import plan_lines, watch_campaign
from ..questions.scoreboard.exported import export_logs
from ..questions.scoreboard.leaderboard import file_name, record
from ..questions.scoreboard.settings import Settings, read_settings
from ..questions.scoreboard.store import ALARMS, ScoreStore
from ..questions.scoreboard.tasks import ScoreTask
from .arguments import tell, tell_json
from .examples import SHIPPED
from .plan_options import driving, places, plan_options

SETS = SHIPPED / "injections" / "sets"
LONGEST = 60  # characters of a detector's name


def frozen_sets() -> list[str]:
    """Names of the sets of faults that this package comes with, which never change."""
    return sorted(path.stem for path in SETS.glob("*.toml"))


def add(sub: argparse.ArgumentParser) -> None:
    names = ", ".join(frozen_sets())
    plan_options(sub, "folder of the campaign and its scoreboard", f"TOML file, with a table [score]; or {names}")
    text = "a detector that watches too: a name, or one of your own, FILE.py:NAME; may be given several times"
    sub.add_argument("--detector", action="append", default=[], metavar="NAME", help=text)
    text = "write what a detector may see of each run to a folder, for one in another framework, and end"
    sub.add_argument("--export-logs", type=pathlib.Path, metavar="LOGS", help=text)
    text = "read the alarms of such a detector: CSV with the columns run,step,level,tensor"
    sub.add_argument("--alarms", type=pathlib.Path, metavar="FILE.csv", help=text)
    sub.add_argument("--name", metavar="NAME", help="what the scoreboard calls the detector of --alarms")
    text = "of a frozen set: write records for the leaderboard, of the detectors that are given, or else of all"
    sub.add_argument("--record", type=pathlib.Path, metavar="DIR", help=text)
    sub.add_argument("--table", choices=TABLES, help="print the table of all detectors, and nothing else")


def run(options: argparse.Namespace) -> None:
    _require_consistent(options)
    known = places(options)
    file = plan_file(options.plan)
    if options.record is not None and file.parent != SETS:
        raise InputError(f"--record is of a frozen set alone: {', '.join(frozen_sets())}")
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
    if options.record is not None:
        _record(options, file, settings, out)
    _show(options, out)


def _record(options: argparse.Namespace, file: pathlib.Path, settings: Settings, out: pathlib.Path) -> None:
    """Write the records of the leaderboard."""
    given = [word for name in options.detector for word in ("--detector", name)]
    given += [] if options.alarms is None else ["--alarms", str(options.alarms), "--name", options.name]
    command = shlex.join(["fault-injection", "score", file.stem, *given, "--out", str(out)])
    board, today = read_board(out), datetime.date.today().isoformat()
    with ScoreStore(out) as store:
        environment, codes = store.get("about", "environment"), {one.name: one.digest for one in settings.own}
        codes |= {name: value["digest"] for name, value in store.all(ALARMS)}
    names = [shown_name(name) if is_own(name) else name for name in options.detector]
    names += [] if options.name is None else [options.name]
    for name in names or board.detectors:
        found = record(board, name, file.stem, command, environment, today, codes.get(name))
        path = options.record / file_name(found)
        write_json(path, found)
        if not options.json and not options.table:
            tell(f"written to {path}")


def _show(options: argparse.Namespace, out: pathlib.Path) -> None:
    from ..questions.scoreboard.page import write_scoreboard_page  # Matplotlib is slow to import

    page, board = write_scoreboard_page(out), read_board(out)
    if options.json:
        tell_json({"score": str(page), **said(board)})
    elif options.table:
        for line in TABLES[options.table](table(board)).splitlines():
            tell(line)
    else:
        for one in cheapest_pairs(board):
            tell(one.sentence())
        tell(f"written to {page}")


def _require_consistent(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if (options.alarms is None) != (options.name is None):
        raise InputError("--alarms FILE.csv and --name NAME go together")
    if options.name is not None and not (options.name.isprintable() and 0 < len(options.name) <= LONGEST):
        raise InputError(f"--name {options.name[:LONGEST]!r}; expected 1 to {LONGEST} characters that can be printed")
    if options.record is not None and options.export_logs is not None:
        raise InputError("--record needs a scoreboard, and --export-logs ends before; leave out one of them")
    given = [f"--{name}" for name in ("export-logs", "alarms") if getattr(options, name.replace("-", "_"))]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are two steps; give one of them")
    if options.table and (options.json or options.export_logs):
        raise InputError("--table goes neither with --json, which has its numbers, nor with --export-logs")


def plan_file(given: pathlib.Path) -> pathlib.Path:
    """The file of a plan, or of a frozen set of this name.

    Raises:
      InputError: a name alone, without a suffix, that is neither.
    """
    if given.is_file() or given.parent != pathlib.Path() or given.suffix:
        return given
    shipped = SETS / f"{given}.toml"
    if not shipped.is_file():
        raise InputError(
            f"no such file, and no frozen set; expected a plan, or one of {', '.join(frozen_sets())}", given
        )
    return shipped
