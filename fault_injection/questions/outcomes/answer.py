"""What a campaign that wants a width knows, and which experiments it makes next.

Of an experiment with an early verdict `audited` is observed in its place, so intervals hold whatever such verdicts are
worth; the chance of its audit was chosen before it ran, by the plan.  All other verdicts are observed as they are.
"""

import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...campaign.allocation import Allocation, Draws, KnownRate, KnownStratum, Proxy, WantedRate
from ...campaign.audited import audited, audited_bounds
from ...campaign.rates import Rate
from ...faults.injection import Injection
from ...machine.errors import InputError
from ...runs.outcome import MASKED, UNDECIDED
from .blocks import StoredBlock
from .conditions import CONDITIONS, Rule
from .plan import Plan
from .sampling import BLOCK, injection_of
from .store import Store
from .strata import divided
from .wanted import NAMES, NOT_MASKED, has_outcome, outcome_name


class AnsweredRate(NamedTuple):
    """A rate of a campaign that wants a width.

    Attributes:
      dimension: by what it is, of `DIMENSIONS`; empty for all faults.
      name: of what, such as a fault model; empty for all faults.
      outcome: what is counted.
      rate: weighted by strata; its interval holds at the end of each block, together with all earlier ones.
      width: that was asked for; infinite where it is only reported.
      more: about how many more experiments in its strata it needs; 0 where it is as wide as asked.
    """

    dimension: str
    name: str
    outcome: str
    rate: Rate
    width: float
    more: int

    @property
    def asked(self) -> bool:
        """Whether a width was asked for."""
        return math.isfinite(self.width)

    @property
    def answer(self) -> str:
        """`as wide as asked`, or what is missing; empty where nothing was asked."""
        if not self.asked:
            return ""
        return f"needs about {self.more:,} more" if self.more else "as wide as asked"

    @property
    def title(self) -> str:
        """For a line: `not masked`, or `not masked, model RD`."""
        return f"{self.outcome}, {self.dimension} {self.name}" if self.dimension else self.outcome

    def as_dict(self) -> dict[str, Any]:
        """For machines to read; a width that was not asked for is null."""
        named = {"by": self.dimension or None, "name": self.name or None, "outcome": self.outcome}
        width = self.width if self.asked else None
        return {**named, **self.rate._asdict(), "width": width, "more": self.more if self.asked else None}


