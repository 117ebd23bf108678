"""`export`: injection files of a campaign's experiments, or its tables for other tools."""

import argparse
import pathlib

from ..faults.injection_file import write_injection
from ..faults.profiles.profile import DefectProfile
from ..faults.profiles.reader import find_profile
from ..machine.errors import InputError
from ..questions.outcomes.answer import injections_of
from ..questions.outcomes.report.queries import VERDICT
from ..questions.outcomes.store import Store
from ..questions.outcomes.tables import FORMATS, write_tables
from ..runs.outcome import OUTCOMES
from .arguments import natural, tell


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("campaign", type=pathlib.Path, metavar="DIR", help="folder of the campaign")
    sub.add_argument("--id", type=natural, nargs="+", metavar="N", help="these experiments, as injection files")
    sub.add_argument(
        "--outcome", choices=OUTCOMES, metavar="OUTCOME", help="all experiments of this outcome, as injection files"
    )
    sub.add_argument(
        "--format", choices=FORMATS, help="the tables in this format (default: csv; parquet: needs PyArrow)"
    )
    sub.add_argument("--out", type=pathlib.Path, help="folder to write to (default: DIR/export)")


def run(options: argparse.Namespace) -> None:
    out = options.out or options.campaign / "export"
    if sum(map(bool, (options.id, options.outcome, options.format))) > 1:
        raise InputError("--id and --outcome write injection files, --format writes tables; give one of them")
    if options.id or options.outcome:
        numbers = options.id or _of_outcome(options.campaign, options.outcome)
        injections = injections_of(options.campaign, numbers)
        for profile in dict.fromkeys(each.profile for one in injections for each in one.every):
            _require_same(profile, options.campaign)
        for number, injection in zip(numbers, injections, strict=True):
            path = out / f"experiment_{number}.csv"
            write_injection(path, injection)
            tell(str(path))
        return
    with Store(options.campaign) as store:
        for path in write_tables(store, out, options.format or "csv"):
            tell(str(path))


def _require_same(profile: DefectProfile | None, campaign: pathlib.Path) -> None:
    """See that the name by which a file names a defect profile is that of the campaign's: a user's may have changed."""
    if profile is None:
        return
    try:
        same = find_profile(profile.name) == profile
    except InputError:
        same = False
    if not same:
        what = "is not, or no more, the defect profile that this campaign struck with, and an injection file names it"
        raise InputError(
            f"{what}; expected the old text there, or replay {campaign} --id …, which has it", profile.name
        )


def _of_outcome(folder: pathlib.Path, outcome: str) -> list[int]:
    with Store(folder) as store:
        rows = store.query(f"SELECT number FROM experiments WHERE {VERDICT} = ? ORDER BY number", [outcome])
    if not rows:
        raise InputError(f"no experiment of this campaign is {outcome}", folder)
    return [row["number"] for row in rows]
