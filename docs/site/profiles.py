"""What shipped defect profiles do to one operand: `python docs/site/profiles.py` draws `docs/images/profiles.png`.

Each panel has the histogram of an operand of float32 before and after, by the exponent of two of its numbers.  The
device function of strikes makes the second, so the picture shows what a step computes.
"""

import pathlib
import sys

import jax.numpy as jnp
import matplotlib
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from fault_injection.faults.profiles.reader import find_profile, shipped
from fault_injection.models.fault import Operand
from fault_injection.models.overwrite import overwrite
from fault_injection.models.rule import at_strike
from fault_injection.models.site import Site, TensorSpec, ruled_fault

PICTURE = pathlib.Path(__file__).parents[1] / "images" / "profiles.png"
SHAPE = (256, 256)
LOWEST, HIGHEST = -16, 16  # exponents shown apart; what lies beyond stands in the outermost columns


def exponents(numbers: np.ndarray) -> np.ndarray:
    """The exponent of two of each number; zeros in the lowest column, and what is not finite in the highest."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.floor(np.log2(np.abs(numbers.astype(np.float64))))
    found = np.where(np.isfinite(numbers), found, HIGHEST + 1)
    return np.clip(found, LOWEST - 1, HIGHEST + 1)


def struck(name: str, draw: int = 0) -> tuple[np.ndarray, np.ndarray, int]:
    """An operand before and after, and how many elements were struck; what grows has grown."""
    operand = np.random.default_rng(7).standard_normal(SHAPE, np.float32)
    profile = find_profile(name)
    site = Site("fc", "fc", "forward", dict.fromkeys(Operand, TensorSpec(SHAPE, operand.dtype)))
    rule = at_strike(profile.rule(site, draw), profile.growing)
    (after,), told = overwrite((jnp.asarray(operand),), ruled_fault(site, Operand.INPUT, 0, rule))
    return operand, np.asarray(after), int(told.matched[0])


def main() -> None:
    """Draw all."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    names = shipped()
    rows = -(-len(names) // 3)
    figure, panels = pyplot.subplots(rows, 3, figsize=(10, 2.3 * rows), sharex=True, sharey=True, layout="constrained")
    for axes in panels.flat[len(names) :]:
        axes.axis("off")
    edges = np.arange(LOWEST - 1.5, HIGHEST + 2)
    for axes, name in zip(panels.flat, names, strict=False):
        before, after, count = struck(name)
        axes.hist(exponents(before).reshape(-1), edges, color="#bbbbbb", label="before")
        axes.hist(exponents(after).reshape(-1), edges, histtype="step", color="#d62728", label="after")
        changed = int(np.sum(before.view(np.uint32) != after.view(np.uint32)))
        axes.set_title(f"{name}: {count:,} of {before.size:,} struck, {changed:,} changed", fontsize=8)
        axes.set(yscale="log", ylim=(0.5, 1e5))
    panels[0, 0].legend(fontsize=7)
    for axes in panels.flat[len(names) - 3 : len(names)]:  # the lowest of each column
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("exponent of two (left: 0 or below, right: beyond, inf, NaN)", fontsize=7)
    for axes in panels[:, 0]:
        axes.set_ylabel("elements", fontsize=8)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
