"""What a replay writes: the published log, columns, verdict, provenance, picture."""

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..faults.element_bits import Position, digits_of, format_position, unravel
from ..faults.injection import ALL, Injection
from ..faults.injection_file import format_injection
from ..faults.number_formats import format_of
from ..machine import environment
from ..machine.files import write_arrays, write_json, write_text
from ..machine.processes import from_leader
from ..models.bits import width_of
from ..models.fault import Struck
from .records import run_columns
from .replay_run import Replay
from .steps import Address
from .witness import left_out

WATCHED_STEPS = 2  # a latent bad outcome shows within two steps of the fault (docs/science.md, Outcomes)


def write_replay(
    replay: Replay,
    name: str,
    out: pathlib.Path,
    command: Sequence[str] | None = None,
    recovered: Replay | None = None,
    detection: Mapping[str, Any] | None = None,
) -> None:
    """Write everything of one replay to the folder `out`; `outcome.json` last: where it is, all is.

    Args:
      name: of the injection, in file names and titles.
      command: what to type to repeat it, for the provenance.
      recovered: the same with a recovery, for the picture and the record.
      detection: what a detector saw and a recovery did, for `detection.json`.
    """
    from .curves import draw_curves  # Matplotlib is slow to import

    program, injection = replay.source.program, replay.injection
    measure = program.measure()
    tables = {run: run_columns(getattr(replay, run), program, measure.name) for run in ("golden", "faulty")}
    title, faulty = f"{name}: {replay.outcome.outcome}", {"faulty": tables["faulty"]}
    if recovered is not None:
        tables["recovered"] = faulty["recovered"] = run_columns(recovered.faulty, program, measure.name)
        title += f"; recovered: {recovered.outcome.outcome}"
    outcome: dict[str, Any] = dataclasses.asdict(replay.outcome)
    if injection.also:
        outcome["faults"] = describe_faults(replay)
    outcome["largest_from_the_faulty_step_on"] = {run: _watched(table, injection) for run, table in tables.items()}

    def write() -> None:
        for known in ("outcome.json", "detection.json"):
            (out / known).unlink(missing_ok=True)
        write_text(out / f"replay_{name}.txt", published_log(replay))
        write_arrays(out / "record.npz", {f"{run}/{k}": v for run, table in tables.items() for k, v in table.items()})
        write_json(out / "provenance.json", provenance(replay, command))
        steps = program.steps_per_epoch
        fault_at = dict.fromkeys(faulty, tuple(one.number / steps for one in injection.every))
        draw_curves(out / "curves.png", title, tables["golden"], faulty, fault_at, steps, measure)
        if detection is not None:
            write_json(out / "detection.json", detection)
        write_json(out / "outcome.json", outcome)

    from_leader(write)


def _watched(table: Mapping[str, np.ndarray], injection: Injection) -> dict[str, list[float]]:
    """Largest optimizer-history and running-variance values from the faulty step to two after it."""
    since = (table["steps/epoch"] - injection.epoch) * injection.steps_per_epoch + table["steps/step"] - injection.step
    watched = (since >= 0) & (since <= WATCHED_STEPS)
    prefix = "steps/largest_"
    return {
        name.removeprefix(prefix): column[watched].tolist()
        for name, column in table.items()
        if name.startswith(f"{prefix}history") or name == f"{prefix}running_variance"
    }


def provenance(replay: Replay, command: Sequence[str] | None = None) -> dict[str, Any]:
    """Where the results of a replay come from: the fault, what it did, the machine, the command."""
    injection, golden = replay.injection, replay.source
    known = golden.determined_by["arithmetic"]
    struck = [*map(_struck, injection.every, replay.struck_each, replay.struck_at)]
    return {
        "fault": " ".join(describe_faults(replay)),
        "command": shlex.join(command) if command else None,
        "injection": format_injection(injection).splitlines(),
        "struck": struck if injection.also else struck[0],
        "seed": injection.workload.seed,
        "workload": dataclasses.asdict(injection.workload),
        "golden_run": golden.key,
        "golden_start": golden.start.origin if golden.start else "initial weights",
        **({"own_step": apart} if (apart := golden.own_step()) else {}),
        "arithmetic": known,
        "environment": environment.describe(),
        "seconds": round(replay.seconds, 1),
    }


def _struck(injection: Injection, struck: Struck | None, at: Address | None) -> dict[str, Any] | None:
    """What one fault did, and when; None where its run had ended before."""
    if struck is None or at is None:
        return None
    old, new = (struck_values(injection, bits) for bits in (struck.old, struck.new))
    digits = digits_of(old.dtype)
    return {
        "epoch": at.epoch,
        "step": at.step,
        "elements": _struck_elements(injection, struck),
        **({} if injection.profile is None else {"profile": injection.profile.as_json()}),
        "elements_changed": int(struck.operand_changed),
        "output_elements_changed": int(struck.output_changed),
        "old": old.tolist(),
        "new": new.tolist(),
        "old_bits": [f"{bits:0{digits}x}" for bits in struck.old[: len(old)]],
        "new_bits": [f"{bits:0{digits}x}" for bits in struck.new[: len(new)]],
    }


def _struck_elements(injection: Injection, struck: Struck) -> int:
    """How many elements a fault struck, changed or not."""
    return len(injection.positions) if injection.profile is None else int(struck.matched[0])


