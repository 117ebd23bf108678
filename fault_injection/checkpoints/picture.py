"""The picture of a difference: the relative error of each array, and which bits differ."""

import math
import pathlib

import numpy as np
from matplotlib.figure import Figure

from ..machine.files import write_atomically
from .difference import Difference

MOST = 60  # arrays in one picture, those of the largest errors


def draw_difference(found: Difference, path: pathlib.Path, title: str) -> None:
    """Draw what differs.

    Args:
      path: of the picture; its suffix says the format.
    """
    numbers = [one for one in found.changed if one.numbers]
    ranked = sorted(numbers, key=lambda one: -math.inf if one.error is None else -one.error)[:MOST]
    order = {one.name: k for k, one in enumerate(found.arrays)}
    arrays = sorted(ranked, key=lambda one: order[one.name])
    figure = Figure(figsize=(9, max(4.0, 2.5 + 0.19 * len(arrays))), layout="constrained")
    errors, bits = figure.subplots(2, 1, height_ratios=[max(2.0, 0.19 * len(arrays)), 1.8])
    finite = [one.error for one in arrays if one.error]
    beyond = 10 * max(finite, default=1.0)
    places = np.arange(len(arrays))
    for k, one in enumerate(arrays):
        if one.error is None:
            errors.plot(beyond, k, ">", color="tab:red")
        elif one.error:
            errors.plot(one.error, k, "o", color="tab:blue", markersize=4, clip_on=False)
    errors.set_yticks(places, [one.name for one in arrays], fontsize=7)
    errors.set_ylim(len(arrays) - 0.4, -0.6)
    errors.set_xscale("log")
    if drawn := [*finite, *([beyond] if any(one.error is None for one in arrays) else [])]:
        errors.set_xlim(
            10.0 ** math.floor(math.log10(min(drawn)) - 0.1), 10.0 ** math.ceil(math.log10(max(drawn)) + 0.1)
        )
    errors.set_xlabel("relative error: norm of the difference / norm of the array (red: not finite, or of zeros)")
    more = "" if len(numbers) <= MOST else f", the {MOST} largest of {len(numbers)}"
    errors.set_title(f"{title}: {len(found.changed)} of {len(found.arrays)} arrays differ{more}", fontsize=10)
    errors.grid(axis="x", alpha=0.3)
    width = max((len(one.bits) for one in found.arrays), default=32)
    counts = np.zeros(width, np.int64)
    for one in found.arrays:
        counts[: len(one.bits)] += np.array(one.bits)
    bits.bar(np.arange(width), counts, color="tab:blue")
    bits.set_xlabel("bit that differs; 0 is the least significant")
    bits.set_ylabel("elements")
    suffix = path.suffix[1:]
    write_atomically(path, lambda file: figure.savefig(file, format=suffix, dpi=110))
