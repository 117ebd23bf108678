"""How far a scoreboard is."""

import pathlib
from typing import Any, NamedTuple

from ...machine.files import in_use
from ...runs.outcome import MASKED, UNDECIDED
from ..outcomes.report.queries import VERDICT
from ..outcomes.standing import LOCK
from ..outcomes.store import Store
from .store import NAME, ScoreStore


class ScoreStanding(NamedTuple):
    """How far a scoreboard is.

    Attributes:
      detectors: names of those that watch.
      watched, wanted: experiments that were watched, and those that are to be, as far as the campaign is.
      fault_free, fault_free_wanted: fault-free runs, likewise.
      cost: whether the detectors' cost was measured.
      running: whether a driver is at work now.
    """

    detectors: tuple[str, ...]
    watched: int
    wanted: int
    fault_free: int
    fault_free_wanted: int
    cost: bool
    running: bool

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.watched >= self.wanted and self.fault_free >= self.fault_free_wanted and self.cost

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        return {**self._asdict(), "complete": self.complete}


def has_score(folder: pathlib.Path) -> bool:
    """Whether a folder has a scoreboard."""
    return (folder / NAME).exists()


def score_standing(folder: pathlib.Path) -> ScoreStanding | None:
    """How far the scoreboard in a folder is; None where there is none, or it has not begun.

    Raises:
      InputError: its store, or its campaign's, cannot be read.
    """
    if not has_score(folder):
        return None
    with Store(folder) as campaign, ScoreStore(folder) as store:
        plan, settings = campaign.plan(), store.get("about", "settings")
        if plan is None or settings is None:
            return None
        outcomes = [row["outcome"] for row in campaign.query(f"SELECT {VERDICT} AS outcome FROM experiments")]
        masked = min(outcomes.count(MASKED), int(settings["masked"]))
        others = sum(outcome not in (MASKED, UNDECIDED) for outcome in outcomes)
        return ScoreStanding(
            detectors=tuple(settings["detectors"]),
            watched=len(store.done()),
            wanted=masked + others,
            fault_free=sum(1 for _ in store.all("fault_free")),
            fault_free_wanted=1 + plan.twins + int(settings["fault_free_seeds"]),
            cost=store.get("cost", "all") is not None,
            running=in_use(folder / LOCK),
        )
