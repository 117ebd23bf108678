"""A map in words.  Every sentence says of how many tensors, elements and steps it speaks."""

from collections.abc import Sequence

import numpy as np

from ...campaign.box import Box, BoxAnswer
from ...campaign.wording import number, percent
from ...runs.fault_map import BACKWARD, FORWARD, GRADIENT, LOSS, UPDATE, FaultMap

NAMES = {  # of what kinds of rows are called, one and many
    FORWARD: ("result of the forward pass", "results of the forward pass"),
    BACKWARD: ("result of the backward pass", "results of the backward pass"),
    GRADIENT: ("gradient", "gradients"),
    UPDATE: ("product of the optimizer", "products of the optimizer"),
    "statistic": ("running statistic", "running statistics"),
    "history": ("moment", "moments"),
    "other": ("other leaf of the state", "other leaves of the state"),
    "parameter": ("parameter", "parameters"),
}


def share(value: float) -> str:
    """A share as percent; what is above nothing and below all is never shown as 0 % or 100 %.

    >>> share(0.1234), share(1e-9), share(1.0), share(0.99999)
    ('12.3 %', '< 0.1 %', '100 %', '> 99.9 %')
    """
    if 0 < value < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < value < 1 else f"{percent(value)} %"


def after(step: int) -> str:
    """A place among the steps, in words.

    >>> after(0), after(1), after(3)
    ('in the step struck', 'one step later', '3 steps later')
    """
    return "in the step struck" if step == 0 else "one step later" if step == 1 else f"{step} steps later"


def answers(found: FaultMap) -> Box:
    """What a reader wants first: where it entered, how far it came and when, what it did, and what is left of it."""
    parts = {
        "Where it entered": _entered(found),
        "How far it came": _reached(found),
        "What the loss says": _lost(found),
        "How large it was": _sizes(found),
        "What is left": _end(found),
    }
    return [BoxAnswer(question, " ".join(told)) for question, told in parts.items() if told]


def _entered(found: FaultMap) -> list[str]:
    told, later = [], len(found.steps) - 1
    if not found.struck:
        told.append(f"The fault struck nothing in {later + 1} steps.")
    for name, places in found.struck.items():
        at = found.steps[places[0]]
        often = (
            "" if len(places) == 1 else f", and again in {len(places) - 1} of the {later - places[0]} steps after it"
        )
        told.append(f"The fault entered at {name} in epoch {at.epoch}, step {at.step}{often}.")
    if not _ever(found, range(len(found.rows))):
        told.append(f"None of {len(found.rows)} tensors differs in any of {later + 1} steps.")
    return told


def _reached(found: FaultMap) -> list[str]:
    """How many tensors of each kind it reached, and when."""
    told = []
    for kind, (one, many) in NAMES.items():
        rows = found.of_kind(kind)
        firsts = [found.first(row) for row in rows]
        reached = [first for first in firsts if first is not None]
        if not rows or not reached:
            continue
        begun, ended = min(reached), max(reached)
        at_once = sum(first == begun for first in reached)
        text = f"It reached {at_once} of {len(rows)} {one if len(rows) == 1 else many} {after(begun)}"
        if len(reached) > at_once:
            text += f", and {len(reached)} of {len(rows)} by {ended} step{'s' * (ended > 1)} after it"
        told.append(f"{text}.")
    never = [NAMES[kind][1] for kind in NAMES if found.of_kind(kind) and not _ever(found, found.of_kind(kind))]
    if never and len(never) < len(NAMES):
        told.append(f"It reached none of the {', '.join(never)} within {len(found.steps)} steps.")
    return told


def _ever(found: FaultMap, rows: Sequence[int]) -> bool:
    return bool((found.differs[list(rows)] > 0).any())


def _lost(found: FaultMap) -> list[str]:
    """When the loss first differs, and how much."""
    (row,) = found.of_kind(LOSS)
    if (first := found.first(row)) is None:
        return [f"The loss is the golden one in all {len(found.steps)} steps."]
    golden, faulty = found.loss
    apart = np.abs(faulty - golden)
    told = f"The loss first differs {after(first)}"
    if np.isfinite(apart).all():
        most = int(np.argmax(apart))
        told += (
            f", and most {after(most)}, by {number(apart[most])}: {number(faulty[most])} against {number(golden[most])}"
        )
    return [f"{told}."]


def _sizes(found: FaultMap) -> list[str]:
    """What is not finite, and the largest difference of what is."""
    told, more = [], found.nonfinite > found.golden_nonfinite
    if more.any():
        step = int(np.flatnonzero(more.any(axis=0))[0])
        place = int(np.flatnonzero(more[:, step])[0])
        rows, count, row = int(more.any(axis=1).sum()), found.nonfinite[place, step], found.rows[place]
        told.append(
            f"Values that are not finite came first in {row.name}, {after(step)}: {count:,} of its {row.size:,} "
            f"elements; {rows} of {len(found.rows)} tensors have had some."
        )
    large = np.where(np.isfinite(found.relative_rms), found.relative_rms, -1)
    if (large > 0).any():
        place, step = divmod(int(np.argmax(large)), large.shape[1])
        told.append(
            f"The largest difference, relative to its tensor, is {number(large[place, step])} (root mean square) "
            f"in {found.rows[place].name}, {after(step)}."
        )
    return told


def _end(found: FaultMap) -> list[str]:
    """What differs after the last step, and more than a twin's where there is one."""
    rows, last = found.of_kind("parameter"), len(found.steps) - 1
    size = int(sum(found.rows[row].size for row in rows))
    part, steps = share(int(found.differs[rows, last].sum()) / max(size, 1)), f"{last + 1} step{'s' * (last > 0)}"
    told = f"After {steps}, {part} of {size:,} elements of the parameters differ"
    if found.twin is not None:
        beyond = int((found.rms[rows, last] > found.twin[rows, last]).sum())
        told += f"; {beyond} of {len(rows)} parameters differ by more than those of a twin, a run without a fault that "
        told += "began there one unit in the last place apart"
    return [f"{told}.", *([f"The run ended there: {found.ended}."] if found.ended else [])]
