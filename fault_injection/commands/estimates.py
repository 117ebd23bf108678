"""What `--check` says of a golden run: what is there, and what disk and time the rest takes."""

import dataclasses
import pathlib

from ..campaign.terminal import clock
from ..runs.golden_run import Golden
from ..seam.workload import Workload, format_option


def workload_text(workload: Workload) -> str:
    """A workload with all its fields, for people to read."""
    options = workload.options()
    unsaid = {name for name in ("learning_rate", "strategy") if name not in options}  # in a user's own code
    fields = {name: format_option(value) for name, value in dataclasses.asdict(workload).items() if name not in unsaid}
    return f"{fields.pop('name')}, " + ", ".join(f"{name} {value}" for name, value in fields.items())


def golden_needed(golden: Golden, epochs: int, data_dir: pathlib.Path | None) -> list[str]:
    """Lines that say which golden run is needed, and what of it is there.

    Raises:
      InputError: `data_dir` holds no data.
    """
    start = f" from the published checkpoint before epoch {golden.first}" if golden.start else ""
    needs = (
        f"Needs a golden run{start} of {epochs - golden.first} epochs of {golden.program.steps_per_epoch} steps, "
        f"up to {golden.disk_bytes(epochs) / 1e6:.0f} MB on disk; "
    )
    if not golden.workload.data_at_hand(data_dir):
        return [
            f"{needs}the data of {golden.workload.label} are not at hand: they would be downloaded (or --data-dir)."
        ]
    made = min(golden.recorded(), epochs) - golden.first
    if made <= 0:
        return [f"{needs}none of it has been made yet (it would be in {golden.folder})."]
    return [f"{needs}{made} epochs of it are in {golden.folder}."]


def time_needed(seconds_per_step: float | None, steps: int) -> str:
    """A line that says how long some steps take."""
    if seconds_per_step is None:
        return "Time: not known before a golden run of this workload has been made on this machine."
    pace = f"at {seconds_per_step:.3f} s per step, as when the golden run was made"
    return f"Time: about {clock(seconds_per_step * steps)}, {pace}; compiling comes on top."
