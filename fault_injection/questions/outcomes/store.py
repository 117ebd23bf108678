"""What a campaign knows: an SQLite file with one row per experiment.

A transaction is an experiment.  The tables are documented in docs/campaign.md, Store.
"""

import contextlib
import dataclasses
import datetime
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NoReturn

from ...campaign.store import ComparedStore
from ...machine.errors import InputError, printable
from ...machine.reading import fits
from ...runs.dependencies import content_hash
from ...seam.measure import Measure
from ...seam.stages import CHECKPOINT
from . import schema
from .blocks import StoredBlock, restored_blocks
from .conditions import Conditions
from .plan import Plan, restore_plan
from .result import GroupResult, Result
from .schema import ALTERATIONS, BLOCKS, COMPARISONS, GROUPED, GROUPS, TABLES

VERSION = 4
NAME = "campaign.sqlite"


class _Known(dict[str, Any]):
    """What is known of a campaign, by name; what is missing is refused like what is wrong."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._path = path

    def __missing__(self, name: str) -> NoReturn:
        raise InputError(f"its {name} is missing; resume the campaign, or restore a copy", self._path)


class Store(ComparedStore):
    """A campaign's file, open; see `ComparedStore`.  A writer removes damaged rows with `mend`."""

    WHAT, FILE = "campaign", NAME
    APPLICATION, VERSION = 0x46494A31, VERSION  # "FIJ1"
    TABLES, LATER = TABLES, frozenset({ALTERATIONS, BLOCKS, COMPARISONS, GROUPED, GROUPS})
    MENDS, REMEDY = True, "restore a copy, or choose another --out"

    def __init__(self, folder: pathlib.Path, write: bool = False):
        super().__init__(folder, write)
        with contextlib.ExitStack() as refused:
            refused.push(self)
            self._check_content()
            refused.pop_all()

    def remedy(self) -> str:
        """What to do about damaged rows."""
        plan = self.about().get("plan_file") or "PLAN"
        command = f"python -m fault_injection campaign {plan} --out {self.path.parent}"
        return f"resume the campaign, which runs again what is lost: {command}"

    def _compare(self) -> list[str]:
        """As of every store; where each row is sound, what others refer to has to be there."""
        if damaged := super()._compare():
            return damaged
        known = "SELECT DISTINCT environment FROM experiments EXCEPT SELECT id FROM environments"
        lost = [f"environment {name}" for (name,) in self.query(known)]
        experiments = "SELECT count(*) FROM experiments WHERE NOT EXISTS (SELECT * FROM campaign WHERE name = 'plan')"
        return lost + ["campaign plan"] * (self.query(experiments)[0][0] > 0)

    def _check_content(self) -> None:
        """See that what a sound file says is what this program writes; by hand one can write anything."""
        about, plan = self.about(), self.plan()
        for name, kind in (("conditions", Conditions), ("measure", Measure)):
            if name in about and not schema.describes(about[name], kind):
                raise self.not_ours(f"its {name}")
        for name, hint in (("plan_key", str), ("plan_file", str | None), ("jobs", int)):
            if name in about and not fits(about[name], hint):
                raise self.not_ours(f"its {name}")
        for row in self.query("SELECT id, description FROM environments"):
            if not isinstance(schema.parsed(row["description"]), dict):
                raise self.not_ours(f"environment {row['id']}")
        for row in self.query(f"SELECT * FROM {COMPARISONS}"):
            if not schema.is_comparison(row):
                raise self.not_ours(f"comparison {row['experiment']}")
        for row in self.query(f"SELECT * FROM {GROUPED}"):
            if not schema.is_grouped(row):
                raise self.not_ours(f"what is grouped of experiment {row['experiment']}")
        if plan is None:
            return
        for row in self.query(f"SELECT * FROM {GROUPS}"):
            if not schema.is_group(row, plan):
                raise self.not_ours(f"group {row['name']} of audits")
        if not self.damaged:  # else `mend` takes back what follows from what is lost
            strata = self.strata()
            beyond = next((n for n in sorted(self.done()) if plan.wanted is not None and n not in strata), None)
            if beyond is not None:
                raise self.not_ours(f"experiment {beyond}, which is of no block,")
        wrong_in = schema.wrong_column(plan)
        for row in self.query("SELECT * FROM experiments"):
            if wrong := wrong_in(row):
                raise self.not_ours(f"the {wrong} of experiment {row['number']}")

    def mend(self) -> str:
        """Remove the damaged rows, and say in an event which they were; an experiment without a row is not done.

        An environment that experiments refer to, and whose row was damaged, gets a description that says so.

        Returns:
          The rows, for people to read; empty where none was damaged.
        """
        if not self.damaged:
            return ""
        lost = self.listed()
        with self.transaction():
            for name, table in self.tables.items():  # not by key: where keys are damaged a search may miss one
                self.connection.execute(f"DELETE FROM {name}")
                for row in self.query(f"SELECT * FROM {name}"):
                    self._put(self.connection, table, tuple(row))
            self._remove_halves()
            if any(row.startswith("block ") for row in self.damaged):
                self._remove_later()
            known = {row["id"] for row in self.query("SELECT id FROM environments")}
            for row in self.query("SELECT DISTINCT environment FROM experiments"):
                if row["environment"] not in known:
                    self._insert("environments", [row["environment"], json.dumps({"description": "lost by damage"})])
            self._insert("events", [None, _now(), f"damaged rows were removed: {printable(lost)}"])
        self.damaged = []
        return lost

    def _remove_halves(self) -> None:
        """Remove what belongs to an experiment that is lost, and experiments that have lost what belongs to them."""
        plan = self.about().get("plan") or {}
        if COMPARISONS in self.tables and (plan.get("settled") or self.query(f"SELECT 1 FROM {COMPARISONS}")):
            for database in (self.connection, self._copy):
                database.execute(f"DELETE FROM experiments WHERE number NOT IN (SELECT experiment FROM {COMPARISONS})")
                database.execute(f"DELETE FROM {COMPARISONS} WHERE experiment NOT IN (SELECT number FROM experiments)")
        if ALTERATIONS not in self.tables:
            return
        count = f"(SELECT count(*) FROM {ALTERATIONS} a WHERE a.number = experiments.number)"
        for database in (self.connection, self._copy):
            database.execute(f"DELETE FROM experiments WHERE stage = '{CHECKPOINT}' AND elements != {count}")
            database.execute(f"DELETE FROM {ALTERATIONS} WHERE number NOT IN (SELECT number FROM experiments)")

    def _remove_later(self) -> None:
        """Remove all that follows from a block that is lost: later blocks, and the experiments of all of these."""
        first = 0
        for place, row in enumerate(self.query(f"SELECT number, first, strata FROM {BLOCKS} ORDER BY number")):
            strata = schema.parsed(row["strata"])
            if (row["number"], row["first"]) != (place, first) or not isinstance(strata, list):
                break
            first += len(strata)
        for database in (self.connection, self._copy):
            database.execute(f"DELETE FROM {BLOCKS} WHERE first >= ?", [first])
            for name in ("experiments", ALTERATIONS):
                database.execute(f"DELETE FROM {name} WHERE number >= ?", [first])

    def plan(self) -> Plan | None:
        """The campaign's plan, None before it has begun, or where its row is damaged."""
        kept = self.about().get("plan")
        if kept is None:
            return None
        try:
            return restore_plan(kept)
        except ValueError as error:
            raise self.not_ours(f"its plan ({str(error)[:200]})") from None

    def expect(self, plan: Plan) -> Plan:
        """See that this is a plan's campaign, if it is one yet.

        Returns:
          The plan to go on with, see `Plan.grown`.

        Raises:
          InputError: it is another plan's campaign.
        """
        known = self.plan()
        plan = plan.grown(known)
        if known is not None:
            theirs, ours = known.identity(), plan.identity()
            differing = ", ".join(name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name))
            if differing:
                raise InputError(f"the campaign of another plan ({differing} differ); choose another --out", self.path)
        return plan

    def begin(self, plan_key: str, plan: Plan, **known: Any) -> None:
        """Make this the campaign of a plan, or see that it is; the plan's extent may be another than before.

        Args:
          plan_key: hash of the plan and of what else verdicts depend on.
          known: what else to keep, by name.

        Raises:
          InputError: it is another plan's, or was begun on another machine or by other code.
        """
        plan = self.expect(plan)
        with self.transaction():
            keys = self.query("SELECT number, key FROM experiments")  # where the plan's own row was damaged, these tell
            theirs = all(row["key"] == experiment_key(plan_key, row["number"]) for row in keys)
            if self.about().get("plan_key", plan_key) != plan_key or not theirs:
                what = "begun on a machine, or by code, whose bits are others: its results do not mix with new ones"
                raise InputError(f"{what}; choose another --out", self.path)
            self._set({"plan_key": plan_key, "plan": dataclasses.asdict(plan), **known})

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._insert("campaign", [name, json.dumps(value)], "REPLACE")

    def about(self) -> dict[str, Any]:
        """What is known of the campaign as a whole, but for damaged rows."""
        known = _Known(self.path)
        for row in self.query("SELECT name, value FROM campaign"):
            if (value := schema.parsed(row["value"])) is schema.NOT_JSON:
                raise self.not_ours(f"its {row['name']}")
            known[row["name"]] = value
        return known

    def event(self, what: str) -> None:
        """Write down that something happened."""
        with self.transaction():
            self._insert("events", [None, _now(), printable(what)])

    def walked(self, epoch: int, steps: int, seconds: float) -> None:
        """Write down that an epoch was walked through."""
        with self.transaction():
            self._insert("walks", [None, epoch, steps, seconds])

    def add(self, result: Result, environment: dict[str, Any], plan_key: str) -> None:
        """Add a result; one that is there already, by its number, adds nothing but an audit that was not made yet."""
        identity, number = content_hash(environment), result.number
        with self.transaction():
            # In the place of what `mend` may have put there, or of the same.
            self._insert("environments", [identity, json.dumps(environment, sort_keys=True)], "REPLACE")
            there = self.query("SELECT audit_outcome FROM experiments WHERE number = ?", [number])
            if there and (there[0]["audit_outcome"] is not None or result.audit_outcome is None):
                return
            known = (getattr(result, name) for name in schema.result_columns())
            row = [*known, experiment_key(plan_key, number), identity, _now()]
            self._insert("experiments", row, "REPLACE")
            if there:
                return
            if result.comparison is not None:
                self._insert(COMPARISONS, [number, *result.comparison])
            for k, alteration in enumerate(result.alterations):
                self._insert(ALTERATIONS, [f"{number}/{k}", number, *alteration])

    def add_group(self, result: GroupResult) -> None:
        """Add what a group of audits came to; one that is there already adds nothing."""
        with self.transaction():
            self._insert(GROUPS, [result.name, json.dumps(result.members), *result[2:]], "IGNORE")

    def regroup(self, grouped: Mapping[int, tuple[str, int]]) -> None:
        """Write down in which group each audit is, and whether it is followed alone too, in place of what was there."""
        with self.transaction():
            for database in (self.connection, self._copy):
                database.execute(f"DELETE FROM {GROUPED}")
            for number, (name, alone) in grouped.items():
                self._insert(GROUPED, [number, name, alone])

    def groups(self) -> tuple[dict[str, str], dict[int, tuple[str, int]]]:
        """What groups of audits came to, by name; and what `regroup` has written."""
        came_to = {row["name"]: row["outcome"] for row in self.query(f"SELECT name, outcome FROM {GROUPS}")}
        grouped = self.query(f"SELECT experiment, name, alone FROM {GROUPED}")
        return came_to, {row["experiment"]: (row["name"], row["alone"]) for row in grouped}

    def design(self, block: StoredBlock) -> None:
        """Write down a block before its experiments run."""
        with self.transaction():
            self._insert(BLOCKS, block.row())

    def blocks(self) -> list[StoredBlock]:
        """Those of a campaign that wants a width, in their order."""
        if BLOCKS not in self.tables or (plan := self.plan()) is None:
            return []
        try:
            return restored_blocks([*map(dict, self.query(f"SELECT * FROM {BLOCKS} ORDER BY number"))], plan)
        except ValueError as error:
            raise self.not_ours(str(error)) from None

    def strata(self) -> dict[int, int]:
        """Of a campaign that wants a width, the stratum of each experiment that was drawn."""
        return {n: stratum for block in self.blocks() for n, stratum in zip(block.numbers, block.strata, strict=True)}

    def observed(self, block: StoredBlock) -> list[dict[str, Any]]:
        """What came of the experiments of a block, by their numbers."""
        numbers = block.numbers
        known = "SELECT outcome, exit, near, early_rule, audit_outcome FROM experiments"
        of_block = "WHERE number >= ? AND number < ? ORDER BY number"
        return [dict(row) for row in self.query(f"{known} {of_block}", [numbers.start, numbers.stop])]

    def done(self) -> set[int]:
        """Numbers of the experiments that have a verdict."""
        return {row["number"] for row in self.query("SELECT number FROM experiments")}


def open_plan(folder: pathlib.Path) -> Plan:
    """The plan of the campaign in a folder; raises InputError where there is none, or it has not begun."""
    with Store(folder) as store:
        if (plan := store.plan()) is None:
            raise InputError("the campaign has not begun", store.path)
        return plan


def experiment_key(plan_key: str, number: int) -> str:
    """Content hash of an experiment and of all that its verdict depends on.

    Experiment i being a function of the plan, and the plan's key a hash of the plan, the golden
    run, the libraries and the machine's arithmetic, it is that of the two.
    """
    return content_hash([plan_key, number])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
