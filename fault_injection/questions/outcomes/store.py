"""What a campaign knows: an SQLite file with one row per experiment, and in each row a digest of it.

One process writes.  The rollback journal is kept (no write-ahead log), so that a network file
system is as good as a local disk; a transaction is an experiment, and what was committed
survives any kill.  SQLite itself finds a damaged page only where its structure suffers, so
every row is compared with its digest when the file is opened.  The tables are documented in
docs/campaign.md, Store.
"""

import contextlib
import dataclasses
import datetime
import json
import pathlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Self

from ...machine.errors import InputError, printable
from ...machine.reading import fits
from ...machine.termination import unbroken
from ...runs.dependencies import content_hash
from ...seam.measure import Measure
from ...seam.stages import CHECKPOINT
from . import schema
from .conditions import Conditions
from .plan import Plan, restore_plan
from .result import Result
from .schema import ALTERATIONS, DIGEST, TABLES, Cell, digest_of

APPLICATION = 0x46494A31  # tells our files from other SQLite files: "FIJ1"
VERSION = 4
NAME = "campaign.sqlite"
NAMED = 5  # damaged rows that a message names


class Damaged(NamedTuple):
    """A row whose digest is not that of its values: its table, and its primary key as it reads now."""

    table: str
    key: Cell

    def __str__(self) -> str:
        return f"{self.table.removesuffix('s')} {self.key!s}"


