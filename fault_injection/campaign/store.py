"""What a campaign knows: an SQLite file with one row per experiment.

One process writes.  The rollback journal is kept (no write-ahead log), so that a network file
system is as good as a local disk; a transaction is an experiment, and what was committed
survives any kill.  The tables are documented in docs/campaign.md, Store.
"""

import contextlib
import dataclasses
import datetime
import json
import pathlib
import sqlite3
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from ..machine.errors import InputError
from ..runs.dependencies import content_hash
from .experiment import Result
from .plan import Plan, restore_plan

APPLICATION = 0x46494A31  # tells our files from other SQLite files: "FIJ1"
VERSION = 2
NAME = "campaign.sqlite"
SQL = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


def _columns() -> str:
    """The columns of a `Result`, in SQL."""
    lines = []
    for field, kind in typing.get_type_hints(Result).items():
        optional = isinstance(kind, types.UnionType)
        base = next(k for k in typing.get_args(kind) if k is not types.NoneType) if optional else kind
        lines.append(f"{field} {SQL[base]}{'' if optional else ' NOT NULL'}")
    return ",\n  ".join(lines)


SCHEMA = f"""
CREATE TABLE campaign (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE environments (id TEXT PRIMARY KEY, description TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (at TEXT NOT NULL, what TEXT NOT NULL);
CREATE TABLE walks (epoch INTEGER NOT NULL, steps INTEGER NOT NULL, seconds REAL NOT NULL);
CREATE TABLE experiments (
  key TEXT PRIMARY KEY,
  {_columns()},
  environment TEXT NOT NULL REFERENCES environments (id),
  finished_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX numbers ON experiments (number);
"""
FIELDS = [field.name for field in dataclasses.fields(Result)]


class Store:
    """A campaign's file, open; a context that closes it.

    Args:
      folder: of the campaign.
      write: make it where there is none, and let this process write; else it is only read.

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
            (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
            if not pages and not write:
                raise InputError("the campaign has not begun", self.path)
            if not pages:
                self._make()
            if not write:
                self.connection.execute("PRAGMA query_only = ON")
            self._check()
            refused.pop_all()

    def _make(self) -> None:
        with self.transaction():
            for statement in SCHEMA.split(";"):
                self.connection.execute(statement)
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
            raise InputError(f"damaged: {problems[0]}", self.path)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What SQLite says of a file or a disk, as one line of ours."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise InputError(f"{error}; nothing was changed", self.path) from None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing; one after the other, with those of other connections."""
        with self._explained():
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
        """The campaign's plan, None before it has begun."""
        kept = self.about().get("plan")
        return restore_plan(kept) if kept else None

    def expect(self, plan: Plan) -> None:
        """See that this is a plan's campaign, if it is one yet; raises InputError if it is another plan's."""
        if (known := self.plan()) is not None:
            theirs, ours = known.identity(), plan.identity()
            differing = ", ".join(name for name in ours if theirs[name] != ours[name])
            if differing:
                raise InputError(f"the campaign of another plan ({differing} differ); choose another --out", self.path)

    def begin(self, plan_key: str, plan: Plan, **known: Any) -> None:
        """Make this the campaign of a plan, or see that it is; the plan's extent may be another than before.

        Args:
          plan_key: hash of the plan and of what else verdicts depend on.
          known: what else to keep, by name.

        Raises:
          InputError: it is another plan's, or was begun on another machine or by other code.
        """
        self.expect(plan)
        with self.transaction():
            if self.about().get("plan_key", plan_key) != plan_key:
                what = "begun on a machine, or by code, whose bits are others: its results do not mix with new ones"
                raise InputError(f"{what}; choose another --out", self.path)
            self._set({"plan_key": plan_key, "plan": dataclasses.asdict(plan), **known})

    def _set(self, values: dict[str, Any]) -> None:
        rows = [(name, json.dumps(value)) for name, value in values.items()]
        self.connection.executemany("INSERT OR REPLACE INTO campaign VALUES (?, ?)", rows)

    def about(self) -> dict[str, Any]:
        """What is known of the campaign as a whole."""
        return {row["name"]: json.loads(row["value"]) for row in self.query("SELECT name, value FROM campaign")}

    def event(self, what: str) -> None:
        """Write down that something happened."""
        with self.transaction():
            self.connection.execute("INSERT INTO events VALUES (?, ?)", (_now(), what))

    def walked(self, epoch: int, steps: int, seconds: float) -> None:
        """Write down that an epoch was walked through."""
        with self.transaction():
            self.connection.execute("INSERT INTO walks VALUES (?, ?, ?)", (epoch, steps, seconds))

    def add(self, results: Iterable[Result], environment: dict[str, Any], plan_key: str) -> int:
        """Add results; one that is there already, by its key, adds nothing.  Returns how many were added."""
        identity = content_hash(environment)
        names = ["key", *FIELDS, "environment", "finished_at"]
        rows = [
            (experiment_key(plan_key, r.number), *(getattr(r, name) for name in FIELDS), identity, _now())
            for r in results
        ]
        with self.transaction():
            text = json.dumps(environment, sort_keys=True)
            self.connection.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (identity, text))
            before = self.connection.total_changes
            marks = ", ".join("?" * len(names))
            self.connection.executemany(
                f"INSERT OR IGNORE INTO experiments ({', '.join(names)}) VALUES ({marks})", rows
            )
            return self.connection.total_changes - before

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
