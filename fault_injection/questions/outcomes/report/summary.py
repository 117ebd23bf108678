"""The summary of a campaign: five sentences, each computed from the store."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....campaign.rates import Rate
from ....runs.outcome import MASKED, UNDECIDED
from ..conditions import CONDITIONS
from ..result import SETTLED
from ..tally import GuessKind, Tally
from .facts import Facts, Group

# What a rate may depend on.
FACTORS: dict[str, Callable[[Facts], list[Group]]] = {
    "fault model": lambda facts: facts.groups("models"),
    "operand": lambda facts: facts.groups("operands"),
    "bit": lambda facts: facts.bit_groups(),
}


class Cost(NamedTuple):
    """Training steps of a campaign.

    Attributes:
      experiments, audits, walks, beside, golden: steps run for verdicts, beyond early ones to audit them,
        through the golden run to reach the states before the faults, of the golden run beside runs that may settle,
        and for the golden run and its twins.
      published: steps of the published procedure for the same experiments.
    """

    experiments: int
    audits: int
    walks: int
    beside: int
    golden: int
    published: int

    @property
    def total(self) -> int:
        """All steps that were run."""
        return self.experiments + self.audits + self.walks + self.beside + self.golden


def cost(facts: Facts) -> Cost:
    """What a campaign cost."""
    (steps,) = facts.rows("steps")
    (published,) = facts.rows("published", epochs=facts.epochs, steps_per_epoch=facts.plan.steps_per_epoch)
    return Cost(
        steps["verdicts"],
        steps["audits"],
        steps["walks"],
        steps["beside"],
        facts.plan.golden_steps,
        published["steps"] or 0,
    )


class Audited(NamedTuple):
    """Early verdicts of one kind, and what their runs came to at the end as far as somebody looked.

    Attributes:
      name: what they say, and whether they are near a threshold.
      early: how many there are.
      seen: how many of them were followed to the end all the same.
      changed: how many of these came to another outcome.
    """

    name: str
    early: int
    seen: int
    changed: int


def audit(facts: Facts) -> list[Audited]:
    """What audits say of early verdicts, by their kind; of other exit modes, what `conditions` would have said."""
    if facts.plan.exit == CONDITIONS:
        kinds = facts.tally.early.items()
        return [
            Audited(str(kind), v.counts.total(), v.followed, v.changes) for kind, v in kinds if kind.rule != SETTLED
        ]
    found: dict[GuessKind, list[int]] = {}
    for row in facts.rows("audit"):
        numbers = found.setdefault(GuessKind(bool(row["near"]), row["early_outcome"] == MASKED), [0, 0, 0])
        known = row["verdict"] not in (None, UNDECIDED)
        for i, counted in enumerate((True, known, known and row["verdict"] != row["early_outcome"])):
            numbers[i] += row["n"] if counted else 0
    return [Audited(str(kind), *numbers) for kind, numbers in sorted(found.items())]


class Contrast(NamedTuple):
    """The groups with the lowest and the highest rate.

    Attributes:
      factor: what the groups differ in.
      lowest, highest: the larger one where several groups have the same rate.
      equals: how many other groups have the rate of the lowest, and of the highest.
      gap: between the interval of an extreme group and that of all others together, whichever
        extreme gives the larger one, at a confidence that allows for the choice among the
        groups (Bonferroni). Above 0 the difference is hardly chance.
    """

    factor: str
    lowest: Group
    highest: Group
    equals: tuple[int, int]
    gap: float


def contrast(facts: Facts, factor: str) -> Contrast | None:
    """The extremes of a factor of `FACTORS`; None where there are no two groups to compare."""
    groups = [group for group in FACTORS[factor](facts) if group.rate.total]
    if len(groups) < 2:
        return None
    lowest = min(groups, key=lambda group: (group.rate.share, -group.rate.total))
    highest = max(groups, key=lambda group: (group.rate.share, group.rate.total))
    confidence = 1 - (1 - facts.plan.confidence) / (2 * len(groups))
    low, not_low, high, not_high = (
        tally.not_masked(confidence)
        for group in (lowest, highest)
        for tally in (group.tally, sum((other.tally for other in groups if other is not group), Tally()))
    )
    low_equals, high_equals = (
        sum(other.rate.share == group.rate.share for other in groups) - 1 for group in (lowest, highest)
    )
    gap = max(not_low.low - low.high, high.low - not_high.high)
    return Contrast(factor, lowest, highest, (low_equals, high_equals), gap)


def summary(facts: Facts) -> list[str]:
    """The sentences; only the first where no experiment is done."""
    sentences: Sequence[Callable[[Facts], str]] = (_scope, _rate, _factors, _latency, _cost)
    if facts.plan.wanted is not None:
        sentences = (_drawn, _answer, _cost)
    return [sentence(facts) for sentence in (sentences if facts.total else sentences[:1])]


def _scope(facts: Facts) -> str:
    name, details = facts.plan.workload.title, facts.plan.workload.details
    planned = facts.plan.experiments
    if not facts.total:
        return f"This campaign of {_plural(planned, 'experiment')} on {name} ({details}) has no result yet."
    finished = facts.total == planned
    what = f"all {planned:,}" if finished else f"{facts.total:,} of {planned:,}"
    made = "its one planned experiment" if planned == 1 else f"{what} planned experiments"
    sentence = f"This campaign has made {made} on {name} ({details})"
    if not finished and len(facts.plan.epochs) > 1:
        sentence += "; they run epoch after epoch, so the rates so far are not those of the whole plan"
    return f"{sentence}{_unstruck(facts)}."


def _unstruck(facts: Facts) -> str:
    """What of the experiments struck nothing; empty where all did something."""
    if not facts.unstruck:
        return ""
    return f"; in {facts.unstruck:,} of them nothing was struck, because no element fitted or a step left it out"


def _drawn(facts: Facts) -> str:
    answer, workload = facts.answer, facts.plan.workload
    return (
        f"This campaign has made {_plural(facts.total, 'experiment')} on {workload.title} ({workload.details}), drawn "
        f"by {_plural(len(answer.division.strata), 'stratum').replace('stratums', 'strata')}; {answer.standing}"
        f"{_unstruck(facts)}."
    )


def _answer(facts: Facts) -> str:
    if not facts.answer.experiments:
        return "No block of experiments is done yet, so no rate is known."
    asked = [one for one in facts.answer.rates() if one.asked]
    first, *others = asked
    sentence = f"{_percent(first.rate)} of the faults have the outcome '{first.outcome}' ({first.answer}"
    sentence += f"; {facts.plan.confidence:.0%} interval that holds at every look, weighted by strata)"
    for dimension in facts.plan.wanted.by if facts.plan.wanted else ():
        cells = [one for one in others if one.dimension == dimension]
        lowest, highest = (choose(cells, key=lambda one: one.rate.share) for choose in (min, max))
        sentence += f"; by {dimension} it goes from {_percent(lowest.rate)} ({lowest.name}) to "
        sentence += f"{_percent(highest.rate)} ({highest.name})"
    return f"{sentence}."


def _rate(facts: Facts) -> str:
    confidence = f"{facts.plan.confidence:.0%}"
    if not facts.decided:
        return "Every experiment was cut at the horizon, undecided, so no rate is known."
    whole = facts.whole()
    if not facts.bad:
        begun = "No fault is known that was not masked" if whole.guesses else "Every fault was masked"
        sentence = f"{begun}; the rate of those that are not is at most {whole.high:.1%} ({confidence} interval)"
    else:
        bad = {name: n for name, n in facts.counts.items() if name not in (MASKED, UNDECIDED)}
        commonest = max(bad, key=lambda name: (bad[name], name))
        weighted = ", with the plan's weights of its fault models" if len(facts.plan.models) > 1 else ""
        sentence = (
            f"{_percent(whole)} of the faults were not masked ({confidence} interval{weighted}); the commonest "
            f"bad outcome is {commonest}, with {bad[commonest]:,} of {facts.bad:,}"
        )
        sentence += " that are known" if whole.guesses else ""
    if whole.guesses:
        sentence += f"; the interval allows for {_plural(whole.guesses, 'early verdict')} that nobody followed"
    if undecided := facts.counts[UNDECIDED]:
        sentence += f"; {undecided:,} undecided at the horizon {'is' if undecided == 1 else 'are'} left out"
    return f"{sentence}."


def _factors(facts: Facts) -> str:
    if not facts.bad:
        return "Without a bad outcome no fault model, operand or bit can be told from another."
    found = [c for factor in FACTORS if (c := contrast(facts, factor)) is not None]
    if not found:
        return "All faults are of one model and strike one kind of operand, so there is nothing to compare."
    found.sort(key=lambda c: -c.gap)
    clauses = []
    for i, c in enumerate(found):
        goes = " the rate goes" if i == 0 else ""
        chance = "" if c.gap > 0 else ", which may be chance"
        lowest, highest = _group(c.lowest, c.equals[0]), _group(c.highest, c.equals[1])
        clauses.append(f"by {c.factor}{goes} from {lowest} to {highest}{chance}")
    begun = f"The {found[0].factor} matters most" if found[0].gap > 0 else "No difference is certain"
    return f"{begun}: {'; '.join(clauses)}."


def _group(group: Group, equals: int) -> str:
    others = f" and {equals} more" if equals else ""
    return f"{_percent(group.rate)} ({group.name}{others})"


def _percent(rate: Rate) -> str:
    """As `page.percent`, with the one decimal that a sentence needs."""
    return f"{rate.share:.1%} [{rate.low:.1%}, {rate.high:.1%}]"


def _latency(facts: Facts) -> str:
    bad = facts.bad
    if not bad:
        return "Since no outcome was bad, nothing is known of how soon a bad one shows."
    steps = {row["steps"]: row["n"] for row in facts.rows("latency")}
    nonfinite, at_once = sum(steps.values()), steps.get(0, 0)
    what = "loss" if facts.plan.nonfinite == "loss" else "value"
    return (
        f"Of the {_plural(bad, 'bad outcome')}, {_percent(facts.share(at_once, bad))} had a non-finite {what} in the "
        f"faulty step itself, {_number(nonfinite - at_once)} showed one later, and {_number(bad - nonfinite)} ended "
        f"with a worse {facts.measure.name} without one."
    )


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _number(n: int) -> str:
    return f"{n:,}" if n else "none"


def _cost(facts: Facts) -> str:
    spent, found = cost(facts), audit(facts)
    early, seen, changed = (sum(getattr(kind, name) for kind in found) for name in ("early", "seen", "changed"))
    sentence = (
        f"An experiment took {spent.total / facts.total:.1f} training steps on average, with audits, the golden "
        f"run and the way to the fault, where the published procedure takes {spent.published / facts.total:.1f}"
    )
    if facts.plan.exit != CONDITIONS:
        followed = "every run was followed to a non-finite value or to the end"
        return f"{sentence}; {followed if facts.plan.exit == 'full' else 'no verdict came early without a proof'}."
    if not early:
        return f"{sentence}; no verdict came early."
    sentence = f"{sentence}; {_plural(early, 'verdict')} came early"
    if not seen:
        return f"{sentence} and no audit has run one to the end, so nothing here says how many are wrong."
    unaudited = sum(kind.early for kind in found if not kind.seen)
    blind = (
        f"; {unaudited:,} {'is' if unaudited == 1 else 'are'} of a kind that no audit has looked at"
        if unaudited
        else ""
    )
    return f"{sentence}, audits ran {seen:,} of these to the end, and {_number(changed)} changed{blind}."
