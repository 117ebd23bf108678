"""What `write.py` reads of campaigns: their stores, asked in SQL."""

import contextlib
import functools
import operator
from typing import Any, NamedTuple

import numpy as np
import sources

from fault_injection.campaign.rates import Rate, stratified, wilson
from fault_injection.faults.number_formats import format_of
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand
from fault_injection.questions.outcomes.grouped_audits import GroupedAudits, grouped_audits
from fault_injection.questions.outcomes.report import summary
from fault_injection.questions.outcomes.report.facts import Facts, decode
from fault_injection.questions.outcomes.report.queries import BY, KNOWN, VERDICT
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.outcomes.tally import Tally, tally_of
from fault_injection.runs.outcome import MASKED

opened = contextlib.ExitStack()  # the stores that are open
SEEN = f"(SELECT *, {VERDICT} AS verdict FROM experiments)"


class Part(NamedTuple):
    """Some of a campaign's experiments: what is known of them, and the confidence of intervals."""

    tally: Tally
    confidence: float = 0.95

    def __add__(self, other: object) -> "Part":
        return Part(self.tally + other.tally, self.confidence) if isinstance(other, Part) else NotImplemented

    def of(self, outcomes: str | list[str]) -> int:
        """How many have an outcome, or one of several, as far as is known."""
        return sum(self.tally.counts[name] for name in ([outcomes] if isinstance(outcomes, str) else outcomes))

    @property
    def n(self) -> int:
        """How many are decided."""
        return self.tally.decided

    @property
    def bad(self) -> int:
        """How many are known not to be masked."""
        return self.n - self.of(MASKED)

    @property
    def pair(self) -> tuple[int, int]:
        """Bad, and all."""
        return self.bad, self.n

    @property
    def rate(self) -> Rate:
        """The share not masked, in which what audits have not seen is allowed for."""
        return self.tally.not_masked(self.confidence)

    @property
    def believed(self) -> Rate:
        """The same if early verdicts are believed."""
        return wilson(*self.pair, self.confidence)

    def __str__(self) -> str:
        return f"{self.bad} of {self.n}"


