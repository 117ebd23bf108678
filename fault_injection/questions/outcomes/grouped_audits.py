"""What groups of audits have shown: see `together`."""

from typing import Any, NamedTuple

from ...campaign.rates import Rate
from ...runs.outcome import MASKED
from .plan import Plan
from .report.queries import QUERIES
from .store import Store
from .tally import plan_not_masked


class GroupedAudits(NamedTuple):
    """The groups of a campaign that have run.

    Attributes:
      groups, audits: how many groups have run, and how many audits are in them.
      masked: how many of the groups ended *Masked*.
      alone: audits in these whose ends by themselves are known: those drawn to be followed alone, and those that an
        earlier group, from before the plan grew, had followed.
      hidden: how many of those were not *Masked* by themselves.
      believed: the rate of what was not masked if groups that ended *Masked* hide nothing: a premise, and no proof.
        None before a group has run, and where an audit has refuted it.
    """

    groups: int
    audits: int
    masked: int
    alone: int
    hidden: int
    believed: Rate | None

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        known = self._asdict()
        return known | {"believed": self.believed and self.believed._asdict()}


def grouped_audits(store: Store, plan: Plan) -> GroupedAudits:
    """What the groups of a plan with `together` have shown so far."""
    ran = [row["its run came to"] for row in store.query(QUERIES["groups"])]
    rows = store.query(QUERIES["grouped"])
    seen = [row for row in rows if row["in the group"] == MASKED and row["verdict"] is not None]
    hidden = sum(row["n"] for row in seen if row["verdict"] != MASKED)
    held = ran and not hidden
    believed = plan_not_masked(store.query(QUERIES["models"]), plan, believing=True) if held else None
    return GroupedAudits(
        groups=len(ran),
        audits=sum(row["n"] for row in rows),
        masked=ran.count(MASKED),
        alone=sum(row["n"] for row in seen),
        hidden=hidden,
        believed=believed if believed is not None and believed.total else None,
    )
