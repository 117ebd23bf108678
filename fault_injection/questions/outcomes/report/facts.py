"""What the sections of a report draw on: a campaign's store, its plan, and the rates of groups of experiments."""

import functools
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ....campaign.page import Table
from ....campaign.rates import Rate, wilson
from ....faults.number_formats import Format, format_of
from ....machine.errors import InputError
from ....models.fault import Operand
from ....runs.outcome import MASKED, UNDECIDED
from ....seam.leaves import part_of
from ....seam.measure import Measure
from ..answer import StratifiedAnswer, answer_of
from ..store import Store
from ..strata import layer_of
from ..tally import Counts, Tally, plan_not_masked, tally_of
from .queries import QUERIES, UNSTRUCK


def decode(curve: bytes, steps: int) -> np.ndarray:
    """The curve that the store keeps of an experiment.

    Returns:
      float32 [steps, columns], one row per step from the faulty one on: the loss first, the
      workload's metric last, which may be the loss.
    """
    return np.frombuffer(curve, "<f4").reshape(steps, -1)


class Group(NamedTuple):
    """Experiments that have something in common, what is known of them, and the share that was not masked."""

    name: str
    tally: Tally
    rate: Rate

    @property
    def counts(self) -> Counts:
        """Its experiments by the outcome that is best known."""
        return self.tally.counts


QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")