def struck_values(injection: Injection, bits: Any) -> np.ndarray:
    """The numbers whose bits a step reported of the struck elements, of its own dtype; those of a rule's first one."""
    told = 1 if injection.profile is not None else len(injection.positions)
    return format_of(injection.tensor.dtype).values(np.asarray(bits[:told]))


def struck_positions(injection: Injection, struck: Struck) -> list[Position]:
    """The positions of the elements that `struck_values` has."""
    if injection.profile is None:
        return list(injection.positions)
    return unravel(np.asarray(struck.matched[1:]), injection.tensor.shape)


def describe_faults(replay: Replay) -> list[str]:
    """Each fault in one English sentence, and what it did."""
    return [*map(describe_fault, replay.injection.every, replay.struck_each, replay.struck_at)]


def describe_fault(injection: Injection, struck: Struck | None, at: Address | None = None) -> str:
    """A fault in one English sentence, with the first element's old and new value and the bits that differ.

    Args:
      at: the step that tells of it, where it may be another than the one from which the fault strikes.
    """
    if struck is None:
        return f"{injection.sentence().removesuffix('.')}: the run had ended before, so nothing was struck."
    if left_out(injection.site, struck):
        return f"{injection.sentence().removesuffix('.')}: {_why_nothing(injection)}, so nothing was struck."
    old, new = (struck_values(injection, bits)[0] for bits in (struck.old, struck.new))
    changed = int(struck.old[0]) ^ int(struck.new[0])
    differing = [bit for bit in range(width_of(old.dtype) - 1, -1, -1) if changed >> bit & 1]
    which = f"bits {', '.join(map(str, differing))} differ" if differing else "no bit differs"
    values = f"from {_number(old)!r} to {_number(new)!r} ({which}, bit 0 the lowest)"
    first = "" if len(injection.positions) == 1 else "the first of them "
    if injection.profile is not None:
        (where,) = struck_positions(injection, struck)
        count, changed = int(struck.matched[0]), int(struck.operand_changed)
        first = f"{count} element(s) struck, {changed} of them changed; the first, {format_position(where)}, "
    result = f"; {int(struck.output_changed)} element(s) of the operation's result changed"
    result = "" if injection.of_leaf else result
    if at not in (None, (injection.epoch, injection.step)):
        first = f"nothing was struck before epoch {at.epoch}, step {at.step}; there {first}"
    return f"{injection.sentence().removesuffix('.')}: {first}{values}{result}."


def _why_nothing(injection: Injection) -> str:
    if injection.profile is None:
        return "this step left the operation out"
    return "no element of this step's operand fits it" + (" or it was left out" if injection.site.conditional else "")


def published_log(replay: Replay) -> str:
    """The log of the published artifact, line for line (docs/science.md, Log)."""
    injection, run, golden = replay.injection, replay.faulty, replay.source
    epochs, metric = injection.workload.epochs, golden.program.measure().name
    checkpoint = golden.store.checkpoint_path(injection.epoch).relative_to(golden.folder.parent)
    each = [*zip(injection.every, replay.struck_each, replay.struck_at, strict=True)]
    lines = [
        *(f"Inject to {place}: {at}" for one, *_ in each for place, at in (("epoch", one.epoch), ("step", one.step))),
        f"Load weights from {checkpoint}",
    ]
    for i, record in enumerate(run.epochs):
        epoch = run.first + i
        for step, loss, value in zip(record["step"], record["loss"], record["metric"], strict=True):
            for one, struck, at in each:
                if (epoch, step) == at and struck is not None:
                    lines += _struck_lines(one, struck)
            place = f"Epoch: {epoch}/{epochs}, step: {step}/{injection.steps_per_epoch}"
            lines.append(", ".join([place, *_figures({"loss": loss, metric: value})]))
        if i < run.ended:
            means = {
                f"{part} {name}": record[f"{part}_{column}"]
                for part in ("train", "valid")
                for name, column in (("loss", "loss"), (metric, "metric"))
            }
            lines.append(", ".join([f"End of epoch: {epoch}/{epochs}", *_figures(means)]))
    if replay.outcome.first_nonfinite is not None:
        lines.append("Encounter NaN! Terminate training!")
    return "\n".join(lines) + "\n"


def _number(value: np.generic) -> float | int:
    """An element as Python's number: a float, but of integers of 64 bits, of which a float has not all."""
    return int(value) if value.dtype.kind in "iu" and value.itemsize == 8 else float(value)


def _figures(named: Mapping[str, float | np.ndarray]) -> list[str]:
    """Numbers with their names; a metric that is the loss itself stands once."""
    return [f"{name}: {float(value):.5f}" for name, value in named.items()]


def _struck_lines(injection: Injection, struck: Struck) -> list[str]:
    """The lines that stand before the faulty step's own."""
    shape = injection.site.shapes[injection.operand]
    if left_out(injection.site, struck):
        why = _why_nothing(injection).replace("this step", "the step", 1)
        return [f"Inject layer: {injection.layer}", f"{why[0].upper()}{why[1:]}: nothing was struck"]
    # A file's own numbers where it gives them; they may have more digits than the operand's dtype.
    new = injection.values or [_number(value) for value in struck_values(injection, struck.new)]
    return [
        f"Inject worker: {'all' if injection.worker == ALL else injection.worker}",
        f"Inject layer: {injection.layer}",
        f"Shape for target layer is {tuple(shape)}",
        *(
            f"Position is {position}, Golden data is {_number(before)!r}, inject data is {value!r}"
            for position, before, value in zip(
                struck_positions(injection, struck), struck_values(injection, struck.old), new, strict=True
            )
        ),
    ]
