"""How far a campaign is, and what has come of it so far."""

import dataclasses
import pathlib
from typing import Any

from ...campaign.rates import Rate, wilson
from ...machine.files import in_use
from ...runs.outcome import OUTCOMES
from .plan import Plan
from .report.queries import QUERIES
from .store import NAME as STORE
from .store import Store

LOCK = "lock"  # the file that the driver of a campaign holds


@dataclasses.dataclass(frozen=True)
class Standing:
    """How far a campaign is.

    Attributes:
      folder: of the campaign.
      plan: what it was asked for; None before it has begun.
      done: experiments that have a verdict.
      outcomes: rates of those that occurred, by outcome.
      running: whether a driver is at work now.
      last_event: time and text of what happened last, or None.
      plan_file: the file that the plan was read from.
    """

    folder: pathlib.Path
    plan: Plan | None
    done: int
    outcomes: dict[str, Rate]
    running: bool
    last_event: tuple[str, str] | None
    plan_file: str | None

    @property
    def experiments(self) -> int:
        """How many the plan asks for."""
        return self.plan.experiments if self.plan else 0

    @property
    def left(self) -> int:
        """Experiments without a verdict."""
        return max(0, self.experiments - self.done)

    @property
    def resumable(self) -> bool:
        """Whether the command that made it would go on with it."""
        return not self.running and (self.left > 0 or self.plan is None)

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        return {
            "folder": str(self.folder),
            "experiments": self.experiments,
            "done": self.done,
            "left": self.left,
            "running": self.running,
            "resumable": self.resumable,
            "outcomes": {name: rate._asdict() for name, rate in self.outcomes.items()},
            "last_event": self.last_event,
        }


def finished(folder: pathlib.Path, plan: Plan) -> bool:
    """Whether a folder has the verdicts of all experiments of a plan, whatever code or machine they are from.

    Raises:
      InputError: it is the campaign of another plan, or its store cannot be read.
    """
    if not (folder / STORE).exists():
        return False
    with Store(folder) as store:
        store.expect(plan)
        return store.plan() is not None and store.done() >= set(range(plan.experiments))


def standing(folder: pathlib.Path) -> Standing:
    """How far the campaign in a folder is.

    Raises:
      InputError: there is none, or its store cannot be read.
    """
    with Store(folder) as store:
        plan, about = store.plan(), store.about()
        outcomes = outcome_rates(store, plan)
        events = store.query("SELECT at, what FROM events ORDER BY at DESC, rowid DESC LIMIT 1")
    return Standing(
        folder=folder,
        plan=plan,
        done=next(iter(outcomes.values())).total if outcomes else 0,
        outcomes=outcomes,
        running=in_use(folder / LOCK),
        last_event=(events[0]["at"], events[0]["what"]) if events else None,
        plan_file=about.get("plan_file"),
    )


def outcome_rates(store: Store, plan: Plan | None) -> dict[str, Rate]:
    """The rates of the outcomes that have occurred, by outcome."""
    counts = {row["outcome"]: row["n"] for row in store.query(QUERIES["outcomes"])}
    total, confidence = sum(counts.values()), plan.confidence if plan else 0.95
    return {name: wilson(counts[name], total, confidence) for name in OUTCOMES if name in counts}


def outcome_lines(outcomes: dict[str, Rate]) -> list[str]:
    """The rates as lines of a table."""
    return [
        f"  {name:22s} {rate.found:7d}  {rate.share:7.2%}  [{rate.low:.2%}, {rate.high:.2%}]"
        for name, rate in outcomes.items()
    ]
