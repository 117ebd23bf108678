"""`detect`: run a detector over a log of values."""

import argparse
import os
import pathlib
import sys

from ..detection.detector import Alarm
from ..detection.log import Log, detect, raised, read_values
from ..detection.value_based import VALUE_BASED, Chosen, value_based
from ..machine.errors import printable
from .arguments import aligned, json_option, setting_pairs, tell, tell_json


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("log", type=pathlib.Path, metavar="VALUES.csv", help="columns step,tensor,value and perhaps time")
    sub.add_argument("--detector", required=True, metavar="NAME", help=", ".join(VALUE_BASED))
    sub.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help="change a setting of the detector"
    )
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    chosen = value_based(options.detector, os.environ, setting_pairs(options.set))
    log = read_values(options.log, signed=options.detector in ("loss_spike", "nonfinite"))
    notes = list(chosen.notes)
    if chosen.detector is None:
        notes.append(f"{options.detector} is switched off by the environment")
    found = detect(chosen.detector, log) if chosen.detector is not None else []
    step = raised(found, log, chosen.strikes) if chosen.raises else None
    if found and chosen.raises and chosen.strikes is not None and log.times is None:
        notes.append("alarms are raised by strikes on a clock; without a column time none is")
    for note in notes:
        print(printable(note), file=sys.stderr, flush=True)
    alarms = [alarm for _, alarm in found]
    if options.json:
        tell_json({"alarms": [alarm._asdict() for alarm in alarms], "raised": step})
        return
    if chosen.every:
        for number, tensor, value in zip(log.steps, log.tensor, log.values, strict=True):
            tell(f"step {number}: {log.tensors[tensor]} {value:.6g}")
    for line in _table(alarms):
        tell(line)
    tell(_sentence(options.detector, log, alarms, step, chosen))


def _table(alarms: list[Alarm]) -> list[str]:
    """The alarms as text, in columns."""
    if not alarms:
        return []
    cells = [(str(a.step), a.tensor, f"{a.value:.6g}", str(a.level), f"{a.threshold:.6g}") for a in alarms]
    return aligned([("step", "tensor", "value", "level", "threshold"), *cells])


def _sentence(name: str, log: Log, alarms: list[Alarm], step: int | None, chosen: Chosen) -> str:
    seen = f"{len(log.values)} values of {len(log.tensors)} tensor(s)"
    if not alarms:
        return f"{name}: no alarm in {seen}"
    if step is not None:
        return f"{name}: {len(alarms)} alarm(s) in {seen}; raised at step {step}"
    return f"{name}: {len(alarms)} alarm(s) in {seen}; none is raised"
