"""The summary of a campaign: five sentences, each computed from the store."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....campaign.rates import Rate, at_most, wilson
from ....runs.outcome import MASKED, UNDECIDED
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
      experiments, audits, walks, golden: steps run for verdicts, beyond early ones to audit them,
        through the golden run to reach the states before the faults, and for the golden run and
        its twins.
      published: steps of the published procedure for the same experiments.
    """

    experiments: int
    audits: int
    walks: int
    golden: int
    published: int

    @property
    def total(self) -> int:
        """All steps that were run."""
        return self.experiments + self.audits + self.walks + self.golden


def cost(facts: Facts) -> Cost:
    """What a campaign cost."""
    (steps,) = facts.rows("steps")
    (published,) = facts.rows("published", epochs=facts.epochs, steps_per_epoch=facts.plan.steps_per_epoch)
    golden = facts.plan.golden_epochs * facts.plan.steps_per_epoch * (1 + facts.plan.twins)
    return Cost(steps["verdicts"], steps["audits"], steps["walks"], golden, published["steps"] or 0)


class Audited(NamedTuple):
    """Early verdicts of one kind, and what their runs came to at the end as far as somebody looked.

    Attributes:
      near: whether they are those near a threshold.
      early: how many there are.
      seen: how many of them were followed to the end all the same, a random sample.
      changed: how many of these came to another outcome.
      most: one-sided upper bound of the share that is wrong, of such verdicts here and elsewhere.
    """

    near: bool
    early: int
    seen: int
    changed: int
    most: float


class Audit(NamedTuple):
    """What an audit says of the early verdicts.

    Attributes:
      kinds: those near a threshold and the others, as far as there are any.
      early, seen, changed: of all kinds together.
      bound: how large a share of all experiments could have another outcome than the one counted.
    """

    kinds: tuple[Audited, ...]
    early: int
    seen: int
    changed: int
    bound: float


def audit(facts: Facts) -> Audit:
    """The audit of the early verdicts, at the plan's confidence for both kinds together (Bonferroni)."""
    kinds: list[Audited] = []
    rows = facts.rows("audit")
    present = sorted({row["near"] for row in rows})
    confidence = 1 - (1 - facts.plan.confidence) / max(1, len(present))
    for near in present:
        those = [row for row in rows if row["near"] == near]
        followed = [row for row in those if row["verdict"] not in (None, UNDECIDED)]
        early, seen = (sum(row["n"] for row in which) for which in (those, followed))
        changed = sum(row["n"] for row in followed if row["verdict"] != row["early_outcome"])
        kinds.append(Audited(bool(near), early, seen, changed, at_most(changed, seen, confidence)))
    early, seen, changed = (sum(getattr(kind, name) for kind in kinds) for name in ("early", "seen", "changed"))
    bound = sum(kind.early * kind.most for kind in kinds) / max(1, facts.total)
    return Audit(tuple(kinds), early, seen, changed, bound)


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
    found, total = sum(group.rate.found for group in groups), sum(group.rate.total for group in groups)
    confidence = 1 - (1 - facts.plan.confidence) / (2 * len(groups))
    low, not_low, high, not_high = (
        wilson(x, n, confidence)
        for group in (lowest, highest)
        for x, n in ((group.rate.found, group.rate.total), (found - group.rate.found, total - group.rate.total))
    )
    low_equals, high_equals = (
        sum(other.rate.share == group.rate.share for other in groups) - 1 for group in (lowest, highest)
    )
    gap = max(not_low.low - low.high, high.low - not_high.high)
    return Contrast(factor, lowest, highest, (low_equals, high_equals), gap)


def summary(facts: Facts) -> list[str]:
    """The sentences; only the first where no experiment is done."""
    sentences: Sequence[Callable[[Facts], str]] = (_scope, _rate, _factors, _latency, _cost)
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
    return f"{sentence}."


def _rate(facts: Facts) -> str:
    confidence = f"{facts.plan.confidence:.0%}"
    if not facts.decided:
        return "Every experiment was cut at the horizon, undecided, so no rate is known."
    if not facts.bad:
        most = facts.not_masked(facts.counts).high
        sentence = (
            f"Every fault was masked; the rate of those that are not is at most {most:.1%} ({confidence} interval)"
        )
    else:
        bad = {name: n for name, n in facts.counts.items() if name not in (MASKED, UNDECIDED)}
        commonest = max(bad, key=lambda name: (bad[name], name))
        weighted = ", with the plan's weights of its fault models" if len(facts.plan.models) > 1 else ""
        sentence = (
            f"{_percent(facts.whole())} of the faults were not masked ({confidence} interval{weighted}); the commonest "
            f"bad outcome is {commonest}, with {bad[commonest]:,} of {facts.bad:,}"
        )
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
    sentence = (
        f"An experiment took {spent.total / facts.total:.1f} training steps on average, with audits, the golden "
        f"run and the way to the fault, where the published procedure takes {spent.published / facts.total:.1f}"
    )
    if facts.plan.exit != "conditions":
        followed = "every run was followed to a non-finite value or to the end"
        return f"{sentence}; {followed if facts.plan.exit == 'full' else 'no verdict came early without a proof'}."
    if not found.early:
        return f"{sentence}; no verdict came early."
    early = f"{sentence}; {_plural(found.early, 'verdict')} came early"
    if not found.seen:
        return f"{early} and no audit has run one to the end, so nothing here says how many are wrong."
    return (
        f"{early}, audits ran {found.seen:,} of these to the end, and {_number(found.changed)} changed, so at most "
        f"{found.bound:.1%} of all verdicts are wrong for this reason ({facts.plan.confidence:.0%}, one-sided)."
    )
