"""What is known of a training of which every single bit flip of the state was followed to the end: `flips.npz`.

`populations/adam/enumerate_flips.py` makes the file.  For each leaf of the state it has

- `outcome/LEAF`, uint8 [times,elements,32]: the verdict, a number in `outcomes`; bit 0 is the lowest;
- `ended/LEAF`, int8 [times,elements,32]: how many steps after the faulty one the run was ended, because its state was
  the golden one again (the verdict is *Masked*, and proved) or because a loss was not finite; −1 of runs that were
  followed to the end of the training;
- `worse_train/LEAF`, `worse_test/LEAF`, float16 [times,elements,32]: by how much the metric at the end is worse than
  the golden run's; NaN where no epoch ended;
- `gap/LEAF`, float16 [times,elements,32]: the largest distance of the loss from the golden run's in the faulty step and
  the three after it, infinite where a loss was not finite or the distance is above 65,504; what an early look sees;
- `value/LEAF`, [times,elements]: what the elements are in the golden run before the step struck, so that one can tell
  which bits are set;

and for all leaves `times`, int64 [times,2], the epochs and steps that are struck, and `outcomes`, the names of
verdicts.  Elements count row by row.  A flip strikes the state before the step reads it, as `target,LEAF` of an
injection file does.
"""

import functools
import itertools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import sources

from fault_injection.faults.number_formats import Format, format_of
from fault_injection.runs.outcome import MASKED

KINDS = {"params/": "parameters", "opt/0/mu/": "m", "opt/0/nu/": "v", "opt/0/count": "count"}  # by how names begin


class LeafFlips(NamedTuple):
    """All flips of one leaf; see above."""

    outcome: np.ndarray
    ended: np.ndarray
    worse_train: np.ndarray
    worse_test: np.ndarray
    gap: np.ndarray
    value: np.ndarray


class TrainingFlips:
    """All flips of a training.

    Attributes:
      times: int64 [times,2], the epochs and steps struck.
      outcomes: names of verdicts.
      leaves: the flips of each leaf by its name.

    Args:
      folder: that holds `flips.npz` and `flips.json`.
    """

    def __init__(self, folder: pathlib.Path):
        with np.load(folder / "flips.npz") as stored:
            self.times, self.outcomes = stored["times"], tuple(map(str, stored["outcomes"]))
            names = [name.removeprefix("outcome/") for name in stored.files if name.startswith("outcome/")]
            self.leaves = {name: LeafFlips(*(stored[f"{f}/{name}"] for f in LeafFlips._fields)) for name in names}
        self.told = json.loads((folder / "flips.json").read_text(encoding="utf-8"))

    @functools.cached_property
    def count(self) -> int:
        """How many flips."""
        return sum(leaf.outcome.size for leaf in self.leaves.values())

    @functools.cached_property
    def elements(self) -> int:
        """How many elements the state has."""
        return sum(leaf.outcome.shape[1] for leaf in self.leaves.values())

    @functools.cached_property
    def epochs(self) -> list[int]:
        """The epochs that are struck."""
        return sorted(set(self.times[:, 0].tolist()))

    @property
    def processor(self) -> str:
        """The processor that followed them."""
        return sources.named(self.told["determined_by"]["arithmetic"]["processor"])

    def kinds(self) -> list[str]:
        """What the leaves are: parameters, Adam's moments, its count."""
        here = set(map(kind, self.leaves))
        return [name for name in KINDS.values() if name in here]

    def of(self, leaves: str = "", bits: Iterable[int] = range(32), epochs: Iterable[int] = ()) -> "Flips":
        """Some of the flips.

        Args:
          leaves: a kind of leaves, or the beginning of names; empty for all.
          bits: that are inverted.
          epochs: that are struck; empty for all.
        """
        at, wanted = list(bits), list(epochs)
        rows = np.flatnonzero([not wanted or epoch in wanted for epoch in self.times[:, 0]])
        here = [leaf for name, leaf in self.leaves.items() if kind(name) == leaves or name.startswith(leaves)]
        parts = ((leaf.outcome[rows][..., at].ravel(), leaf.ended[rows][..., at].ravel()) for leaf in here)
        outcome, ended = (np.concatenate(each) for each in zip(*parts, strict=True))
        counts = np.bincount(outcome, minlength=len(self.outcomes))
        proved = int(((outcome == self.outcomes.index(MASKED)) & (ended >= 0)).sum())
        return Flips(len(outcome), dict(zip(self.outcomes, counts.tolist(), strict=True)), proved)

    def bits(self, leaves: str = "") -> dict[str, list[int]]:
        """The bits of a kind of leaves by their roles: the sign, each of the exponent, the mantissa in three parts.

        Those of an integer come by its bytes, the highest bit by itself.
        """
        format = self._format(leaves)
        if not format.exponent:
            parts = [(31, 31), (24, 30), (16, 23), (8, 15), (0, 7)]
            return {
                f"bits {low} to {high}" if low < high else f"bit {low}": [*range(low, high + 1)] for low, high in parts
            }
        top = list(reversed(range(format.mantissa, format.width)))
        m, thirds = format.mantissa, [0, format.mantissa // 3, 2 * format.mantissa // 3, format.mantissa]
        parts = itertools.pairwise(thirds)
        low = {f"mantissa {m - high + 1} to {m - low}": list(range(low, high)) for low, high in parts}
        return {format.role(bit): [bit] for bit in top} | dict(reversed(low.items()))

    def _format(self, leaves: str) -> Format:
        return format_of(next(one.value.dtype for name, one in self.leaves.items() if kind(name) == leaves))

    def rare(self, most: float = 0.01) -> list[tuple[str, str, "Flips"]]:
        """Kinds of leaves and outcomes other than *Masked* that occur, but in fewer than this share of the flips."""
        every = [(of, self.of(of)) for of in self.kinds()]
        return [(of, name, part) for of, part in every for name in harms(self) if 0 < part.share(name) < most]


class Flips(NamedTuple):
    """How many flips, how many of each outcome, and of how many it is proved that they are masked."""

    n: int
    counts: Mapping[str, int]
    proved: int

    def share(self, outcome: str) -> float:
        """The share of an outcome."""
        return self.counts[outcome] / self.n

    @property
    def harm(self) -> float:
        """The share that is not masked."""
        return 1 - self.counts[MASKED] / self.n


def kind(leaf: str) -> str:
    """What a leaf is.

    >>> kind("params/hidden/kernel"), kind("opt/0/nu/head/bias")
    ('parameters', 'v')
    """
    return next(name for start, name in KINDS.items() if leaf.startswith(start))


def harms(flips: TrainingFlips) -> list[str]:
    """The outcomes other than *Masked* that occur, in the order of `outcomes`."""
    counts = flips.of().counts
    return [name for name in flips.outcomes if name != MASKED and counts[name]]


@functools.cache
def training_flips(folder: str) -> TrainingFlips:
    """The flips in a folder of results."""
    return TrainingFlips(pathlib.Path(__file__).resolve().parent / folder)
