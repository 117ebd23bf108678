"""`detect`: run a detector over a log of values."""

import argparse
import os
import pathlib
import sys

from ..detection.calibration import Calibration, calibrate
from ..detection.detector import Alarm
from ..detection.examination import Examined, Material, examine, material, told_of
from ..detection.value_based import VALUE_BASED, Chosen, value_based
from ..logs.families import FAMILIES
from ..logs.table import Columns
from ..machine.errors import InputError, printable
from .arguments import aligned, json_option, listed, setting_pairs, tell, tell_json

RAISED = 3  # exit code of --fail
PICTURES = (".svg", ".png", ".pdf")


def add(sub: argparse.ArgumentParser) -> None:
    families = ", ".join(family.name for family in FAMILIES)
    sub.add_argument("log", type=pathlib.Path, nargs="?", metavar="LOG", help=f"recognised by itself: {families}")
    sub.add_argument("--detector", required=True, metavar="NAME", help=", ".join(VALUE_BASED))
    sub.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help="change a setting of the detector"
    )
    where = sub.add_argument_group("where things stand in the log, in place of what is recognised")
    where.add_argument(
        "--value", action="append", default=[], metavar="NAME", help="a column of values, or a tensor; may be repeated"
    )
    where.add_argument("--step", metavar="COLUMN", help="of steps")
    where.add_argument("--time", metavar="COLUMN", help="of seconds, or of dates and times")
    where.add_argument("--tensor", metavar="COLUMN", help="of tensors' names, one value per row")
    sub.add_argument(
        "--calibrate", type=pathlib.Path, nargs="+", metavar="FAULTFREE", help="set thresholds by fault-free logs"
    )
    sub.add_argument(
        "--rate", type=float, default=1e-3, help="with --calibrate: false alarms per value (default: %(default)s)"
    )
    sub.add_argument("--fail", action="store_true", help=f"exit code {RAISED} when something is raised")
    sub.add_argument("--picture", type=pathlib.Path, metavar="FILE.svg", help="draw values, thresholds and alarms")
    json_option(sub)


def run(options: argparse.Namespace) -> int:
    """Say what a detector finds in a log; the exit code is 3 with `--fail` where something is raised."""
    _check(options)
    chosen = value_based(options.detector, os.environ, setting_pairs(options.set))
    columns = Columns(tuple(options.value), options.step, options.time, options.tensor)
    calibration = None
    if options.calibrate:
        chosen, calibration = _calibrated(options, chosen, columns)
        if options.log is None:
            _tell_calibration(options, calibration)
            return 0
    given = material(options.log, columns, chosen.detector)
    notes = _notes(options, chosen, given)
    _say(notes)
    found = examine(given, chosen)
    if found.superseded:
        steps = [f"{alarm.step} of {alarm.tensor}" for alarm in found.superseded]
        notes.append(f"{len(steps)} alarm(s) in steps that were trained again do not count: step {listed(steps)}")
        _say(notes[-1:])
    if options.picture is not None:
        from ..detection.log_picture import draw_log  # Matplotlib is slow to import

        left_out = draw_log(options.picture, f"{options.detector}: {options.log.name}", given, found)
        notes += [left_out] if left_out else []
        _say(notes[-1:] if left_out else [])
    if options.json:
        _tell_json(given, found, [*notes, *filter(None, [given.blind])], calibration)
    else:
        _tell_text(options, chosen, given, found, calibration)
    return RAISED if options.fail and found.raised is not None else 0


def _check(options: argparse.Namespace) -> None:
    if options.log is None and not options.calibrate:
        raise InputError("no log; expected a file or folder, or --calibrate with fault-free logs")
    if options.picture is not None and (options.picture.suffix not in PICTURES or options.log is None):
        raise InputError("--picture: expected a log to draw, and a file .svg, .png or .pdf", options.picture)
    if not 0 < options.rate < 1:
        raise InputError(f"--rate {options.rate}; expected a share of values between 0 and 1")


