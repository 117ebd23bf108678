"""How far a campaign is, and what has come of it so far."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from ...campaign.rates import Rate
from ...campaign.wording import share
from ...machine.files import in_use
from ...runs.outcome import OUTCOMES, UNDECIDED
from .answer import AnsweredRate, StratifiedAnswer, answer_of, unfinished
from .grouped_audits import GroupedAudits, grouped_audits
from .plan import Plan
from .report.queries import QUERIES, UNSTRUCK
from .store import NAME as STORE
from .store import Store
from .tally import Tally, plan_not_masked, tally_of
from .together import audits_left
from .wanted import NOT_MASKED

LOCK = "lock"  # the file that the driver of a campaign holds


@dataclasses.dataclass(frozen=True)
class Standing:
    """How far a campaign is.

    Attributes:
      folder: of the campaign.
      plan: what it was asked for; None before it has begun.
      done: experiments that have a verdict.
      outcomes: rates by outcome, as shares of all experiments; see `outcome_rates`.
      not_masked: the rate of what was not masked, as a share of the decided; None before there is an experiment.
      whole: the same with the plan's weights of its fault models, or of its strata, as the report has it; None before
        an experiment is decided.
      running: whether a driver is at work now.
      last_event: time and text of what happened last, or None.
      plan_file: the file that the plan was read from.
      answer: what a campaign that wants a width knows; None of others.
      complete: whether it has nothing left to do.
      unstruck: experiments in which nothing was struck.
      together: what groups of audits have shown; None where the plan has none.
    """

    folder: pathlib.Path
    plan: Plan | None
    done: int
    outcomes: dict[str, Rate]
    not_masked: Rate | None
    whole: Rate | None
    running: bool
    last_event: tuple[str, str] | None
    plan_file: str | None
    answer: StratifiedAnswer | None
    complete: bool
    unstruck: int
    together: GroupedAudits | None

    @property
    def experiments(self) -> int:
        """How many the plan asks for; the most, if it wants a width."""
        return self.plan.experiments if self.plan else 0

    @property
    def left(self) -> int:
        """Experiments without a verdict; about how many are needed, if a width is wanted."""
        return self.answer.more if self.answer else max(0, self.experiments - self.done)

    @property
    def resumable(self) -> bool:
        """Whether the command that made it would go on with it."""
        return not self.running and not self.complete

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        return {
            "folder": str(self.folder),
            "experiments": self.experiments,
            "done": self.done,
            "left": self.left,
            "nothing_struck": self.unstruck,
            "running": self.running,
            "resumable": self.resumable,
            "outcomes": {name: rate._asdict() for name, rate in self.outcomes.items()},
            "not_masked": self.not_masked and self.not_masked._asdict(),
            "whole": self.whole and self.whole._asdict(),
            "last_event": self.last_event,
            **({"together": self.together.as_dict()} if self.together else {}),
            **({"rates": [rate.as_dict() for rate in self.answer.rates()]} if self.answer else {}),
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
        made = store.plan() is not None and store.done() >= set(range(plan.experiments))
        return made and (plan.together is None or not audits_left(store, plan))


def standing(folder: pathlib.Path) -> Standing:
    """How far the campaign in a folder is.

    Raises:
      InputError: there is none, or its store cannot be read.
    """
    with Store(folder) as store:
        plan, about = store.plan(), store.about()
        answer = answer_of(store, plan) if plan is not None and plan.wanted is not None else None
        outcomes, not_masked = outcome_rates(store, plan, answer)
        whole = not_masked
        if plan is not None and answer is None and not_masked is not None and not_masked.total:
            whole = plan_not_masked(store.query(QUERIES["models"]), plan)
        done, complete = len(store.done()), nothing_left(store, plan, answer)
        together = grouped_audits(store, plan) if plan is not None and plan.together is not None else None
        unstruck = int(store.query(UNSTRUCK)[0]["n"])
        events = store.query("SELECT at, what FROM events ORDER BY at DESC, rowid DESC LIMIT 1")
    return Standing(
        folder=folder,
        plan=plan,
        done=done,
        outcomes=outcomes,
        not_masked=not_masked,
        whole=whole,
        running=in_use(folder / LOCK),
        last_event=(events[0]["at"], events[0]["what"]) if events else None,
        plan_file=about.get("plan_file"),
        answer=answer,
        complete=complete,
        unstruck=unstruck,
        together=together,
    )


def nothing_left(store: Store, plan: Plan | None, answer: StratifiedAnswer | None) -> bool:
    """Whether a campaign has nothing left to do; `answer` is what it knows, if it wants a width."""
    if plan is None or answer is None:
        if plan is None or plan.wanted is not None or len(store.done()) < plan.experiments:
            return False
        return plan.together is None or not audits_left(store, plan)
    return unfinished(store, answer) is None and answer.next() is None


def outcome_rates(
    store: Store, plan: Plan | None, answer: StratifiedAnswer | None = None
) -> tuple[dict[str, Rate], Rate | None]:
    """The rates of the outcomes that have occurred, by outcome, and that of all that were not masked.

    Where verdicts are guesses any outcome may have occurred, so all of them are there.

    Args:
      answer: what a campaign that wants a width knows, whose rates are weighted by strata.
    """
    if answer is not None:
        found = {one.outcome: one.rate for one in answer.rates() if not one.dimension} if answer.experiments else {}
        return {name: found[name] for name in OUTCOMES if name in found}, found.get(NOT_MASKED)
    tally = tally_of(store.query(QUERIES["outcomes"]), plan) if plan else Tally()
    if plan is None or not tally.total:
        return {}, None
    not_masked = tally.not_masked(plan.confidence)
    possible = [n for n in OUTCOMES if tally.counts[n] or (not_masked.guesses and n != UNDECIDED)]
    return {name: tally.rate([name], plan.confidence) for name in possible}, not_masked


def answer_lines(rates: Sequence[AnsweredRate]) -> list[str]:
    """Rates that are weighted by strata as lines of a table: what was asked for, and outcomes of all faults."""
    shown = [one for one in rates if one.asked or not one.dimension]
    wide = max(len(one.title) for one in shown)
    return [f"  {one.title:{wide}s} {one.rate.total:7d}  {share(one.rate)}  {one.answer}".rstrip() for one in shown]


def outcome_lines(outcomes: dict[str, Rate], not_masked: Rate | None) -> list[str]:
    """The rates as lines of a table, and what they rest on."""
    lines = [f"  {name:22s} {rate.found:7d}  {share(rate)}" for name, rate in outcomes.items()]
    if not_masked is None or not not_masked.total:
        return lines
    lines.append(f"  {'not masked, of decided':22s} {not_masked.found:7d}  {share(not_masked)}")
    if not_masked.guesses:
        followed = f"{not_masked.audits} others were" if not_masked.audits else "none was"
        text = (
            f"  {not_masked.guesses} verdicts are early ones, which intervals allow for; {followed} followed to the end"
        )
        if not_masked.audits and not_masked.unaudited:
            text += f"; {not_masked.unaudited} are of a kind of which none was"
        lines.append(text)
    return lines
