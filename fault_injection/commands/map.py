"""`map`: how the fault of an injection file spreads, tensor by tensor and step by step, beside the golden run."""

import argparse
import pathlib

from ..faults.injection_file import read_injection
from ..machine.errors import InputError
from ..machine.processes import from_leader
from ..questions.spread.files import as_json, write_map
from ..questions.spread.sentences import sentences
from ..runs.fault_map import mapped, told_by
from ..runs.replay_run import golden_for
from ..runs.steps import Address, horizon_or_end, numbered
from ..seam.stages import BESIDE
from .arguments import json_option, machine_options, natural, tell, tell_json
from .estimates import golden_needed, workload_text
from .out_folder import check_out, default_out


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", type=pathlib.Path, help="injection file")
    sub.add_argument(
        "--steps", type=natural, default=20, help="steps after the fault that it is followed (default: %(default)s)"
    )
    sub.add_argument("--twin", action="store_true", help="follow a twin, too: whether differences are more than noise")
    sub.add_argument("--out", type=pathlib.Path, help="folder of the results (default: out/NAME_map)")
    sub.add_argument("--check", action="store_true", help="validate, say what would be done, and run nothing")
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    if options.coordinator is not None:
        raise InputError("map compares tensors in one process; expected no --coordinator")
    injection = from_leader(lambda: read_injection(options.file))
    golden, w = golden_for(injection, options.cache, options.data_dir), injection.workload
    out = options.out or default_out(options.file, "_map")
    check_out(out)
    wanted, left_out = told_by(golden.program)
    at, per_epoch = Address(injection.epoch, injection.step), w.steps_per_epoch
    last = horizon_or_end(w.epochs, per_epoch, at, options.steps)
    steps = numbered(last, per_epoch) - numbered(at, per_epoch) + 1
    if options.check:
        needed = list(golden_needed(golden, last.epoch + 1, options.data_dir))
        if options.json:
            told = {"steps": steps, "twin": options.twin, "out": str(out), "left_out": left_out, "golden": needed}
            tell_json({"injection": injection.sentence(), **told})
            return
        tell(injection.sentence())
        tell(f"Workload: {workload_text(w)}")
        for line in needed:
            tell(line)
        tell(f"Then takes {steps} steps from the fault on: as a replay, and in lockstep with the golden run.")
        for line in left_out:
            tell(f"not shown: {line}")
        return
    struck = frozenset(one.layer for one in injection.every if one.stage not in BESIDE)
    telling = w.program(struck, None, options.data_dir, wanted)
    found = mapped(injection, golden, telling, options.steps, options.twin)
    name = options.file.stem
    commands = [f"fault-injection map {options.file.name} --steps {options.steps}{' --twin' if options.twin else ''}"]
    from_leader(lambda: write_map(found, f"Map of {name}", out, commands))
    if options.json:
        tell_json({**as_json(found), "out": str(out)})
        return
    tell(injection.sentence())
    for line in sentences(found):
        tell(line)
    for line in found.left_out:
        tell(f"not shown: {line}")
    tell(f"written to {out}/")
