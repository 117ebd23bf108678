"""`golden`: make a fault-free run, and its twins."""

import argparse
import dataclasses

from ..checkpoints.continuation import named_arrays
from ..machine.errors import InputError
from ..machine.files import write_arrays
from ..machine.processes import from_leader, say
from ..runs.golden_run import Golden
from ..runs.noise import final_metrics, noise_floor
from ..runs.outcome import Thresholds
from .arguments import epoch_list, json_option, machine_options, natural, positive, tell, tell_json
from .estimates import workload_text
from .workload_arguments import chosen_workload, workload_options


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("workload", help="name of a workload")
    workload_options(sub, lambda workload: workload.embedded())
    sub.add_argument(
        "--twins",
        type=positive,
        default=0,
        metavar="N",
        help="also N runs whose start differs by one unit in the last place (default: %(default)s)",
    )
    sub.add_argument(
        "--keep-epochs",
        type=epoch_list,
        metavar="LIST",
        help="keep checkpoints before these epochs only, such as 7,19,30-33, besides the newest (default: all)",
    )
    sub.add_argument(
        "--save",
        nargs=2,
        metavar=("E", "FILE.npz"),
        help="also save the state before epoch E there, as alter and continue read it",
    )
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    saved = None if options.save is None else _epoch_to_save(options)
    workload = chosen_workload(options, embedded=getattr(options, "dataset", None) in (None, "digits"))
    if saved is not None and saved > workload.epochs:
        raise InputError(f"--save {saved}: the run has {workload.epochs} epochs")
    say(workload_text(workload))
    golden = Golden(workload, workload.program(data_dir=options.data_dir), options.cache, options.keep_epochs)
    for made in (golden, *map(golden.twin_run, range(1, options.twins + 1))):
        say(f"{made.folder}: up to {made.disk_bytes(workload.epochs) / 1e6:.0f} MB")
        made.make(workload.epochs)
    if saved is not None:
        arrays = named_arrays(golden.program, golden.fetch_state_before(saved))
        from_leader(lambda: write_arrays(options.save[1], arrays))
    last = range(max(0, workload.epochs - Thresholds().final_epochs), workload.epochs)
    train, test = final_metrics([golden.fetch_record(epoch) for epoch in last])
    noise, metric = noise_floor(golden, workload.epochs, len(last)), golden.program.measure().name
    if options.json:
        known = {"folder": str(golden.folder), "key": golden.key, "metric": metric, "train": train, "test": test}
        tell_json({**known, "noise": noise and noise._asdict(), "workload": dataclasses.asdict(workload)})
        return
    tell(f"{metric} over the last {len(last)} epochs: train {train:.4f}, test {test:.4f}")
    if noise:
        spread = f"train {noise.train:.4f}, test {noise.test:.4f}"
        tell(f"noise floor over {noise.twins} twins, one standard deviation: {spread}")


def _epoch_to_save(options: argparse.Namespace) -> int:
    """The epoch of `--save`."""
    try:
        return natural(options.save[0])
    except argparse.ArgumentTypeError as error:
        raise InputError(f"argument --save: {error}") from None