class _Known(dict[str, Any]):
    """What is known of a campaign, by name; what is missing is refused like what is wrong."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._path = path

    def __missing__(self, name: str) -> NoReturn:
        raise InputError(f"its {name} is missing; resume the campaign, or restore a copy", self._path)


def _listed(damaged: Sequence[Damaged]) -> str:
    named = ", ".join(str(row)[:60] for row in damaged[:NAMED])
    return named if len(damaged) <= NAMED else f"{named} and {len(damaged) - NAMED} more"


class Store:
    """A campaign's file, open; a context that closes it.

    Every row is compared with its digest when the file is opened.  A reader refuses a file with a
    damaged row.  A writer knows the `damaged` rows, and removes them with `mend`.

    Args:
      folder: of the campaign.
      write: make it where there is none, and let this process write; else it is only read.

    Attributes:
      damaged: rows whose digest is not that of their values.
      tables: columns of the tables that it has.

    Raises:
      InputError: there is none, or what is there is no campaign, damaged, or of another version.
    """

    def __init__(self, folder: pathlib.Path, write: bool = False):
        self.path = folder / NAME
        if write:
            folder.mkdir(parents=True, exist_ok=True)
        elif not self.path.exists():
            raise InputError(f"no campaign here: there is no {NAME}", folder)
        # A reader too takes back what a killed writer left half done, if the system lets it.
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}"
        with self._explained(), contextlib.ExitStack() as refused:
            self.connection = sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None)
            refused.callback(self.connection.close)
            self.connection.row_factory = sqlite3.Row
            # A damaged text need not be UTF-8, and is still to be read, and compared with its digest.
            self.connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
            (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
            if not pages and not write:
                raise InputError("the campaign has not begun", self.path)
            if not pages:
                self._make()
            if not write:
                self.connection.execute("PRAGMA query_only = ON")
            self._check()
            self.damaged = self._find_damaged()
            if self.damaged and not write:
                plan = self.about().get("plan_file") or "PLAN"
                command = f"python -m fault_injection campaign {plan} --out {folder}"
                what = (
                    f"damaged: {_listed(self.damaged)}; resume the campaign, which runs again what is lost: {command}"
                )
                raise InputError(what, self.path)
            self._check_content()
            refused.pop_all()

    def _make(self) -> None:
        with self.transaction():
            for table in TABLES:
                self.connection.execute(schema.definition(table))
            self.connection.execute(f"PRAGMA application_id = {APPLICATION}")
            self.connection.execute(f"PRAGMA user_version = {VERSION}")

    def _check(self) -> None:
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise InputError("not a campaign's file, but another SQLite file", self.path)
        if version != VERSION:
            raise InputError(
                f"written by another version of this program: schema {version}, expected {VERSION}; "
                "read it with that version, or choose another folder",
                self.path,
            )
        problems = [row[0] for row in self.connection.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise InputError(f"damaged: {str(problems[0])[:300]}; restore a copy, or choose another --out", self.path)
        made = {row["name"]: row["sql"] for row in self.connection.execute("SELECT name, sql FROM sqlite_master")}
        self.tables = {name: TABLES[name] for name in TABLES if name in made or name != ALTERATIONS}
        for table in self.tables:
            if made.get(table) != schema.definition(table):
                what = f"damaged: the definition of its table {table}; restore a copy, or choose another --out"
                raise InputError(what, self.path)

    def _find_damaged(self) -> list[Damaged]:
        return [
            Damaged(table, values[0])
            for table, columns in self.tables.items()
            for *values, digest in self.connection.execute(f"SELECT {', '.join(columns)}, {DIGEST} FROM {table}")
            if digest != digest_of(table, values)
        ]

    def _check_content(self) -> None:
        """See that what a sound file says is what this program writes; by hand one can write anything."""
        about, plan, damaged = self.about(), self.plan(), set(self.damaged)
        for name, kind in (("conditions", Conditions), ("measure", Measure)):
            if name in about and not schema.describes(about[name], kind):
                raise self._not_ours(f"its {name}")
        for name, hint in (("plan_key", str), ("plan_file", str | None), ("jobs", int)):
            if name in about and not fits(about[name], hint):
                raise self._not_ours(f"its {name}")
        for row in self.connection.execute("SELECT id, description FROM environments"):
            sound = isinstance(schema.parsed(row["description"]), dict)
            if not sound and Damaged("environments", row["id"]) not in damaged:
                raise self._not_ours(f"environment {row['id']}")
        if plan is None:
            return
        wrong_in = schema.wrong_column(plan)
        for row in self.connection.execute("SELECT * FROM experiments"):
            wrong = wrong_in(row)
            if wrong and Damaged("experiments", row["number"]) not in damaged:
                raise self._not_ours(f"the {wrong} of experiment {row['number']}")

    def _not_ours(self, what: str) -> InputError:
        return InputError(f"{what} is not what this program writes; restore a copy, or choose another --out", self.path)

    def mend(self) -> str:
        """Remove the damaged rows, and say in an event which they were; an experiment without a row is not done.

        An environment that experiments refer to, and whose row was damaged, gets a description that says so.

        Returns:
          The rows, for people to read; empty where none was damaged.
        """
        if not self.damaged:
            return ""
        lost = _listed(self.damaged)
        with self.transaction():
            for table in dict.fromkeys(row.table for row in self.damaged):
                # Not by its key: where keys are damaged a search may miss one.
                names = ", ".join((*TABLES[table], DIGEST))
                rows = [tuple(row) for row in self.connection.execute(f"SELECT {names} FROM {table}")]
                self.connection.execute(f"DELETE FROM {table}")
                for *values, digest in rows:
                    if digest == digest_of(table, values):
                        self._insert(table, values)
            self._remove_halves()
            known = {row["id"] for row in self.query("SELECT id FROM environments")}
            for row in self.query("SELECT DISTINCT environment FROM experiments"):
                if row["environment"] not in known:
                    self._insert("environments", [row["environment"], json.dumps({"description": "lost by damage"})])
            self._insert("events", [None, _now(), f"damaged rows were removed: {printable(lost)}"])
        self.damaged = []
        return lost

    def _remove_halves(self) -> None:
        """Remove alterations without their experiment, and experiments without all of their alterations."""
        if ALTERATIONS in self.tables:
            count = f"(SELECT count(*) FROM {ALTERATIONS} a WHERE a.number = experiments.number)"
            self.connection.execute(f"DELETE FROM experiments WHERE stage = '{CHECKPOINT}' AND elements != {count}")
            self.connection.execute(f"DELETE FROM {ALTERATIONS} WHERE number NOT IN (SELECT number FROM experiments)")

    def _insert(self, table: str, values: Sequence[Cell], otherwise: str = "ABORT") -> None:
        """Add a row with its digest; a key that is None is the next number."""
        columns = TABLES[table]
        key, *others = (column.kept(value) for column, value in zip(columns.values(), values, strict=True))
        if key is None:
            (key,) = self.connection.execute(f"SELECT coalesce(max(number), 0) + 1 FROM {table}").fetchone()
        row = [key, *others]
        marks = ", ".join("?" * (len(row) + 1))
        names = ", ".join((*columns, DIGEST))
        statement = f"INSERT OR {otherwise} INTO {table} ({names}) VALUES ({marks})"
        self.connection.execute(statement, [*row, digest_of(table, row)])

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What SQLite says of a file or a disk, as one line of ours."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter where its words quote what is damaged
            raise InputError(f"{str(error)[:200]}; nothing was changed", self.path) from None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing; one after the other, with those of other connections.  No signal breaks it."""
        with self._explained(), unbroken():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    def plan(self) -> Plan | None:
        """The campaign's plan, None before it has begun, or where its row is damaged."""
        kept = self.about().get("plan")
        if kept is None:
            return None
        try:
            return restore_plan(kept)
        except ValueError as error:
            raise self._not_ours(f"its plan ({str(error)[:200]})") from None

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
            if Damaged("campaign", row["name"]) not in self.damaged:
                if (value := schema.parsed(row["value"])) is schema.NOT_JSON:
                    raise self._not_ours(f"its {row['name']}")
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
        """Add a result; one that is there already, by its number, adds nothing."""
        identity, number = content_hash(environment), result.number
        with self.transaction():
            # In the place of what `mend` may have put there, or of the same.
            self._insert("environments", [identity, json.dumps(environment, sort_keys=True)], "REPLACE")
            if self.query("SELECT 1 FROM experiments WHERE number = ?", [number]):
                return
            known = (getattr(result, name) for name in schema.result_columns())
            self._insert("experiments", [*known, experiment_key(plan_key, number), identity, _now()])
            for k, alteration in enumerate(result.alterations):
                self._insert(ALTERATIONS, [f"{number}/{k}", number, *alteration])

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        """Rows of a query."""
        with self._explained():
            return self.connection.execute(sql, parameters).fetchall()

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
