"""An injection at another scale: every place moves to the same fraction of what it counts in.

This happens only on request, and the mapping is stated in full: a fault at another place is another fault.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..machine.errors import InputError, did_you_mean
from ..models.site import Site
from ..seam.workload import Workload, format_option
from .element_bits import Position, format_position, ravel, unravel
from .fault_models import FAULT_MODELS
from .injection import ALL, Injection, too_large
from .injection_file import format_injection, parse_injection


def scale_options(workload: Workload) -> tuple[str, ...]:
    """The options that a fault's place scales with.

    >>> from fault_injection.workloads.registry import find_workload
    >>> scale_options(find_workload("resnet18"))
    ('dataset', 'width', 'blocks', 'epochs', 'batch_size', 'workers')
    """
    return tuple(name for name, option in workload.OPTIONS.items() if option.scales)


def scale(injection: Injection, **options: Any) -> tuple[Injection, list[str]]:
    """The injection in its workload with `options` replaced, and the mapping, one sentence per line.

    A coordinate c becomes ⌊c·new/old⌋, where old and new are the sizes that it counts in: epochs,
    steps of an epoch, workers, an axis of the operand.  Several elements that follow one another
    in row-major order are a run: the first is scaled, and stays aligned to the fault model's group if
    it was; the others follow it, as many as the operand has room for.  Coordinates that bits are
    copied from are scaled one by one.  A horizon is scaled as the steps of the training are, and
    stays at least 1.  Values, bits and the learning-rate schedule stay.

    >>> from fault_injection.faults.injection_file import read_injection
    >>> old = read_injection("injections/published/resnet18_nobn-slow_degrade.csv")
    >>> new, mapping = scale(old, width=8, epochs=20)
    >>> new.positions, new.epoch
    (((0, 0, 9, 3),), 7)
    >>> mapping[2]
    'epoch: 28 of 80 -> 7 of 20'

    Args:
      injection: a valid one.
      options: of the workload, by name; see `Workload.changed`.

    Raises:
      InputError: the options contradict each other, or leave out the fault's layer, two elements
        would become one, or the operand grows too large for positions in it; or two of several faults would strike
        the same.
    """
    if any(one.profile is not None for one in injection.every):
        what = "the file has a defect profile, which lists no positions that could be scaled"
        raise InputError(f"{what}; write its rows with the options of the other scale")
    if not injection.also:
        return _scale_fault(injection, options)
    scaled, lines = [], []
    for number, one in enumerate(injection.every, 1):
        to, mapping = _scale_fault(one, options)
        scaled.append(to)
        lines += [f"fault {number}, at {one.layer}:", *mapping]
    try:
        both = Injection.together(*scaled)
    except ValueError as error:
        raise InputError(f"of the scaled file: {error}") from None
    parse_injection(format_injection(both), "the scaled file")
    return both, lines


def _scale_fault(injection: Injection, options: Mapping[str, Any]) -> tuple[Injection, list[str]]:
    """One fault scaled, and the mapping."""
    old, new = injection.workload, injection.workload.changed(**options)
    if (problem := new.contradiction()) is not None:
        raise InputError(problem.message)
    shape = _scaled_site(injection.layer, new).shapes[injection.operand]
    positions, elements = _scale_positions(injection, shape)
    bits = tuple(
        dataclasses.replace(each, source=each.source and _nearest(each.source, injection.tensor.shape, shape))
        for each in injection.bits[: len(positions)]
    )
    steps, new_steps = old.steps_per_epoch, new.steps_per_epoch
    total, new_total = old.epochs * steps, new.epochs * new_steps
    scaled = dataclasses.replace(
        injection,
        workload=new,
        epoch=injection.epoch * new.epochs // old.epochs,
        step=injection.step * new_steps // steps,
        worker=ALL if injection.worker == ALL else injection.worker * new.workers // old.workers,
        positions=positions,
        values=injection.values[: len(positions)],
        bits=bits,
        horizon=injection.horizon and max(1, injection.horizon * new_total // total),
    )
    parse_injection(format_injection(scaled), "the scaled file")  # what it refuses is not to be written

    worker = f"worker: {injection.worker} of {old.workers} -> {scaled.worker} of {new.workers}"
    changed = [name for name in new.OPTIONS if getattr(new, name) != getattr(old, name)]
    mapping = [
        "workload: " + (", ".join(f"{k} {_option(old, k)} -> {_option(new, k)}" for k in changed) or "unchanged"),
        "each coordinate c -> ⌊c·new/old⌋, counted from 0:",
        f"epoch: {injection.epoch} of {old.epochs} -> {scaled.epoch} of {new.epochs}",
        f"step: {injection.step} of {steps} -> {scaled.step} of {new_steps}",
        *([] if injection.worker == ALL else [worker]),
        *elements,
        *_copies(injection, scaled),
        _unchanged(injection, scaled),
    ]
    if injection.horizon is not None:
        mapping.append(f"horizon: {injection.horizon} of {total} steps -> {scaled.horizon} of {new_total}")
    return scaled, mapping + old.unscaled(new)


def _scaled_site(layer: str, new: Workload) -> Site:
    """The site of this name in the scaled workload."""
    if (site := new.find(layer)) is None:
        keep = [name for name, option in new.OPTIONS.items() if "layer" in option.scales]
        of = " and ".join(f"{name} {_option(new, name)}" for name in keep)
        expected = f"of {new.name} with {of}, expected {' and '.join(keep)} that keep it"
        raise InputError(f"{layer} is not a site {expected}{did_you_mean(layer, new.sites())}")
    if (message := too_large(site)) is not None:
        raise InputError(message)
    return site


def scaled_name(stem: str, workload: Workload, options: Mapping[str, object]) -> str:
    """The default name of a scaled file: names stand alone, numbers follow what they are.

    >>> from fault_injection.workloads.registry import find_workload
    >>> scaled_name("masked", find_workload("resnet18"), {"dataset": "digits", "width": 8, "batch_size": 128})
    'masked_digits_width8_batch128.csv'
    """
    words = [stem]
    for name in scale_options(workload):
        if name in options:
            what = "" if workload.OPTIONS[name].kind.names else name.removesuffix("_size")
            words.append(what + str(format_option(options[name])).replace("/", "-"))
    return "_".join(words) + ".csv"


def _scale_positions(injection: Injection, new: tuple[int, ...]) -> tuple[tuple[Position, ...], list[str]]:
    """The positions in an operand of shape `new`, and the mapping's lines for them."""
    old, tensor = injection.tensor.shape, injection.site.named(injection.operand).removesuffix(f" of {injection.layer}")

    def of(ends: Sequence[Position], shape: tuple[int, ...]) -> str:
        return f"{' to '.join(map(format_position, ends))} of {tensor} [{'×'.join(map(str, shape))}]"

    nearest = [_nearest(position, old, new) for position in injection.positions]
    count, index = len(nearest), ravel(injection.positions, old)
    if count == 1 or (np.diff(index) != 1).any():
        taken: dict[Position, Position] = {}
        for position, place in zip(injection.positions, nearest, strict=True):
            if place in taken:
                both = f"inj_pos {format_position(taken[place])} and {format_position(position)}"
                raise InputError(f"{both} would both become {format_position(place)}; keep one of them, or scale less")
            taken[place] = position
        return tuple(nearest), [f"element: {of([at], old)} -> {of([to], new)}" for to, at in taken.items()]

    first = int(ravel(nearest[:1], new)[0])
    group = 1 if injection.of_leaf else FAULT_MODELS[injection.fmodel].group
    aligned = group if index[0] % group == 0 else 1
    first -= first % aligned
    positions = tuple(unravel(np.arange(first, min(first + count, math.prod(new))), new))
    ends = [(places[0], places[-1]) for places in (injection.positions, positions)]
    line = f"run of {count} elements: {of(ends[0], old)} -> {of(ends[1], new)}"
    if aligned > 1:
        line += f", from a multiple of {aligned}"
    if len(positions) < count:
        line += f"; shortened to {len(positions)}, for which there is room"
    return positions, [line]


def _copies(old: Injection, new: Injection) -> list[str]:
    """The mapping's line for the elements that are copied."""
    moved = [(a.source, b.source) for a, b in zip(old.bits, new.bits, strict=False) if a.source and b.source]
    if not moved:
        return []
    (first, to), more = moved[0], f", and {len(moved) - 1} more" if len(moved) > 1 else ""
    itself = sum(new.source == position for new, position in zip(new.bits, new.positions, strict=True))
    note = f"; {itself} of them now copy themselves, which changes nothing" if itself else ""
    return [f"copied from: {format_position(first)} -> {format_position(to)}{more}{note}"]


def _unchanged(old: Injection, new: Injection) -> str:
    left_out = len(old.positions) - len(new.positions)
    what = "values" if old.values else "bits"
    return f"{what}: unchanged" + (f", but for the last {left_out}, left out" if left_out else "")


def _nearest(position: Position, old: tuple[int, ...], new: tuple[int, ...]) -> Position:
    """⌊c·new/old⌋ of every coordinate."""
    return tuple(c * n // o for c, n, o in zip(position, new, old, strict=True))


def _option(workload: Workload, name: str) -> object:
    return format_option(getattr(workload, name))
