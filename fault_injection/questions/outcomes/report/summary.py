"""The answer of a campaign: how often, how sure, what does most harm, how soon it shows, what it cost."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ....campaign.box import Box, BoxAnswer
from ....campaign.terminal import clock
from ....campaign.wording import level, number, percent, plural, share
from ....runs.outcome import MASKED, UNDECIDED
from ..conditions import CONDITIONS
from ..grouped_audits import grouped_audits
from ..result import SETTLED
from ..tally import GuessKind, Tally
from .facts import Facts, Group

# What a rate may depend on.
FACTORS: dict[str, Callable[[Facts], list[Group]]] = {
    "fault model": lambda facts: facts.groups("models"),
    "operation": lambda facts: facts.kind_groups(),
    "operand": lambda facts: facts.groups("operands"),
    "bit": lambda facts: facts.bit_groups(),
}


class Cost(NamedTuple):
    """Training steps of a campaign.

    Attributes:
      experiments, audits, together, walks, beside, golden: steps run for verdicts, beyond early ones to audit them, for
        groups of audits (and first steps that were taken again by audits whose group did not end masked), through the
        golden run to reach the states before the faults, of the golden run beside runs that may settle, and for the
        golden run and its twins.
      published: steps of the published procedure for the same experiments.
    """

    experiments: int
    audits: int
    together: int
    walks: int
    beside: int
    golden: int
    published: int

    @property
    def total(self) -> int:
        """All steps that were run."""
        return self.experiments + self.audits + self.together + self.walks + self.beside + self.golden


def cost(facts: Facts) -> Cost:
    """What a campaign cost."""
    (steps,) = facts.rows("steps")
    (published,) = facts.rows("published", epochs=facts.epochs, steps_per_epoch=facts.plan.steps_per_epoch)
    return Cost(
        steps["verdicts"],
        steps["audits"],
        steps["together"],
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


def summary(facts: Facts) -> Box:
    """The answer; only what was asked where no experiment is done."""
    if not facts.total:
        workload = facts.plan.workload
        planned = plural(facts.plan.experiments, "experiment")
        said = f"This campaign of {planned} on {workload.title} ({workload.details}) has no result yet."
        return [BoxAnswer("What is known", said, {"experiments": 0})]
    if facts.plan.wanted is not None:
        return [one(facts) for one in (_answer, _drawn, _answer_by, _cost)]
    return [one(facts) for one in (_rate, _sure, _factors, _latency, _cost)]


def _rate(facts: Facts) -> BoxAnswer:
    question, confidence = "How often", level(facts.plan.confidence)
    if not facts.decided:
        return BoxAnswer(question, "Every experiment was cut at the horizon, undecided, so no rate is known.")
    whole = facts.whole()
    outcomes = {name: n for name, n in facts.counts.most_common() if n}
    known = {"not_masked": whole._asdict(), "outcomes": outcomes}
    if not facts.bad:
        begun = "No fault is known that was not masked" if whole.guesses else "Every fault was masked"
        most = f"the rate of those that are not is at most {percent(whole.high)} % ({confidence} interval)"
        return BoxAnswer(question, f"{begun}; {most}.", known)
    bad = {name: n for name, n in facts.counts.items() if name not in (MASKED, UNDECIDED)}
    commonest = max(bad, key=lambda name: (bad[name], name))
    weighted = ", with the plan's weights of its fault models" if len(facts.plan.models) > 1 else ""
    sentence = (
        f"{share(whole)} of the faults were not masked ({confidence} interval{weighted}); the commonest "
        f"bad outcome is {commonest}, with {bad[commonest]:,} of {facts.bad:,}"
    )
    return BoxAnswer(question, f"{sentence}{' that are known' if whole.guesses else ''}.", known)


def _sure(facts: Facts) -> BoxAnswer:
    """What the rate rests on: how many experiments, and what is known of early verdicts."""
    planned, total, workload = facts.plan.experiments, facts.total, facts.plan.workload
    made = "its one planned experiment" if planned == 1 else f"all {planned:,} planned experiments"
    made = made if total == planned else f"{total:,} of {planned:,} planned experiments"
    clauses = [f"This campaign has made {made} on {workload.title} ({workload.details})"]
    if total < planned and len(facts.plan.epochs) > 1:
        clauses.append("they run epoch after epoch, so the rates so far are not those of the whole plan")
    if undecided := facts.counts[UNDECIDED]:
        clauses.append(f"{undecided:,} undecided at the horizon {'is' if undecided == 1 else 'are'} left out")
    if facts.unstruck:
        clauses.append(_unstruck(facts))
    clauses.append(_early(facts))
    guesses = facts.whole().guesses if facts.decided else 0
    if guesses:
        clauses.append(f"the interval allows for {plural(guesses, 'early verdict')} that nobody followed")
    known: dict[str, Any] = {"experiments": total, "planned": planned, "undecided": facts.counts[UNDECIDED]}
    known["guesses"] = guesses
    if facts.plan.together is not None and (grouped := grouped_audits(facts.store, facts.plan)).believed is not None:
        clauses.append(f"if groups of audits that ended {MASKED} hide nothing, the rate is {share(grouped.believed)}")
        known["together"] = grouped.as_dict()
    return BoxAnswer("How sure", f"{'; '.join(clauses)}.", known | {"audits": [one._asdict() for one in audit(facts)]})


def _unstruck(facts: Facts) -> str:
    """What of the experiments struck nothing."""
    return f"in {facts.unstruck:,} of them nothing was struck, because no element fitted or a step left it out"


def _early(facts: Facts) -> str:
    """What is known of early verdicts."""
    if facts.plan.exit != CONDITIONS:
        followed = "every run was followed to a non-finite value or to the end"
        return followed if facts.plan.exit == "full" else "no verdict came early without a proof"
    found = audit(facts)
    early, seen, changed = (sum(getattr(kind, name) for kind in found) for name in ("early", "seen", "changed"))
    if not early:
        return "no verdict came early"
    came = f"{plural(early, 'verdict')} came early"
    if not seen:
        return f"{came} and no audit has run one to the end, so nothing here says how many are wrong"
    unaudited = sum(kind.early for kind in found if not kind.seen)
    blind = (
        f"; {unaudited:,} {'is' if unaudited == 1 else 'are'} of a kind that no audit has looked at"
        if unaudited
        else ""
    )
    return f"{came}, audits ran {seen:,} of these to the end, and {_count(changed)} changed{blind}"


def _factors(facts: Facts) -> BoxAnswer:
    question = "What does most harm"
    if not facts.bad:
        return BoxAnswer(question, "Without a bad outcome no fault model, operand or bit can be told from another.")
    found = [c for factor in FACTORS if (c := contrast(facts, factor)) is not None]
    if not found:
        what = "All faults are of one model and strike one kind of operand, so there is nothing to compare."
        return BoxAnswer(question, what)
    found.sort(key=lambda c: -c.gap)
    clauses = []
    for i, c in enumerate(found):
        goes = " the rate goes" if i == 0 else ""
        chance = "" if c.gap > 0 else ", which may be chance"
        lowest, highest = _group(c.lowest, c.equals[0]), _group(c.highest, c.equals[1])
        clauses.append(f"by {c.factor}{goes} from {lowest} to {highest}{chance}")
    begun = f"The {found[0].factor} matters most" if found[0].gap > 0 else "No difference is certain"
    known = {c.factor: {"lowest": _known(c.lowest), "highest": _known(c.highest), "certain": c.gap > 0} for c in found}
    return BoxAnswer(question, f"{begun}: {'; '.join(clauses)}.", known)


def _group(group: Group, equals: int) -> str:
    others = f" and {equals} more" if equals else ""
    return f"{share(group.rate)} ({group.name}{others})"


def _known(group: Group) -> dict[str, Any]:
    return {"name": group.name, **group.rate._asdict()}


def _latency(facts: Facts) -> BoxAnswer:
    question, bad = "How soon it shows", facts.bad
    if not bad:
        return BoxAnswer(question, "Since no outcome was bad, nothing is known of how soon a bad one shows.")
    steps = facts.latencies()
    nonfinite, at_once = sum(steps.values()), steps.get(0, 0)
    what = "loss" if facts.plan.nonfinite == "loss" else "value"
    sentence = (
        f"Of the {plural(bad, 'bad outcome')}, {share(facts.share(at_once, bad))} had a non-finite {what} in the "
        f"faulty step itself, {_count(nonfinite - at_once)} showed one later, and {_count(bad - nonfinite)} ended "
        f"with a worse {facts.measure.name} without one."
    )
    return BoxAnswer(question, sentence, {"at_once": at_once, "later": nonfinite - at_once, "silent": bad - nonfinite})


def _count(n: int) -> str:
    return f"{n:,}" if n else "none"


def _cost(facts: Facts) -> BoxAnswer:
    spent = cost(facts)
    (time,) = facts.rows("time")
    each, published = spent.total / facts.total, spent.published / facts.total
    sentence = (
        f"An experiment took {number(each)} training steps on average, with audits, the golden run and the way to the "
        f"fault, where the published procedure takes {number(published)}; all together took "
        f"{clock(time['seconds'])} of jobs."
    )
    known = {"steps": spent.total, "published_steps": spent.published, "seconds": time["seconds"]}
    return BoxAnswer("What it cost", sentence, known)


def _drawn(facts: Facts) -> BoxAnswer:
    answer, workload = facts.answer, facts.plan.workload
    sentence = (
        f"This campaign has made {plural(facts.total, 'experiment')} on {workload.title} ({workload.details}), drawn "
        f"by {plural(len(answer.division.strata), 'stratum').replace('stratums', 'strata')}; {answer.standing}; "
        f"{f'{_unstruck(facts)}; ' if facts.unstruck else ''}{_early(facts)}."
    )
    return BoxAnswer("How sure", sentence, {"experiments": facts.total, "more": answer.more})


def _answer(facts: Facts) -> BoxAnswer:
    if not facts.answer.experiments:
        return BoxAnswer("How often", "No block of experiments is done yet, so no rate is known.")
    first = next(one for one in facts.answer.rates() if one.asked)
    sentence = (
        f"{share(first.rate)} of the faults have the outcome '{first.outcome}' ({first.answer}; "
        f"{level(facts.plan.confidence)} interval that holds at every look, weighted by strata)."
    )
    return BoxAnswer("How often", sentence, first.as_dict())


def _answer_by(facts: Facts) -> BoxAnswer:
    """The extremes of each dimension that strata tell apart."""
    question, clauses, known = "What does most harm", [], {}
    for dimension in facts.answer.division.dimensions:
        cells = [one for one in facts.answer.rates() if one.dimension == dimension]
        if len(cells) < 2 or not facts.answer.experiments:
            continue
        lowest, highest = (choose(cells, key=lambda one: one.rate.share) for choose in (min, max))
        apart = "" if lowest.rate.high < highest.rate.low else ", which may be chance"
        clauses.append(
            f"by {dimension} it goes from {share(lowest.rate)} ({lowest.name}) to {share(highest.rate)} "
            f"({highest.name}){apart}"
        )
        known[dimension] = {"lowest": lowest.as_dict(), "highest": highest.as_dict()}
    if not clauses:
        return BoxAnswer(question, "Strata tell nothing apart that has two rates, so there is nothing to compare.")
    return BoxAnswer(question, f"The rate: {'; '.join(clauses)}.", known)
