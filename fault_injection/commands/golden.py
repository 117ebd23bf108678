"""`golden`: make a fault-free run, and its twins."""

import argparse
import dataclasses

from ..machine.processes import say
from ..runs.golden_run import Golden, final_metrics, noise_floor
from ..runs.outcome import Thresholds
from .arguments import (
    CommandLine,
    chosen_workload,
    epoch_list,
    json_option,
    machine_options,
    positive,
    tell,
    tell_json,
    workload_options,
)
from .estimates import shown


def add(commands: CommandLine) -> None:
    """Add the command."""
    sub = commands.add("golden", run, "make a fault-free run, and its twins")
    sub.add_argument("workload", help="name of a workload")
    workload_options(sub, "the embedded default")
    sub.add_argument(
        "--twins",
        type=positive,
        default=0,
        metavar="N",
        help="also N runs whose start differs by one unit in the last place",
    )
    sub.add_argument(
        "--keep-epochs",
        type=epoch_list,
        metavar="LIST",
        help="keep checkpoints before these epochs only, such as 7,19,30-33, besides the newest (default: all)",
    )
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    """Carry out the command."""
    workload = chosen_workload(options, embedded=getattr(options, "dataset", None) in (None, "digits"))
    say(shown(workload))
    golden = Golden(workload, workload.program(data_dir=options.data_dir), options.cache, options.keep_epochs)
    for made in (golden, *map(golden.twin_run, range(1, options.twins + 1))):
        say(f"{made.folder}: up to {made.disk_bytes(workload.epochs) / 1e6:.0f} MB")
        made.make(workload.epochs)
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
