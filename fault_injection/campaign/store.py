"""The store of a campaign, whatever its question: an SQLite file whose every row ends with a digest of the others.

Read once, compared, then used.  SQLite finds a damaged page only where its structure suffers, and it finds a row in
more than one way: in its table, or through an index, a second copy that no digest covers.  So each table is scanned
once when the file is opened, each row is compared with its digest, and the rows that were compared are copied into a
private database.  Queries ask that copy alone.

One process writes.  The rollback journal is kept (no write-ahead log), so that a network file system is as good as a
local disk, and what was committed survives any kill.
"""

import contextlib
import dataclasses
import hashlib
import math
import pathlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from ..machine.errors import InputError
from ..machine.files import open_regular
from ..machine.termination import unbroken

DIGEST = "digest"  # the last column of every table
DIGEST_BYTES = 16
NAMED = 5  # damaged rows that a message names
HEADER = b"SQLite format 3\0"
SQL = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}

# A value as SQLite gives it.
StoredValue = int | float | str | bytes | None


class Column(NamedTuple):
    """A column of a table: what it holds, and whether it may be null."""

    kind: type[int] | type[float] | type[str] | type[bytes]
    null: bool = False

    def kept(self, value: StoredValue) -> StoredValue:
        """A value as SQLite gives it back.

        SQLite has no NaN, which becomes the null of a column that may be null, and else infinity: what a column
        says that may not be null is how large something was.  It has no negative zero either.
        """
        if self.kind is not float or value is None:
            return value
        number = float(value) + 0.0
        return number if number == number else None if self.null else math.inf


@dataclasses.dataclass(frozen=True)
class StoredTable:
    """A table of a store.

    Attributes:
      name: in the plural.
      columns: all but the digest; the first one is the primary key.
    """

    name: str
    columns: Mapping[str, Column]

    def definition(self, digest: bool = True) -> str:
        """The SQL that makes it, in a file with a digest.

        Without row numbers where the key is a text, which would need an index otherwise.
        """
        (key, column), *others = self.columns.items()
        lines = [f"{key} {SQL[column.kind]} PRIMARY KEY{'' if column.kind is int else ' NOT NULL'}"]
        lines += [f"{name} {SQL[column.kind]}{'' if column.null else ' NOT NULL'}" for name, column in others]
        lines += [f"{DIGEST} BLOB NOT NULL"] * digest
        return f"CREATE TABLE {self.name} ({', '.join(lines)}){'' if column.kind is int else ' WITHOUT ROWID'}"

    def digest(self, values: Sequence[StoredValue]) -> bytes | str:
        """The digest of a row: BLAKE2b over the table, its columns and their values, as Python writes them in ASCII.

        >>> events = StoredTable("events", {"number": Column(int), "at": Column(str), "what": Column(str)})
        >>> events.digest([1, "2026-01-01", "started"]).hex()
        '3050f94dba321275e6edf15b92475501'
        """
        text = ascii((self.name, list(zip(self.columns, values, strict=True))))
        return hashlib.blake2b(text.encode("ascii"), digest_size=DIGEST_BYTES).digest()

    def shown(self, values: Sequence[StoredValue]) -> str:
        """A row for people, such as `experiment 17`."""
        return f"{self.name.removesuffix('s')} {values[0]!s}"


