"""Replay one injection: from its file to a verdict."""

import dataclasses
import pathlib
import shlex
import time
from typing import Any

import numpy as np

from models.fault import Struck

from ..faults.injection import Injection, format_injection
from ..machine import environment
from ..machine.processes import say, shared
from ..published.checkpoints import imported_start
from ..training.session import Session
from .faulty_run import FaultyRun
from .golden_run import KEEP_ALL_BELOW, Golden, noise_floor
from .outcome import Outcome, Thresholds, Trace, chance, classify
from .records import Run, columns, published_log, write_results
from .run_store import cut

WATCHED_STEPS = 2  # a latent bad outcome shows within two steps of the fault (docs/science.md, Outcomes)


@dataclasses.dataclass(frozen=True)
class Replay:
    """What came of an injection.

    Attributes:
      injection: the fault and its workload.
      outcome: the verdict.
      golden: the fault-free run, from its own first epoch on, as far as the faulty one was to go.
      faulty: the run with the fault, from the start of the fault's epoch.
      struck: what the fault did, as the step reported it.
    """

    injection: Injection
    outcome: Outcome
    golden: Run
    faulty: Run
    struck: Struck


def replay(
    injection: Injection,
    name: str,
    out: pathlib.Path,
    *,
    cache: pathlib.Path | None = None,
    data_dir: pathlib.Path | None = None,
    checkpoints: str = "own",
    devices: int | None = None,
    command: list[str] | None = None,
) -> Replay:
    """Replay `injection` and write its results to the folder `out`.

    Args:
      name: of the injection, in file names and titles.
      cache: folder of golden runs; by default `environment.cache_folder()`.
      data_dir: where the dataset is; by default where its reader looks.
      checkpoints: one of `golden.CHECKPOINTS`: `own` goes from initial weights through the whole golden
        run, `upstream` from the published checkpoint before the fault's epoch, where the golden run starts.
      devices: how many to use; by default as many as divide the workers.
      command: what to type to repeat it, for the provenance.

    Raises:
      InputError, OSError: the dataset or the published checkpoint cannot be read, or the results not written.
      NotRepeated: a step before the fault, or the control, differs from the golden run.
      FaultNotApplied: the step's observations contradict the fault.
    """
    begun = time.monotonic()
    session, golden = prepare(injection, cache, data_dir, checkpoints, devices)
    epochs = epochs_needed(injection)
    missing = epochs - golden.recorded()
    if missing > 0:
        for folder, differences in golden.elsewhere():
            say(f"the golden run in {folder} was made elsewhere ({differences}): its bits hold there, not here")
        start = f" from the published checkpoint before epoch {golden.first}" if golden.start else ""
        say(
            f"no golden run of {injection.workload.name} on {injection.workload.dataset}{start} with these options and "
            f"this machine yet, or not all of it: making {missing} epochs of {session.steps_per_epoch} steps in "
            f"{golden.folder}, up to {golden.disk_bytes(epochs) / 1e6:.0f} MB"
        )
    golden.ensure(epochs)
    faulty = FaultyRun(injection, session, golden, last_step_of(injection))
    with faulty.store.alone():
        faulty.go()
        result = _judge(faulty)
        _write(result, name, out, session, golden, command, time.monotonic() - begun)
        faulty.forget()
    return result


def _judge(faulty: FaultyRun) -> Replay:
    """The verdict on a faulty run that has ended."""
    injection, session, golden, run = faulty.injection, faulty.session, faulty.golden, faulty.run
    paired = Run(
        run.first, [cut(golden.record(run.first + i), len(e["step"])) for i, e in enumerate(run.epochs)], run.ended
    )
    thresholds = Thresholds()
    # The twins are compared over as many last epochs as the verdict is a mean of.
    window = min(thresholds.final_epochs, run.ended or thresholds.final_epochs)
    outcome = classify(
        _trace(paired, injection.step),
        _trace(run, injection.step),
        finished=faulty.last == injection.workload.epochs * session.steps_per_epoch - 1,
        first_nonfinite=faulty.first_nonfinite,
        exactly_masked_after=faulty.exactly_masked_after,
        noise=noise_floor(golden, injection.workload.epochs, window),
        chance=chance(session.images.train_labels),
        thresholds=thresholds,
    )
    epochs = epochs_needed(injection)
    whole = Run(golden.first, [golden.record(epoch) for epoch in range(golden.first, epochs)], epochs - golden.first)
    return Replay(injection, outcome, whole, run, faulty.struck)