def _notes(options: argparse.Namespace, chosen: Chosen, given: Material) -> list[str]:
    notes = [*chosen.notes, *given.notes]
    if chosen.detector is None:
        notes.append(f"{options.detector} is switched off by the environment")
    elif chosen.strikes is not None and given.log.times is None:
        notes.append(
            f"nothing that {options.detector} says can be raised: it counts strikes on a clock, and the log has no time"
        )
    return notes


def _say(notes: list[str]) -> None:
    for note in notes:
        print(printable(note), file=sys.stderr, flush=True)


def _calibrated(options: argparse.Namespace, chosen: Chosen, columns: Columns) -> tuple[Chosen, Calibration]:
    """The detector with thresholds of fault-free logs."""
    if chosen.detector is None:
        raise InputError(f"--calibrate: {options.detector} is switched off by the environment")
    logs = [material(path, columns, chosen.detector) for path in options.calibrate]
    for path, log in zip(options.calibrate, logs, strict=True):
        _say([f"{path.name}: {note}" for note in log.notes])
    calibration = calibrate(chosen.detector, logs, options.rate)
    return chosen._replace(detector=calibration.detector), calibration


def _told(calibration: Calibration) -> dict[str, object]:
    return {
        "settings": calibration.settings,
        "values": calibration.values,
        "above": calibration.above,
        "rate": calibration.rate,
        "wanted": calibration.wanted,
    }


def _tell_calibration(options: argparse.Namespace, calibration: Calibration) -> None:
    if options.json:
        tell_json({"calibration": _told(calibration)})
    else:
        tell(f"{options.detector}: {calibration.sentence(len(options.calibrate))}")


def _tell_json(given: Material, found: Examined, notes: list[str], calibration: Calibration | None) -> None:
    alarms = [alarm._asdict() for _, alarm in found.alarms] + [told_of(each) for each in found.symptoms]
    tell_json(
        {
            "alarms": sorted(alarms, key=lambda alarm: int(alarm["step"])),
            "raised": found.raised,
            "family": given.whole.family,
            "restarts": len(given.following.restarts),
            "skipped": sorted(given.skipped),
            "superseded": [alarm._asdict() for alarm in found.superseded],
            "notes": notes,
            **({"calibration": _told(calibration)} if calibration else {}),
        }
    )


def _tell_text(
    options: argparse.Namespace, chosen: Chosen, given: Material, found: Examined, calibration: Calibration | None
) -> None:
    log = given.log
    if calibration:
        _tell_calibration(options, calibration)
    if chosen.every:
        for number, tensor, value in zip(log.steps, log.tensor, log.values, strict=True):
            tell(f"step {number}: {log.tensors[tensor]} {value:.6g}")
    for line in _table([alarm for _, alarm in found.alarms]):
        tell(line)
    for each in found.symptoms:
        tell(f"step {each.step}: {each.tensor} {each.why}")
    tell(_sentence(options.detector, given, found))
    if given.blind:
        tell(given.blind)
    if options.picture is not None:
        tell(f"drawn in {options.picture}")


def _table(alarms: list[Alarm]) -> list[str]:
    """The alarms as text, in columns."""
    if not alarms:
        return []
    cells = [(str(a.step), a.tensor, f"{a.value:.6g}", str(a.level), f"{a.threshold:.6g}") for a in alarms]
    return aligned([("step", "tensor", "value", "level", "threshold"), *cells])


def _sentence(name: str, given: Material, found: Examined) -> str:
    seen = f"{len(given.log.values)} values of {len(given.log.tensors)} tensor(s)"
    count = len(found.alarms) + len(found.symptoms)
    if not count:
        return f"{name}: no alarm in {seen}"
    if found.raised is not None:
        return f"{name}: {count} alarm(s) in {seen}; raised at step {found.raised}"
    return f"{name}: {count} alarm(s) in {seen}; none is raised"
