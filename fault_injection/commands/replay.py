"""`replay`: one injection file, or one experiment of a campaign, from fault to verdict."""

import argparse
import dataclasses
import functools
import os
import pathlib
from typing import Any

from ..detection.detector import AnyDetector
from ..detection.recovery import RECOVERIES, needed, undoing
from ..detection.registry import DETECTORS, beside_a_run, telling
from ..detection.signals import reductions_of
from ..detection.watched_replay import detection_summary, sentences, watched_replay
from ..faults.injection import Injection
from ..faults.injection_file import read_injection, write_injection
from ..machine import environment
from ..machine.errors import InputError, did_you_mean
from ..machine.processes import from_leader, say
from ..published.checkpoints import imported_start
from ..questions.outcomes.answer import injections_of
from ..runs.golden_run import Golden
from ..runs.replay_files import write_replay
from ..runs.replay_run import golden_for, last_step, replay
from ..runs.steps import numbered
from .arguments import json_option, machine_options, natural, setting_pairs, tell, tell_json
from .estimates import golden_needed, time_needed, workload_text
from .out_folder import DEFAULT, check_out, default_out

CHECKPOINTS = ("own", "upstream")  # where a golden run may start: initial weights, or a published checkpoint


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "what",
        nargs="?",
        type=pathlib.Path,
        metavar="FILE",
        help="injection file, or with --id the folder of a campaign",
    )
    sub.add_argument("--file", type=pathlib.Path, help="injection file, the same as FILE")
    sub.add_argument("--id", type=natural, metavar="N", help="number of an experiment of a campaign")
    sub.add_argument(
        "--out", type=pathlib.Path, help=f"folder of the results (default: {DEFAULT}; of a campaign DIR/experiment_N)"
    )
    sub.add_argument("--check", action="store_true", help="validate, say what would be done, and run nothing")
    json_option(sub)
    sub.add_argument(
        "--checkpoints",
        choices=CHECKPOINTS,
        help="where the golden run starts: initial weights, or the published checkpoint before the fault's epoch, "
        "once fetch-checkpoints has imported it (default: own)",
    )
    watching = sub.add_argument_group("detection and recovery")
    watching.add_argument("--detector", metavar="NAME", help=", ".join(DETECTORS))
    watching.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help="change a setting of the detector"
    )
    watching.add_argument("--recovery", metavar="NAME", help=f"what is done at an alarm: {', '.join(RECOVERIES)}")
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    place = _place(options)
    if options.id is None:
        injection, name = from_leader(lambda: read_injection(place)), place.stem
        out, devices = options.out or default_out(place), None
        command = ["python", "reproduce_injections.py", *options.arguments[1:]]
    else:
        # As its campaign made it: on one device, on CPUs with one thread.
        environment.prepare(1, options.matrix_precision, bind=False)
        [injection], name = injections_of(place, [options.id]), f"experiment_{options.id}"
        out, devices = options.out or place / name, 1
        command = ["python", "-m", "fault_injection", *options.arguments]
    start = None
    if options.checkpoints == "upstream":
        start = functools.partial(imported_start, epoch=injection.epoch, cache=options.cache)
    detector = _detector(injection, options, devices)
    reductions = frozenset() if detector is None else reductions_of(detector.signals) | needed(options.recovery)
    golden = golden_for(injection, options.cache, options.data_dir, devices, start, reductions)
    if detector is not None:
        golden = dataclasses.replace(golden, program=telling(golden.program, [detector]))
    if options.check:
        _check(injection, golden, options)
        return
    check_out(out, injection)
    if options.id is not None:
        write_injection(out / f"{name}.csv", injection)
    detection: dict[str, Any] | None = None
    if detector is None:
        result = replay(injection, golden, lambda result: write_replay(result, name, out, command))
    else:
        watched = watched_replay(injection, golden, detector, options.recovery)
        result, detection = watched.replay, detection_summary(watched, options.detector, options.recovery)
        write_replay(result, name, out, command, watched.recovered, detection)
    if options.json:
        found = {} if detection is None else {"detection": detection}
        tell_json({"name": name, **dataclasses.asdict(result.outcome), **found, "folder": str(out)})
        return
    tell(f"{result.outcome.outcome}: {result.outcome.rule}")
    for line in [] if detection is None else sentences(detection):
        tell(line)
    tell(f"written to {out}/")


def _detector(injection: Injection, options: argparse.Namespace, devices: int | None) -> AnyDetector | None:
    """The detector asked for, with its settings; None without one."""
    if options.detector is None:
        for name in ("set", "recovery"):
            if getattr(options, name):
                raise InputError(f"--{name} needs --detector NAME")
        return None
    if options.recovery is not None and options.recovery not in RECOVERIES:
        raise InputError(f"recovery {options.recovery[:60]!r} is unknown{did_you_mean(options.recovery, RECOVERIES)}")
    program = injection.workload.program(frozenset(), devices, options.data_dir)
    undoing(options.recovery, program)
    chosen = beside_a_run(options.detector, program, os.environ, setting_pairs(options.set))
    for note in chosen.notes:
        say(note)
    if chosen.detector is None:
        raise InputError(f"{options.detector} is switched off by the environment")
    return chosen.detector


def _place(options: argparse.Namespace) -> pathlib.Path:
    """The file, or the folder of a campaign, that is named; what does not go with it is refused."""
    if (options.file is None) == (options.what is None):
        raise InputError("expected an injection file, or the folder of a campaign and --id N")
    place: pathlib.Path = options.file or options.what
    if options.file is not None and options.id is not None:
        raise InputError("--id belongs to the folder of a campaign")
    if options.id is None:
        if from_leader(place.is_dir):
            raise InputError("is a folder: of a campaign, say which experiment with --id N", place)
        return place
    for name in ("check", "checkpoints", "threads", "coordinator"):
        if getattr(options, name) not in (None, False):
            raise InputError(f"--{name} belongs to an injection file")
    return place


def _check(injection: Injection, golden: Golden, options: argparse.Namespace) -> None:
    """Say what the run would do and need."""
    w, last = injection.workload, last_step(injection)
    epochs, steps_per_epoch = last.epoch + 1, w.steps_per_epoch
    made = golden.recorded() - golden.first if w.data_at_hand(options.data_dir) else None
    missing = epochs - golden.first - min(made or 0, epochs - golden.first)
    steps = numbered(last, steps_per_epoch) + 1 - injection.epoch * steps_per_epoch
    seconds = golden.seconds_per_step() if made is not None else None
    if options.json:
        tell_json(
            {
                "injection": injection.sentence(),
                "workload": dataclasses.asdict(w),
                "golden_epochs": epochs - golden.first,
                "golden_epochs_missing": missing,
                "replay_steps": steps,
                "disk_bytes": golden.disk_bytes(epochs),
                "seconds": None if seconds is None else seconds * (missing * steps_per_epoch + steps),
            }
        )
        return
    tell(injection.sentence())
    tell(f"Workload: {workload_text(w)}")
    for line in golden_needed(golden, epochs, options.data_dir):
        tell(line)
    tell(f"Then replays {steps} steps from the start of epoch {injection.epoch}, at most.")
    if last.epoch > injection.epoch:
        tell(f"Epochs of the golden run after epoch {injection.epoch} are made only as far as the replay goes.")
    tell(time_needed(seconds, missing * steps_per_epoch + steps))