class Campaign:
    """A campaign's store, to be asked in SQL.

    Conditions may use all columns of the table `experiments` (docs/campaign.md, Store), `verdict`, the outcome that is
    best known, `kind(site)`, the kind of operation, and `role(site, operand, bit)`, what a bit
    is for: `sign`, `exponent 1`, `mantissa 23`.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.store = opened.enter_context(Store(sources.RESULTS / folder))
        opened.callback(campaign.cache_clear)  # of no use with its store closed
        self.facts = facts = Facts(self.store)
        self.plan = facts.plan
        if facts.total != facts.plan.experiments:
            raise InputError(f"{facts.total} of {facts.plan.experiments} experiments are done", self.store.path)
        self._parts: dict[str, Part] = {}

        def kind(site: str) -> str:
            return site if facts.plan.leaf else facts.plan.workload.kind(facts.plan.targets[site])

        def role(site: str, operand: str, bit: int | None) -> str | None:
            tensor = facts.plan.targets[site].operands[Operand[operand.upper()]]
            return None if bit is None else format_of(tensor.dtype).role(bit)

        self.store.teach("kind", kind, 1)
        self.store.teach("role", role, 3)

    def where(self, condition: str = "true") -> Part:
        """The experiments for which a condition holds."""
        if condition not in self._parts:
            rows = self.store.query(f"SELECT {KNOWN.replace('experiments', SEEN)} WHERE {condition} GROUP BY {BY}")
            self._parts[condition] = Part(tally_of(rows, self.plan), self.plan.confidence)
        return self._parts[condition]

    def value(self, expression: str, condition: str = "true") -> Any:
        """One value, such as `max(steps)`, over the experiments for which a condition holds."""
        ((value,),) = self.store.query(f"SELECT {expression} FROM {SEEN} WHERE {condition}")
        return value

    def values(self, expression: str, condition: str = "true") -> list[Any]:
        """The values of an expression, by the experiments' numbers."""
        rows = self.store.query(f"SELECT {expression} FROM {SEEN} WHERE {condition} ORDER BY number")
        return [row[0] for row in rows]

    def median(self, column: str, condition: str = "true") -> str | None:
        """The median of a column as text; None where it has no value."""
        found = [value for value in self.values(column, condition) if value is not None]
        return f"{np.median(found):g}" if found else None

    def rises(self, steps: int) -> dict[str, list[float]]:
        """By outcome, how far the loss rises above that of the faulty step, within this number of steps after it."""
        found: dict[str, list[float]] = {}
        for row in self.store.query(f"SELECT verdict, curve, steps + audit_steps AS recorded FROM {SEEN}"):
            loss = decode(row["curve"], row["recorded"])[: steps + 1, 0]
            found.setdefault(row["verdict"], []).append(float((loss - loss[0]).max()))
        return found

    @property
    def all(self) -> Part:
        """All experiments."""
        return self.where()

    @property
    def weighted(self) -> Rate:
        """The share not masked, fault models weighted as in the plan."""
        return self.facts.whole()

    @property
    def weighted_believed(self) -> Rate:
        """The same if early verdicts are believed."""
        cells = [(*self.where(f"model = '{model.name}'").pair, model.weight) for model in self.plan.models]
        return stratified(cells, self.plan.confidence)

    @property
    def cost(self) -> summary.Cost:
        """Its training steps."""
        return summary.cost(self.facts)

    @property
    def groups(self) -> GroupedAudits:
        """Its audits in groups."""
        return grouped_audits(self.store, self.plan)

    @functools.cached_property
    def audit(self) -> dict[str, int]:
        """Early verdicts: how many, how many of them followed to the end (`seen`), how many `changed`."""
        found = summary.audit(self.facts)
        return {name: sum(getattr(kind, name) for kind in found) for name in ("early", "seen", "changed")}


class Together:
    """Campaigns that are counted together."""

    def __init__(self, campaigns: list[Campaign]):
        self.campaigns = campaigns

    def where(self, condition: str = "true") -> Part:
        """The experiments of all of them for which a condition holds."""
        return functools.reduce(operator.add, (one.where(condition) for one in self.campaigns))

    def most(self, column: str, condition: str = "true") -> float:
        """The largest value of a column; 0 where it has none."""
        return max(one.value(f"max({column})", condition) or 0 for one in self.campaigns)

    @property
    def commit(self) -> str:
        """The commits on which they were made."""
        return ", ".join(sorted({commit[:7] for commit in self._described("commit")}))

    @property
    def processor(self) -> str:
        """The processors on which they were made."""
        return ", ".join(sorted({sources.named(name) for name in self._described("processor")}))

    def _described(self, what: str) -> set[str]:
        query = f"SELECT DISTINCT description ->> '{what}' FROM environments"
        return {str(row[0]) for one in self.campaigns for row in one.store.query(query)}

    @property
    def audit(self) -> dict[str, int]:
        """That of all of them."""
        audits = [one.audit for one in self.campaigns]
        return {name: sum(audit[name] for audit in audits) for name in audits[0]}


def paired(a: Campaign, b: Campaign, columns: str, condition: str = "true") -> list[tuple[Any, Any]]:
    """What columns say of each experiment that two campaigns share, by number: the row of one, and of the other."""
    query = f"SELECT number, {columns} FROM {SEEN} WHERE {condition}"
    ours, theirs = ({row["number"]: dict(row) for row in one.store.query(query)} for one in (a, b))
    return [(ours[number], theirs[number]) for number in sorted(ours.keys() & theirs.keys())]


@functools.cache
def campaign(folder: str) -> Campaign:
    """The campaign in a folder of results."""
    return Campaign(folder)


def together(*folders: str) -> Together:
    """Several campaigns as one."""
    return Together([campaign(folder) for folder in folders])