class StratifiedAnswer:
    """What is known of the rates of a plan that wants a width.

    Args:
      plan: with `wanted`.
      also: names of outcomes that count together, whose rates are told too.

    Attributes:
      blocks: how many were observed.
      experiments: in these.
    """

    def __init__(self, plan: Plan, also: Sequence[tuple[str, ...]] = ()):
        assert plan.wanted is not None
        self.plan, self.division = plan, divided(plan)
        self.blocks = self.experiments = 0
        asked = plan.wanted.outcome
        # What is counted, a column of the allocation each; the first one is asked for.
        self._outcomes = list(dict.fromkeys([asked, *((name,) for name in NAMES), *also]))
        # Dimension, name, column, whether it is asked for, strata.
        self._rates: list[tuple[str, str, int, bool, tuple[int, ...] | None]] = [("", "", 0, True, None)]
        for dimension in self.division.dimensions:
            cells = self.division.cells(dimension).items()
            self._rates += [(dimension, name, 0, dimension in plan.wanted.by, numbers) for name, numbers in cells]
        self._rates += [("", "", column, False, None) for column in range(1, len(self._outcomes))]
        low, high = 0.0, 1.0
        if plan.exit == CONDITIONS:
            low, high = audited_bounds([(0, plan.audit), (1, 1)])  # see `_chance`
        strata = [KnownStratum(stratum.weight, None, low, high) for stratum in self.division.strata]
        self._allocation = Allocation(strata, self._wanted(self._widths), plan.confidence)
        self._found = np.zeros((3, len(strata), len(self._outcomes)), np.int64)  # as verdicts are; guesses; audits

    @property
    def _widths(self) -> tuple[float, float | None]:
        assert self.plan.wanted is not None
        return self.plan.wanted.width, self.plan.wanted.cell_width

    def _wanted(self, widths: tuple[float, float | None]) -> tuple[WantedRate, ...]:
        """All rates, with the widths that are asked for."""
        found = []
        for number, (dimension, _, column, asked, strata) in enumerate(self._rates):
            width = (widths[1] if dimension else widths[0]) if asked else None
            found.append(WantedRate(str(number), math.inf if width is None else width, strata, column))
        return tuple(found)

    def next(self, rules: Sequence[Rule] = ()) -> StoredBlock | None:
        """The next block; None where every rate is as wide as asked, or the block would exceed the plan's number.

        Args:
          rules: that the audits so far support, see `support`.
        """
        self._allocation.wanted = self._wanted(self._widths)
        draws = self._allocation.draw(np.random.default_rng([self.plan.seed, self.blocks, BLOCK]))
        if draws is None or self.experiments + len(draws.strata) > self.plan.experiments:
            return None
        drawn = tuple(draws.strata.tolist()), tuple(draws.chances.tolist())
        return StoredBlock(self.blocks, self.experiments, self._widths, tuple(rules), *drawn)

    def observe(self, block: StoredBlock, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes the results of a block, all of it.

        Args:
          rows: as `Store.observed` gives them.

        Raises:
          InputError: an experiment is undecided, or was not followed as `_chance` says.
        """
        strata = np.array(block.strata, np.int64)
        for row, number in zip(rows, block.numbers, strict=True):
            if UNDECIDED in (row["outcome"], row["audit_outcome"]):
                raise InputError(f"experiment {number} is undecided; a rate with a wanted width needs every verdict")
            if row["exit"] == CONDITIONS and row["outcome"] != MASKED and row["audit_outcome"] is None:
                raise InputError(f"experiment {number}: nobody followed its early verdict, which is not {MASKED}")
        nothing = np.zeros(len(block.chances))
        draws = Draws(strata, len(strata), np.array(block.chances), Proxy(nothing, nothing, nothing))
        # As they were when the block was designed: stakes must not know what came of it.
        self._allocation.wanted = self._wanted(block.widths)
        self._allocation.observe(draws, self._observed(block, rows))
        self._allocation.wanted = self._wanted(self._widths)
        self._tally(strata, rows)
        self.blocks, self.experiments = self.blocks + 1, block.numbers.stop

    def _observed(self, block: StoredBlock, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """What is observed of each experiment, float64 [n, outcomes]."""
        early = self._having(row["outcome"] for row in rows)
        ends = self._having(row["audit_outcome"] for row in rows)
        known = np.array([row["exit"] != CONDITIONS for row in rows])
        ends = np.where(known[:, None], early, ends)
        chances = np.array([self._chance(block, row) for row in rows])
        return audited(early, ends, chances[:, None])

    def _chance(self, block: StoredBlock, row: Mapping[str, Any]) -> float:
        """With which an experiment with this early verdict is followed to its end; 1 of one that has none.

        Those that are not *Masked* are followed in a campaign that wants a width (`experiment`).
        """
        plan, rule = self.plan, row["early_rule"]
        followed = plan.beyond_premises and rule not in (Rule.VARIANCE, *block.rules)
        if row["exit"] != CONDITIONS or row["outcome"] != MASKED or followed:
            return 1.0
        near = plan.audit_near if row["near"] and plan.audit_near is not None else 0.0
        return max(plan.audit, 1 - (1 - plan.audit) * (1 - near))  # rounding must not make it less

    def _having(self, verdicts: Iterable[str | None]) -> np.ndarray:
        """Which outcomes verdicts have, float64 [n, outcomes]; NaN of those that are not known."""
        rows = [
            [math.nan if verdict is None else float(has_outcome(verdict, names)) for names in self._outcomes]
            for verdict in verdicts
        ]
        return np.array(rows, np.float64)

    def _tally(self, strata: np.ndarray, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count experiments as their verdicts are best known."""
        early = np.array([row["exit"] == CONDITIONS for row in rows])
        seen = np.array([row["audit_outcome"] is not None for row in rows])
        best = self._having(row["audit_outcome"] or row["outcome"] for row in rows)
        for counts, values in zip(self._found, (best, (early & ~seen)[:, None], (early & seen)[:, None]), strict=True):
            np.add.at(counts, strata, values.astype(np.int64) + 0 * best.astype(np.int64))

    @property
    def more(self) -> int:
        """About how many more experiments all rates together need."""
        return self._allocation.more

    @property
    def standing(self) -> str:
        """How far it is, in words."""
        if not self.experiments:
            return "the first block is not done yet"
        asked = [one for one in self.rates() if one.asked]
        done = sum(not one.more for one in asked)
        text = f"{done} of {len(asked)} rate{' is' if len(asked) == 1 else 's are'} as wide as asked"
        return f"{text}, about {self.more:,} more experiments are needed" if self.more else text

    @property
    def counts(self) -> np.ndarray:
        """Experiments of each stratum, int64 [strata]."""
        return self._allocation.counts

    def rates(self) -> list[AnsweredRate]:
        """What is known of every rate: what is asked for first, of all faults and by what, then what is reported."""
        found = []
        allocation = self._allocation
        for one, known, wanted in zip(self._rates, allocation.rates(), allocation.wanted, strict=True):
            dimension, name, column, _, strata = one
            outcome, rate = outcome_name(self._outcomes[column]), self._rate(known, column, strata)
            found.append(AnsweredRate(dimension, name, outcome, rate, wanted.width, known.more))
        [whole] = (one for one in found if not one.dimension and one.outcome == NOT_MASKED)
        n, rate = whole.rate.total, whole.rate
        masked = rate._replace(found=n - rate.found, share=1 - rate.share, low=1 - rate.high, high=1 - rate.low)
        found.append(AnsweredRate("", "", MASKED, masked, math.inf, 0))
        return sorted(found, key=lambda one: not one.asked)

    def _rate(self, known: KnownRate, column: int, strata: tuple[int, ...] | None) -> Rate:
        counts = self._found[:, slice(None) if strata is None else list(strata), column].sum(axis=1)
        had, guesses, audits = map(int, counts)
        return Rate(had, known.trials, known.share, known.low, known.high, guesses, audits)


def answer_of(store: Store, plan: Plan, also: Sequence[tuple[str, ...]] = ()) -> StratifiedAnswer:
    """What a campaign knows at the end of its last whole block; `also` as of `StratifiedAnswer`."""
    answer, done = StratifiedAnswer(plan, also), store.done()
    for block in store.blocks():
        if not done.issuperset(block.numbers):
            break
        answer.observe(block, store.observed(block))
    return answer


def unfinished(store: Store, answer: StratifiedAnswer) -> StoredBlock | None:
    """The block that follows those that an answer has observed, and is not done yet; None where none was designed."""
    blocks = store.blocks()
    return blocks[answer.blocks] if len(blocks) > answer.blocks else None


def injections_of(folder: pathlib.Path, numbers: Sequence[int]) -> list[Injection]:
    """Experiments of the campaign in a folder as injections; nothing runs.

    Raises:
      InputError: there is no campaign, it has not begun, or has no such experiment.
    """
    with Store(folder) as store:
        if (plan := store.plan()) is None:
            raise InputError("the campaign has not begun", store.path)
        if plan.wanted is None:
            return [injection_of(plan, number) for number in numbers]
        strata = store.strata()
    for number in numbers:
        if number not in strata:
            drawn = f"0 to {len(strata) - 1}" if strata else "none yet"
            what = "which faults it strikes follows from the experiments before it"
            raise InputError(f"experiment {number} is not drawn: {what}; expected {drawn}", folder)
    return [injection_of(plan, number, strata[number]) for number in numbers]
