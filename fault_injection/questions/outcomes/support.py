"""What a campaign's audits say of the rules of early verdicts, where its faults are beyond their premises.

A fault in the state, or in an update, need not make anything large to do harm: an inverted sign does not.  There a
rule is no more than a guess until audits have seen what its runs come to.  So the experiments that the plan audits
are made first (`Plan.audits_first`).  A rule ends the others only if its audits support it, and each rule is a kind of
early verdicts of its own in the rates.
"""

from typing import NamedTuple

from .conditions import Rule
from .report.queries import QUERIES
from .store import Store

ENOUGH = 20  # audits of a rule
RARE = 0.05  # share of them with another outcome, at most, for the rule to end runs with faults beyond its premises


class Support(NamedTuple):
    """What the audits of a campaign say of a rule.

    Attributes:
      rule: of early verdicts.
      audits: how many of them were followed to an end that is known.
      changed: how many of these came to another outcome.
    """

    rule: Rule
    audits: int
    changed: int

    @property
    def enough(self) -> bool:
        """Whether the rule may end runs that are not audited."""
        return self.audits >= ENOUGH and self.changed <= RARE * self.audits

    def __str__(self) -> str:
        return f"{self.rule} ({self.audits} audits, {self.changed} with another outcome)"


def support(store: Store) -> list[Support]:
    """What the audits of a campaign say of each rule that they have met."""
    return [Support(Rule(row["rule"]), row["audits"], row["changed"]) for row in store.query(QUERIES["support"])]
