"""Blocks of experiments of a campaign that wants a width: each is designed from the outcomes of those before it.

A store keeps them, with what was wanted then.  So a campaign that goes on, with another width or without, comes to what
it knew before, bit by bit; and each experiment is known by its number, as in any campaign.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...machine.reading import fits
from .conditions import Rule
from .plan import Plan
from .strata import divided


class StoredBlock(NamedTuple):
    """A block of experiments, designed before any of them ran.

    Attributes:
      number: of the block, from 0.
      first: number of its first experiment.
      widths: what was wanted, of the rate of all faults and by what; the latter is None where nothing was.
      rules: that may end runs with faults beyond their premises, see `Plan.beyond_premises`.
      strata: of each experiment its stratum, by its number in `strata.divided`.
      chances: of each stratum, with which it was drawn.
    """

    number: int
    first: int
    widths: tuple[float, float | None]
    rules: tuple[Rule, ...]
    strata: tuple[int, ...]
    chances: tuple[float, ...]

    @property
    def numbers(self) -> range:
        """Of its experiments."""
        return range(self.first, self.first + len(self.strata))

    def row(self) -> list[Any]:
        """As the store has it."""
        return [self.number, self.first, *map(json.dumps, self[2:])]


def restored_blocks(rows: Sequence[Mapping[str, Any]], plan: Plan) -> list[StoredBlock]:
    """The blocks of a plan's store, in their order.

    Raises:
      ValueError: a row is not one; its message names the row.  Perhaps somebody wrote it by hand.
    """
    found: list[StoredBlock] = []
    for place, row in enumerate(rows):
        try:
            widths, rules, strata, chances = (tuple(json.loads(row[name])) for name in StoredBlock._fields[2:])
            block = StoredBlock(row["number"], row["first"], widths, tuple(map(Rule, rules)), strata, chances)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"block {row['number']}") from None
        first = found[-1].numbers.stop if found else 0
        if (block.number, block.first) != (place, first) or not _sound(block, plan):
            raise ValueError(f"block {row['number']}")
        found.append(block)
    return found


def _sound(block: StoredBlock, plan: Plan) -> bool:
    if plan.wanted is None:
        return False
    strata, by = len(divided(plan).strata), block.widths[1] if len(block.widths) == 2 else None
    typed = all(fits(value, hint) for value, hint in zip(block, StoredBlock.__annotations__.values(), strict=True))
    if not typed or len(block.chances) != strata or not block.strata:
        return False
    widths = all(0 < width < 1 for width in block.widths if width is not None)
    drawn = all(0 <= number < strata and block.chances[number] > 0 for number in block.strata)
    chances = all(0 <= chance <= 1 for chance in block.chances) and abs(sum(block.chances) - 1) < 1e-6
    return widths and drawn and chances and (by is None) == (not plan.wanted.by)