def prepare(
    injection: Injection,
    cache: pathlib.Path | None,
    data_dir: pathlib.Path | None = None,
    checkpoints: str = "own",
    devices: int | None = None,
) -> tuple[Session, Golden]:
    """The session and golden run that a replay needs; nothing but an imported checkpoint is read or computed yet."""
    session = Session(injection.workload, devices, data_dir)
    start = imported_start(session, injection.epoch, cache) if checkpoints == "upstream" else None
    golden = Golden(session, cache, start=start)
    if golden.disk_bytes(injection.workload.epochs) > KEEP_ALL_BELOW:
        golden.keep = {injection.epoch}
    return session, golden


def last_step(epochs: int, steps_per_epoch: int, epoch: int, step: int, horizon: int | None) -> int:
    """Number, over all epochs, of the last step to run after a fault at (epoch, step): the horizon's, or the end's."""
    end = epochs * steps_per_epoch - 1
    return end if horizon is None else min(epoch * steps_per_epoch + step + horizon, end)


def last_step_of(injection: Injection) -> int:
    """`last_step` of an injection."""
    i = injection
    return last_step(i.workload.epochs, i.steps_per_epoch, i.epoch, i.step, i.horizon)


def epochs_needed(injection: Injection) -> int:
    """How many epochs of the golden run a replay is held against."""
    return last_step_of(injection) // injection.steps_per_epoch + 1


def _trace(run: Run, step: int) -> Trace:
    accuracy = run.column("accuracy")[step:]
    return Trace(accuracy, run.epoch_column("train_accuracy"), run.epoch_column("valid_accuracy"))


@shared
def _write(result: Replay, name, out, session, golden, command, seconds) -> None:
    injection, struck = result.injection, result.struck
    count = len(injection.values)
    old = np.asarray(struck.old)[:count].view(np.float32)
    tables = {run: columns(getattr(result, run), session.names) for run in ("golden", "faulty")}
    outcome: dict[str, Any] = dataclasses.asdict(result.outcome)
    outcome["largest_from_the_faulty_step_on"] = {run: _watched(table, injection) for run, table in tables.items()}
    provenance = {
        "fault": describe_fault(injection, struck),
        "command": shlex.join(command) if command else None,
        "injection": format_injection(injection).splitlines(),
        "struck": {
            "elements": count,
            "elements_changed": int(struck.operand_changed),
            "output_elements_changed": int(struck.output_changed),
            "old": old.tolist(),
            "new": struck.new[:count].view(np.float32).tolist(),
            "old_bits": [f"{bits:08x}" for bits in struck.old[:count]],
            "new_bits": [f"{bits:08x}" for bits in struck.new[:count]],
        },
        "seed": injection.workload.seed,
        "workload": dataclasses.asdict(injection.workload),
        "golden_run": golden.key,
        "golden_start": golden.start.origin if golden.start else "initial weights",
        "arithmetic": session.arithmetic,
        "environment": environment.describe(),
        "seconds": round(seconds, 1),
    }
    checkpoint = golden.store.checkpoint_path(injection.epoch).relative_to(golden.folder.parent)
    log = published_log(injection, result.faulty, old, checkpoint, result.outcome.first_nonfinite is not None)
    fault_at = injection.epoch + injection.step / session.steps_per_epoch
    write_results(out, name, log, tables, outcome, provenance, fault_at, session.steps_per_epoch)


def _watched(table: dict[str, np.ndarray], injection: Injection) -> dict[str, list[float]]:
    """Largest optimizer-history and running-variance values from the faulty step to two after it."""
    since = (table["steps/epoch"] - injection.epoch) * injection.steps_per_epoch + table["steps/step"] - injection.step
    watched = (since >= 0) & (since <= WATCHED_STEPS)
    prefix = "steps/largest_"
    return {
        name.removeprefix(prefix): column[watched].tolist()
        for name, column in table.items()
        if name.startswith(f"{prefix}history") or name == f"{prefix}running_variance"
    }


def describe_fault(injection: Injection, struck: Struck) -> str:
    """The fault in one English sentence, with the first element's old and new value and the bits that differ."""
    old, new = struck.old[0], struck.new[0]
    differing = [bit for bit in range(31, -1, -1) if (int(old) ^ int(new)) >> bit & 1]
    which = f"bits {', '.join(map(str, differing))} differ" if differing else "no bit differs"
    values = f"from {float(old.view(np.float32))!r} to {float(new.view(np.float32))!r} ({which}, bit 0 the lowest)"
    first = "" if len(injection.values) == 1 else "the first of them "
    result = f"{int(struck.output_changed)} element(s) of the operation's result changed"
    return f"{injection.sentence().removesuffix('.')}: {first}{values}; {result}."
