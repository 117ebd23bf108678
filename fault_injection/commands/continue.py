"""`continue`: restart a training from an altered checkpoint, and say what came of it."""

import argparse
import dataclasses
import functools
import pathlib

from ..checkpoints.continuation import StateKeeper, alteration, flips_since
from ..checkpoints.flips import loader_counts, restart_site, saved_format, shapes_of
from ..checkpoints.formats import FORMATS, open_checkpoint
from ..checkpoints.journal import check_ended, check_log
from ..checkpoints.loaded import restart_checkpoint
from ..faults.injection_file import write_injection
from ..machine.errors import InputError
from ..machine.processes import from_leader
from ..runs.golden_run import Golden, kept_epochs
from ..runs.replay_files import write_replay
from ..runs.replay_run import complete_golden, replay
from .arguments import epoch_list, json_option, machine_options, natural, positive, tell, tell_json
from .out_folder import DEFAULT, check_out, default_out
from .workload_arguments import chosen_workload, workload_options


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help=f"{FORMATS}; or what the training loads"
    )
    sub.add_argument("workload", help="name of a workload")
    workload_options(sub, lambda workload: workload.embedded())
    sub.add_argument("--epoch", type=natural, required=True, metavar="E", help="the checkpoint precedes this epoch")
    sub.add_argument("--loaders", type=positive, default=1, metavar="P", help="how many load it (default: %(default)s)")
    sub.add_argument("--worker", type=natural, default=0, metavar="R", help="the first of them (default: %(default)s)")
    sub.add_argument("--log", type=pathlib.Path, metavar="FILE", help="refuse a checkpoint that is not what this says")
    sub.add_argument(
        "--saved", type=pathlib.Path, metavar="FILE", help="what it was altered from (default: the golden state)"
    )
    sub.add_argument("--horizon", type=positive, metavar="STEPS", help="stop this many steps after the restart")
    sub.add_argument(
        "--keep-states", type=epoch_list, default=frozenset(), metavar="LIST", help="keep the states after these epochs"
    )
    sub.add_argument("--out", type=pathlib.Path, help=f"folder of the results (default: {DEFAULT})")
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    workload = chosen_workload(options, embedded=getattr(options, "dataset", None) in (None, "digits"))
    name = options.checkpoint.stem
    out = options.out or default_out(options.checkpoint)
    check_out(out)
    if options.epoch >= workload.epochs:
        raise InputError(f"--epoch {options.epoch} is not among the {workload.epochs} epochs")
    from_leader(lambda: _settled(options))  # before anything is trained
    program = workload.program(frozenset(), data_dir=options.data_dir)
    if options.worker >= program.state.loaders or options.loaders > program.state.loaders:
        what = f"strategy {workload.strategy} of {workload.workers} workers"
        raise InputError(f"{program.state.loaders} load a checkpoint (--worker, --loaders): {what}")
    if options.loaders not in (counts := loader_counts(workload)):
        raise InputError(f"--loaders {options.loaders}, expected one of {', '.join(map(str, counts))}")
    # All that can be said without a golden run is said before one is trained, and the rest as soon as it is.
    what, spec = f"the state of {workload.label}", program.state
    if options.saved is None:
        opened = functools.partial(restart_checkpoint, program, options.checkpoint)
        own = from_leader(lambda: saved_format(spec, opened(), shapes_of(spec), what).name)
    else:
        own = flips_since(program, options.saved, options.checkpoint).format
    restart_site(workload, own, options.loaders, options.checkpoint)
    golden = Golden(workload, program, options.cache, kept_epochs(program, workload.epochs, {options.epoch}))
    complete_golden(golden, max(options.epoch, 1), workload.epochs)
    loading = options.worker, options.loaders, options.horizon
    injection = alteration(golden, options.epoch, options.checkpoint, *loading, options.saved)
    check_out(out, injection)
    keeper = [StateKeeper(program, out, options.keep_states)] if options.keep_states else []
    command = ["python", "-m", "fault_injection", *options.arguments]
    result = replay(injection, golden, lambda result: write_replay(result, name, out, command), keeper)
    from_leader(lambda: write_injection(out / f"{name}.csv", injection))
    if options.json:
        known = {"name": name, **dataclasses.asdict(result.outcome)}
        tell_json({**known, "altered": len(injection.positions), "folder": str(out)})
        return
    tell(injection.sentence())
    tell(f"{result.outcome.outcome}: {result.outcome.rule}")
    tell(f"written to {out}/")


def _settled(options: argparse.Namespace) -> None:
    """Refuse a checkpoint that is not there, whose alteration has not ended, or that is not what its log says."""
    if not options.checkpoint.exists():
        raise InputError("no such file or folder", options.checkpoint)
    check_ended(options.checkpoint)
    if options.log is not None:
        check_log(open_checkpoint(options.checkpoint), options.log)
