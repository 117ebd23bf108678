"""An injection at another scale: every place at the same fraction of what it counts in.

Only on request, and said in full: a fault at another place is another fault.
"""

import dataclasses
import math

import numpy as np

from ..machine.errors import InputError, did_you_mean
from ..training.workloads import Workload, contradiction, format_option, make_workload
from .fault_models import FAULT_MODELS
from .injection import (
    OPTIONS,
    SCALE,
    Injection,
    format_injection,
    parse_injection,
    sites_of,
)


def scale(injection: Injection, **options) -> tuple[Injection, list[str]]:
    """The injection in its workload with `options` replaced, and the mapping, a line a sentence.

    A coordinate c becomes ⌊c·new/old⌋, old and new being the sizes that it counts in: epochs,
    steps of an epoch, workers, an axis of the operand.  Several elements that follow one another
    in row-major order are a run: the first is scaled, and aligned to the fault model's group if
    it was; the others follow it, as many as the operand has room for.  A horizon is scaled as
    the steps of the training, and stays at least 1.  Values and learning-rate schedule stay.

    Args:
      injection: a valid one.
      options: of the workload, by name.  Dropout and augmentation that the old dataset implies
        become what the new one implies.

    Raises:
      InputError: the options contradict each other, or leave out the fault's layer, two elements
        would become one, or the operand grows too large for positions in it.
    """
    old, new = injection.workload, _workload(injection.workload, options)
    if (problem := contradiction(new)) is not None:
        raise InputError(problem[1])
    scaled, sites = dataclasses.replace(injection, workload=new), sites_of(new)
    if injection.layer not in sites:
        of = f"{new.name} with blocks {format_option(new.blocks)}, expected blocks that keep it"
        raise InputError(f"{injection.layer} is not a site of {of}{did_you_mean(injection.layer, sites)}")
    steps, new_steps = injection.steps_per_epoch, scaled.steps_per_epoch
    positions, elements = _positions(injection, scaled)
    scaled = dataclasses.replace(
        scaled,
        epoch=injection.epoch * new.epochs // old.epochs,
        step=injection.step * new_steps // steps,
        worker=injection.worker * new.workers // old.workers,
        positions=positions,
        values=injection.values[: len(positions)],
    )
    total, new_total = old.epochs * steps, new.epochs * new_steps
    if injection.horizon:
        scaled = dataclasses.replace(scaled, horizon=max(1, injection.horizon * new_total // total))
    parse_injection(format_injection(scaled), "the scaled file")  # what it refuses is not to be written

    changed = [name for name in OPTIONS if getattr(new, name) != getattr(old, name)]
    left_out = len(injection.values) - len(scaled.values)
    mapping = [
        "workload: " + (", ".join(f"{k} {_option(old, k)} -> {_option(new, k)}" for k in changed) or "unchanged"),
        "each coordinate c -> ⌊c·new/old⌋, counted from 0:",
        f"epoch: {injection.epoch} of {old.epochs} -> {scaled.epoch} of {new.epochs}",
        f"step: {injection.step} of {steps} -> {scaled.step} of {new_steps}",
        f"worker: {injection.worker} of {old.workers} -> {scaled.worker} of {new.workers}",
        *elements,
        f"values: unchanged, but for the last {left_out}, left out" if left_out else "values: unchanged",
    ]
    if injection.horizon is not None:
        mapping.append(f"horizon: {injection.horizon} of {total} steps -> {scaled.horizon} of {new_total}")
    through = [f"{min(1, n / old.decay_steps):.0%} ({n} steps)" for n in (total, new_total)]
    mapping.append(
        f"learning rate: not scaled, {old.learning_rate:g} to {old.end_learning_rate:g} within {old.decay_steps} "
        f"steps, of which the training goes through {through[0]} -> {through[1]}"
    )
    return scaled, mapping


def scaled_name(stem: str, options: dict[str, object]) -> str:
    """The default name of a scaled file, such as `NAME_width8_epochs20_batch128.csv`."""
    words = {"dataset": "", "batch_size": "batch"}
    values = {name: str(format_option(options[name])).replace("/", "-") for name in SCALE if name in options}
    return "_".join([stem, *(words.get(name, name) + value for name, value in values.items())]) + ".csv"


def _workload(old: Workload, options) -> Workload:
    before, after = (
        make_workload(old.name, dataset=name) for name in (old.dataset, options.get("dataset", old.dataset))
    )
    implied = {
        name: getattr(after, name)
        for name in ("dropout", "augmentation")
        if getattr(old, name) == getattr(before, name)
    }
    return dataclasses.replace(old, **(implied | options))


def _positions(injection, scaled) -> tuple[tuple[tuple[int, ...], ...], list[str]]:
    """The scaled positions, and the mapping's lines for them."""
    old, new = (i.site.shapes[i.operand] for i in (injection, scaled))
    operand = injection.operand.name.lower()

    def of(places, shape):
        return f"{' to '.join(map(_text, places))} of the {operand} [{'×'.join(map(str, shape))}]"

    nearest = [tuple(c * n // o for c, n, o in zip(at, new, old, strict=True)) for at in injection.positions]
    count = len(nearest)
    index = np.ravel_multi_index(np.array(injection.positions).T, old)
    if count == 1 or (np.diff(index) != 1).any():
        taken: dict[tuple[int, ...], tuple[int, ...]] = {}
        for at, place in zip(injection.positions, nearest, strict=True):
            if place in taken:
                both = f"inj_pos {_text(taken[place])} and {_text(at)}"
                raise InputError(f"{both} would both become {_text(place)}; keep one of them, or scale less")
            taken[place] = at
        return tuple(nearest), [f"element: {of([at], old)} -> {of([to], new)}" for to, at in taken.items()]

    first = int(np.ravel_multi_index(nearest[0], new))
    group = FAULT_MODELS[injection.fmodel].group
    aligned = group if index[0] % group == 0 else 1
    first -= first % aligned
    run = np.array(np.unravel_index(np.arange(first, min(first + count, math.prod(new))), new)).T
    positions = tuple(map(tuple, run.tolist()))
    ends = [(places[0], places[-1]) for places in (injection.positions, positions)]
    line = f"run of {count} elements: {of(ends[0], old)} -> {of(ends[1], new)}"
    if aligned > 1:
        line += f", from a multiple of {aligned}"
    if len(positions) < count:
        line += f"; shortened to {len(positions)}, for which there is room"
    return positions, [line]


def _option(workload, name):
    return format_option(getattr(workload, name))


def _text(position) -> str:
    return "/".join(map(str, position))
