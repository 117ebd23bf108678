"""What a plan asks for in place of a number of experiments: a rate, how narrow its interval shall be, and by what."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...campaign.plan_reader import Reader
from ...machine.errors import did_you_mean
from ...runs.outcome import MASKED, OUTCOMES, UNDECIDED

NOT_MASKED = "not masked"
# *Masked* is what is left of these.
NAMES = (NOT_MASKED, *(name for name in OUTCOMES if name not in (MASKED, UNDECIDED)))
# What strata and rates can be by: the fault model; the pass, or of a leaf its stage; the kind of operation, or the part
# of the state; the layer; what the bit is for that is inverted or stuck.
DIMENSIONS = ("model", "pass", "kind", "layer", "bit")
NARROWEST, WIDEST = 1e-4, 0.99  # widths
WANTED = ("outcome", "width", "by", "cell_width", "confidence")


@dataclasses.dataclass(frozen=True)
class WantedOutcome:
    """A question with a wanted width.

    Attributes:
      outcome: names of outcomes that count together; `NOT_MASKED` alone are all but *Masked*.
      width: of the interval of the rate of all faults, both ends together, as a share.
      by: of `DIMENSIONS`; the rate of each value of each of these is asked for, too.
      cell_width: of the intervals of these rates; None without `by`.
    """

    outcome: tuple[str, ...]
    width: float
    by: tuple[str, ...] = ()
    cell_width: float | None = None

    @property
    def name(self) -> str:
        """The outcome for people: `not masked`, or names with an *or* between them."""
        return outcome_name(self.outcome)

    @property
    def sound(self) -> bool:
        """Whether a plan can ask for it; perhaps somebody wrote it by hand."""
        names, widths = set(self.outcome), [self.width, *([] if self.cell_width is None else [self.cell_width])]
        known = names <= set(NAMES) and len(names) == len(self.outcome) > 0 and (names == {NOT_MASKED} or names < _ALL)
        right = all(NARROWEST <= width <= WIDEST for width in widths) and bool(self.by) == (self.cell_width is not None)
        return known and right and set(self.by) <= set(DIMENSIONS) and len(set(self.by)) == len(self.by)

    def counts(self, verdict: str) -> bool:
        """Whether a verdict has the outcome.

        >>> WantedOutcome(("not masked",), 0.1).counts("SlowDegrade")
        True
        """
        return has_outcome(verdict, self.outcome)

    def sentence(self) -> str:
        """What is asked for, in words."""
        text = f"the rate of '{self.name}' with an interval at most {self.width:g} wide"
        return f"{text}, and {self.cell_width:g} by {' and by '.join(self.by)}" if self.by else text


_ALL = set(NAMES) - {NOT_MASKED}


def outcome_name(names: tuple[str, ...]) -> str:
    """Outcomes that count together, for people.

    >>> outcome_name(("SlowDegrade", "LowTestAccuracy"))
    'SlowDegrade or LowTestAccuracy'
    """
    return " or ".join(names)


def has_outcome(verdict: str, names: tuple[str, ...]) -> bool:
    """Whether a verdict is one of some names, of which `NOT_MASKED` is all but *Masked*."""
    return verdict != MASKED if names == (NOT_MASKED,) else verdict in names


def read_wanted(document: Mapping[str, Any], read: Reader) -> tuple[WantedOutcome, float] | None:
    """The table `[wanted]` of a plan, and the confidence of its intervals; None where there is none."""
    if "wanted" not in document:
        return None
    table = read.table(document, "wanted")
    read.keys(table, WANTED, "wanted.")
    given = table.get("outcome", NOT_MASKED)
    named = {**table, "outcome": [given] if isinstance(given, str) else given}
    outcome = read.list_of(named, "wanted.outcome", None, str, f"names such as '{NOT_MASKED}' or {NAMES[-1]!r}")
    for name in outcome:
        if name == MASKED:
            raise read.wrong("wanted.outcome", f"{MASKED!r} is all that is not '{NOT_MASKED}'; ask for that rate")
        if name not in NAMES:
            raise read.wrong("wanted.outcome", f"{name[:60]!r} is unknown{did_you_mean(name, NAMES)}")
    if len(set(outcome)) < len(outcome) or set(outcome) == _ALL or (NOT_MASKED in outcome and len(outcome) > 1):
        raise read.wrong("wanted.outcome", f"expected '{NOT_MASKED}' alone, or some of the outcomes, each once")
    if "width" not in table:
        raise read.wrong("wanted", "no width = …; expected the width of the interval, both ends together, such as 0.02")
    by = read.list_of(table, "wanted.by", [], str, f"some of {', '.join(DIMENSIONS)}")
    for dimension in by:
        if dimension not in DIMENSIONS:
            raise read.wrong("wanted.by", f"{dimension[:60]!r} is unknown{did_you_mean(dimension, DIMENSIONS)}")
    if len(set(by)) < len(by):
        raise read.wrong("wanted.by", "one of them is listed twice")
    if bool(by) != ("cell_width" in table):
        raise read.wrong("wanted", "by and cell_width belong together: by what, and how wide the interval of each is")
    width, cell_width = (
        read.number(table, f"wanted.{key}", None, NARROWEST, WIDEST) for key in ("width", "cell_width")
    )
    confidence = read.number(table, "wanted.confidence", 0.95, 0.5, 0.9999)
    narrow = None if cell_width is None else float(cell_width)
    return WantedOutcome(tuple(outcome), float(width), tuple(by), narrow), confidence