class Facts:
    """What is known of one campaign; everything is read from the store when it is asked for.

    Attributes:
      store, plan, about: the campaign.
      measure: what the workload's metric is called, and which direction is better.
      epochs: length of the training.
      conditions: parameters of the early verdict, by name.

    Raises:
      InputError: the campaign has not begun.
    """

    def __init__(self, store: Store) -> None:
        plan = store.plan()
        if plan is None:
            raise InputError("the campaign has not begun", store.path)
        self.store, self.plan, self.about = store, plan, store.about()
        self.measure = Measure(**self.about["measure"])
        self.epochs = plan.workload.epochs
        self.conditions: Mapping[str, Any] = self.about["conditions"]

    def rows(self, query: str, **parameters: object) -> list[sqlite3.Row]:
        """Rows of a query of `QUERIES`."""
        return self.store.query(QUERIES[query], parameters)

    def table(self, query: str, caption: str) -> Table:
        """The rows of a query as a table, whose columns are the query's."""
        return Table(query, caption, [dict(row) for row in self.rows(query)])

    @functools.cached_property
    def tally(self) -> Tally:
        """All experiments by what is known of them."""
        return tally_of(self.rows("outcomes"), self.plan)

    @functools.cached_property
    def counts(self) -> Counts:
        """All experiments by the outcome that is best known."""
        return self.tally.counts

    @functools.cached_property
    def unstruck(self) -> int:
        """How many experiments struck nothing."""
        return int(self.store.query(UNSTRUCK)[0]["n"])

    @property
    def total(self) -> int:
        """How many experiments are done."""
        return self.counts.total()

    @property
    def decided(self) -> int:
        """How many experiments have a verdict other than undecided."""
        return self.total - self.counts[UNDECIDED]

    @property
    def bad(self) -> int:
        """How many experiments were decided and not masked, as far as is known."""
        return self.decided - self.counts[MASKED]

    @functools.cached_property
    def answer(self) -> StratifiedAnswer:
        """What a campaign that wants a width knows."""
        return answer_of(self.store, self.plan)

    def require_plain(self) -> None:
        """Raise InputError where experiments are drawn by strata, so that to count them gives no rate of the plan."""
        if self.plan.wanted is not None:
            what = "its experiments are drawn by strata, as its [wanted] needs them, so their plain shares are no rates"
            raise InputError(f"{what}; `report` of this campaign alone has its rates", self.store.path)

    def share(self, count: int, total: int) -> Rate:
        """A share of what is known, with its interval at the plan's confidence."""
        self.require_plain()
        return wilson(count, total, self.plan.confidence)

    def not_masked(self, tally: Tally) -> Rate:
        """The share of the decided experiments that was not masked."""
        self.require_plain()
        return tally.not_masked(self.plan.confidence)

    def whole(self) -> Rate:
        """The share not masked of the whole campaign, its fault models weighted as in the plan."""
        self.require_plain()
        return plan_not_masked(self.rows("models"), self.plan)

    def tallies(self, query: str) -> dict[Any, Tally]:
        """Experiments by what is known of them, for each value of the first column of a query, in its order."""
        found = self._by(query, lambda row: row[0])
        return dict(sorted(found.items()))

    def _by(self, query: str, key: Callable[[sqlite3.Row], Any]) -> dict[Any, Tally]:
        rows: dict[Any, list[sqlite3.Row]] = {}
        for row in self.rows(query):
            rows.setdefault(key(row), []).append(row)
        return {name: tally_of(those, self.plan) for name, those in rows.items()}

    def groups(self, query: str) -> list[Group]:
        """The same with each group's rate, the group named as text; fault models in the order of the plan."""
        found = self.tallies(query)
        if query == "models":
            found = {model.name: found[model.name] for model in self.plan.models if model.name in found}
        return self._rated(found)

    def _rated(self, found: Mapping[Any, Tally]) -> list[Group]:
        return [Group(str(name), tally, self.not_masked(tally)) for name, tally in found.items()]

    def quarter_groups(self) -> list[Group]:
        """By the quarter of the training in which the fault struck."""
        epochs = self.tallies("epochs").items()
        return self._rated(merged((QUARTERS[at * len(QUARTERS) // self.epochs], tally) for at, tally in epochs))

    def latencies(self) -> dict[int, int]:
        """How many experiments met their first non-finite value how many steps after the fault."""
        return {row["steps"]: row["n"] for row in self.rows("latency")}

    def bits(self) -> dict[tuple[Format, int], Tally]:
        """Experiments where one bit was inverted or stuck, by the operand's format and the bit, the highest first."""

        def struck(row: sqlite3.Row) -> tuple[Format, int]:
            tensor = self.plan.targets[row["site"]].operands[Operand[row["operand"].upper()]]
            return format_of(tensor.dtype), row["bit"]

        return dict(
            sorted(self._by("bits", struck).items(), key=lambda one: (-one[0][0].width, one[0][0].name, -one[0][1]))
        )

    def role_groups(self) -> list[Group]:
        """Where one bit was inverted or stuck, by its role in any format: sign, exponent, mantissa, from the top."""
        found = merged((format.role(bit), tally) for (format, bit), tally in self.bits().items())
        return self._rated({role: found[role] for role in sorted(found, key=place_of_role)})

    def kind_groups(self) -> list[Group]:
        """Experiments by what kind of operation they struck, as the workload calls it, or what a leaf belongs to."""

        def kind(site: str) -> str:
            return part_of(site) if self.plan.leaf else self.plan.workload.kind(self.plan.targets[site])

        found = merged((kind(site), tally) for site, tally in self.tallies("sites").items())
        return self._rated(dict(sorted(found.items())))

    def bit_groups(self) -> list[Group]:
        """Where one bit was inverted or stuck: each bit of each format, the lowest first."""
        found = self.bits()
        several = len({format for format, _ in found}) > 1
        named = {key: f"bit {key[1]}{f' of {key[0].name}' if several else ''}" for key in reversed(found)}
        return self._rated({name: found[key] for key, name in named.items()})

    def depths(self) -> dict[str, dict[str, Tally]]:
        """Experiments by layer, in the order of the forward pass, and by stage; layers not struck have none."""
        struck = self.tallies("sites")
        layers: dict[str, dict[str, Tally]] = {}
        for site, operation in {**self.plan.workload.sites(), **self.plan.targets}.items():
            if not operation.layer:
                continue  # a part of the state has many
            stages = layers.setdefault(layer_of(operation), {})
            stages[operation.stage] = stages.get(operation.stage, Tally()) + struck.get(site, Tally())
        return layers


def place_of_role(role: str) -> tuple[int, int]:
    """Where the role of a bit stands among others: from the top.

    >>> sorted(["mantissa 2", "exponent 10", "exponent 9", "sign"], key=place_of_role)
    ['sign', 'exponent 9', 'exponent 10', 'mantissa 2']
    """
    order = {"sign": 0, "exponent": 1, "mantissa": 2}
    part, _, number = role.partition(" ")
    return order.get(part, len(order)), int(number or 0)


def merged(parts: Iterable[tuple[Any, Tally]]) -> dict[Any, Tally]:
    """What is known of experiments, those of one name together."""
    found: dict[Any, Tally] = {}
    for name, tally in parts:
        found[name] = found.get(name, Tally()) + tally
    return found
