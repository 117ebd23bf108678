"""`map`: how the fault of an injection file spreads, tensor by tensor and step by step, beside the golden run."""

import argparse
import pathlib

from ..campaign.box import box_lines
from ..faults.injection import Injection
from ..faults.injection_file import read_injection
from ..machine import environment
from ..machine.errors import InputError
from ..machine.processes import from_leader
from ..questions.spread.campaign import campaign_map, maps_of, sampled
from ..questions.spread.campaign_page import campaign_answers, campaign_map_json, write_campaign_map
from ..questions.spread.files import as_json, write_map
from ..questions.spread.sentences import answers
from ..runs.fault_map import mapped, told_by
from ..runs.golden_run import Golden
from ..runs.replay_run import golden_for
from ..runs.steps import Address, horizon_or_end, numbered
from ..seam.stages import BESIDE
from .arguments import json_option, machine_options, natural, positive, tell, tell_json
from .estimates import golden_needed, workload_text
from .out_folder import check_out, default_out

STEPS, SAMPLE = 20, 40  # steps of a file's map; experiments of a campaign's, which are followed for two steps


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", nargs="?", type=pathlib.Path, help="injection file")
    sub.add_argument(
        "--steps",
        type=natural,
        metavar="N",
        help=f"steps after the fault that it is followed (default: {STEPS}; of a campaign 2)",
    )
    sub.add_argument("--twin", action="store_true", help="follow a twin, too: whether differences are more than noise")
    sub.add_argument("--out", type=pathlib.Path, help="folder of the results (default: out/NAME_map, or DIR/map)")
    sub.add_argument("--check", action="store_true", help="validate, say what would be done, and run nothing")
    of_many = sub.add_argument_group("many experiments")
    of_many.add_argument(
        "--campaign", type=pathlib.Path, metavar="DIR", help="map a sample of a campaign's experiments"
    )
    of_many.add_argument("--sample", type=positive, metavar="N", help=f"how many of them (default: {SAMPLE})")
    of_many.add_argument("--seed", type=natural, help="from which they are drawn (default: 0)")
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    if options.coordinator is not None:
        raise InputError("map compares tensors in one process; expected no --coordinator")
    if (options.file is None) == (options.campaign is None):
        raise InputError("expected an injection file, or --campaign DIR")
    if options.campaign is not None:
        _of_campaign(options)
        return
    for name in ("sample", "seed"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name} belongs to --campaign DIR")
    steps = STEPS if options.steps is None else options.steps
    injection = from_leader(lambda: read_injection(options.file))
    golden = golden_for(injection, options.cache, options.data_dir)
    out = options.out or default_out(options.file, "_map")
    check_out(out)
    wanted, left_out = told_by(golden.program)
    if options.check:
        _check(options, injection, golden, steps, left_out)
        return
    struck = frozenset(one.layer for one in injection.every if one.stage not in BESIDE)
    telling = injection.workload.program(struck, None, options.data_dir, wanted)
    found = mapped(injection, golden, telling, steps, options.twin)
    commands = [f"fault-injection map {options.file.name} --steps {steps}{' --twin' if options.twin else ''}"]
    from_leader(lambda: write_map(found, f"Map of {options.file.stem}", out, commands))
    if options.json:
        tell_json({**as_json(found), "out": str(out)})
        return
    tell(injection.sentence())
    for line in box_lines(answers(found)):
        tell(line)
    for line in found.left_out:
        tell(f"not shown: {line}")
    tell(f"written to {out}/")


def _check(
    options: argparse.Namespace, injection: Injection, golden: Golden, after: int, left_out: tuple[str, ...]
) -> None:
    """Say what the command would do and need."""
    w = injection.workload
    at, per_epoch = Address(injection.epoch, injection.step), w.steps_per_epoch
    last = horizon_or_end(w.epochs, per_epoch, at, after)
    steps = numbered(last, per_epoch) - numbered(at, per_epoch) + 1
    needed = list(golden_needed(golden, last.epoch + 1, options.data_dir))
    if options.json:
        told = {"steps": steps, "twin": options.twin, "left_out": list(left_out), "golden": needed}
        tell_json({"injection": injection.sentence(), **told})
        return
    tell(injection.sentence())
    tell(f"Workload: {workload_text(w)}")
    for line in needed:
        tell(line)
    tell(f"Then takes {steps} steps from the fault on, at most: as a replay, and in lockstep with the golden run.")
    for line in left_out:
        tell(f"not shown: {line}")


def _of_campaign(options: argparse.Namespace) -> None:
    """Map a sample of a campaign's experiments, as the campaign made them: on one device, on CPUs with one thread."""
    if options.twin or options.threads is not None:
        raise InputError(f"--{'twin' if options.twin else 'threads'} belongs to the map of an injection file")
    folder, out = options.campaign, options.out or options.campaign / "map"
    check_out(out)
    environment.prepare(1, options.matrix_precision, bind=False)
    sample, done = sampled(folder, options.sample or SAMPLE, options.seed or 0)
    steps = 2 if options.steps is None else options.steps
    if options.check:
        if options.json:
            tell_json({"experiments": [one.number for one in sample], "done": done, "steps": steps})
            return
        tell(f"Maps {len(sample)} of {done:,} experiments that are done, for {steps} steps after the fault each.")
        return
    maps = list(maps_of(folder, sample, steps, options.cache, options.data_dir))
    found = campaign_map(maps, done)
    command = (
        f"fault-injection map --campaign {folder} --sample {len(sample)} --seed {options.seed or 0} --steps {steps}"
    )
    write_campaign_map(found, out, f"Map of the campaign {folder.resolve().name}", [command])
    if options.json:
        tell_json({**campaign_map_json(found), "out": str(out)})
        return
    for line in box_lines(campaign_answers(found)):
        tell(line)
    tell(f"written to {out}/")