class ComparedStore:
    """A store, open; a context that closes it.

    A reader refuses a file with a damaged row.  So does a writer, unless `MENDS`: then it knows the `damaged` rows.

    Args:
      folder: of the campaign.
      write: make the file where there is none, and let this process write; else it is only read.

    Attributes:
      path: the file.
      damaged: the rows whose digest is not that of their values, for people to read.
      tables: those that the file has, by name.
      connection: to the file; closed in a reader.

    Raises:
      InputError: there is no such file, or what is there is none, damaged, or of another version.
    """

    WHAT: ClassVar[str]  # whose store this is
    FILE: ClassVar[str]
    APPLICATION: ClassVar[int] = 0  # tells our files from other SQLite files
    VERSION: ClassVar[int] = 0
    TABLES: ClassVar[Mapping[str, StoredTable]]
    LATER: ClassVar[frozenset[str]] = frozenset()  # tables that older files do not have
    MENDS: ClassVar[bool] = False
    REMEDY: ClassVar[str]  # what to do about a file that cannot be read

    def __init__(self, folder: pathlib.Path, write: bool = False):
        self.path = folder / self.FILE
        if write:
            folder.mkdir(parents=True, exist_ok=True)
        elif not self.path.exists():
            raise InputError(f"no {self.WHAT} here: there is no {self.FILE}", folder)
        # A reader too takes back what a killed writer left half done, if the system lets it.
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}"
        with self._explained(), contextlib.ExitStack() as refused:
            self._refuse_log()
            self.connection = sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None)
            refused.callback(self.connection.close)
            # A damaged text need not be UTF-8, and is still to be read, and compared with its digest.
            self.connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
            self._copy = sqlite3.connect("", isolation_level=None)  # in memory, or in a file without a name
            refused.callback(self._copy.close)
            self._copy.row_factory = sqlite3.Row
            (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
            if not pages and not write:
                raise InputError(f"the {self.WHAT} has not begun", self.path)
            if not pages:
                self._make()
            self.connection.execute("BEGIN")  # all that follows is of one moment
            self._check()
            self.damaged = self._compare()
            self.connection.execute("COMMIT")
            if self.damaged and not (write and self.MENDS):
                raise InputError(f"damaged: {self.listed()}; {self.remedy()}", self.path)
            if not write:
                self.connection.close()
            refused.pop_all()

    def _refuse_log(self) -> None:
        """Refuse a write-ahead log, whose pages SQLite would read in place of the file's: ours never has one."""
        log = self.path.with_name(f"{self.FILE}-wal")
        if self.path.exists():
            with open_regular(self.path) as file:
                header = file.read(20)
            if log.exists() or (header.startswith(HEADER) and header[18:] != b"\1\1"):
                what = "another program has given it a write-ahead log, or it is damaged; "
                raise InputError(f"{what}take the log back (PRAGMA journal_mode = DELETE), or {self.REMEDY}", self.path)

    def _make(self) -> None:
        with self._explained(), unbroken():
            self.connection.execute("BEGIN IMMEDIATE")
            for table in self.TABLES.values():
                self.connection.execute(table.definition())
            self.connection.execute(f"PRAGMA application_id = {self.APPLICATION}")
            self.connection.execute(f"PRAGMA user_version = {self.VERSION}")
            self.connection.execute("COMMIT")

    def _check(self) -> None:
        """See that the file is a store of this kind, and sound as SQLite sees it."""
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        # An index of SQLite's own has no definition.
        known = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        made = dict(self.connection.execute(known).fetchall())
        if application != self.APPLICATION or not made.keys() & self.TABLES.keys():
            raise InputError(f"not a {self.WHAT}'s file, but another SQLite file", self.path)
        if version != self.VERSION:
            what = f"written by another version of this program: schema {version}, expected {self.VERSION}"
            raise InputError(f"{what}; read it with that version, or choose another folder", self.path)
        problems = [row[0] for row in self.connection.execute("PRAGMA integrity_check(1)")]
        if problems != ["ok"]:
            raise InputError(f"damaged: {' '.join(map(str, problems))[:300]}; {self.REMEDY}", self.path)
        self.tables = {name: table for name, table in self.TABLES.items() if name in made or name not in self.LATER}
        for name in {**self.tables, **made}:
            if name not in self.tables or made.get(name) != self.tables[name].definition():
                raise InputError(f"damaged: the definition of its table {name}; {self.REMEDY}", self.path)

    def _compare(self) -> list[str]:
        """Copy the rows whose digest is that of their values; returns the others."""
        damaged = []
        self._copy.execute("BEGIN")
        for table in self.TABLES.values():
            self._copy.execute(table.definition(digest=False))  # also of a table that an older file does not have
            if table.name not in self.tables:
                continue
            rows = f"SELECT {', '.join(table.columns)}, {DIGEST} FROM {table.name} NOT INDEXED"
            for *values, digest in self.connection.execute(rows):
                try:
                    sound = digest == table.digest(values)
                    if sound:
                        self._put(self._copy, table, values)
                except (sqlite3.IntegrityError, UnicodeEncodeError):  # a row that is there twice
                    sound = False
                if not sound:
                    damaged.append(table.shown(values))
        self._copy.execute("COMMIT")
        return damaged

    def listed(self) -> str:
        """The damaged rows, the first ones by name."""
        named = ", ".join(row[:60] for row in self.damaged[:NAMED])
        return named if len(self.damaged) <= NAMED else f"{named} and {len(self.damaged) - NAMED} more"

    def remedy(self) -> str:
        """What to do about damaged rows."""
        return self.REMEDY

    def not_ours(self, what: str) -> InputError:
        """The answer to a sound row that says what this program never writes: by hand one can write anything."""
        return InputError(f"{what} is not what this program writes; {self.REMEDY}", self.path)

    def _put(
        self, database: sqlite3.Connection, table: StoredTable, row: Sequence[StoredValue], otherwise: str = "ABORT"
    ) -> None:
        """Write a row into the file, with its digest, or into the copy."""
        values = [*row, table.digest(row)] if database is self.connection else row
        names = ", ".join([*table.columns, DIGEST][: len(values)])
        marks = ", ".join("?" * len(values))
        database.execute(f"INSERT OR {otherwise} INTO {table.name} ({names}) VALUES ({marks})", values)

    def _insert(self, name: str, values: Sequence[StoredValue], otherwise: str = "ABORT") -> None:
        """Add a row with its digest, in a transaction; a key that is None is the next number."""
        table = self.tables[name]
        key, *others = (column.kept(value) for column, value in zip(table.columns.values(), values, strict=True))
        if key is None:
            ((key,),) = self.query(f"SELECT coalesce(max({next(iter(table.columns))}), 0) + 1 FROM {name}")
        for database in (self.connection, self._copy):
            self._put(database, table, [key, *others], otherwise)

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        """Rows of a query."""
        with self._explained():
            return self._copy.execute(sql, parameters).fetchall()

    def teach(self, name: str, function: Callable[..., StoredValue], arguments: int) -> None:
        """Let queries call a function of so many values by its name."""
        self._copy.create_function(name, arguments, function)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What SQLite says of a file or a disk, as one line of ours."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter where its words quote what is damaged
            raise InputError(f"{str(error)[:200]}; nothing was changed", self.path) from None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, in the file and in the copy; one after the other, with those of other connections.

        No signal breaks it.
        """
        with self._explained(), unbroken():
            self.connection.execute("BEGIN IMMEDIATE")
            self._copy.execute("BEGIN")
            try:
                yield
                self.connection.execute("COMMIT")
                self._copy.execute("COMMIT")
            except BaseException:
                for database in (self.connection, self._copy):
                    if database.in_transaction:
                        database.execute("ROLLBACK")
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self._copy.close()
