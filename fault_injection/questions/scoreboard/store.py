"""What a scoreboard knows: an SQLite file beside the campaign's, with one row of JSON per thing that was watched."""

import contextlib
import json
import pathlib
import sqlite3
from collections.abc import Iterator
from typing import Any, Self

from ...machine.errors import InputError
from ...machine.files import strict_json
from ...runs.dependencies import content_hash

NAME = "score.sqlite"
EXPERIMENT = "experiment"


class ScoreStore:
    """A scoreboard's file, open; a context that closes it.

    Rows have a kind (`experiment`, `fault_free`, `cost`, `about`), a name within it, a JSON text, and the
    text's digest.  One process writes; a row is a transaction.

    Args:
      folder: of the campaign.
      write: make it where there is none.

    Raises:
      InputError: there is none, it is no such file, or a row is damaged.
    """

    def __init__(self, folder: pathlib.Path, write: bool = False):
        self.path = folder / NAME
        if not write and not self.path.exists():
            raise InputError(f"no scoreboard here: there is no {NAME}", folder)
        try:
            self.connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self.connection.execute(
                "CREATE TABLE IF NOT EXISTS rows "
                "(kind TEXT, name TEXT, value TEXT, digest TEXT, PRIMARY KEY (kind, name))"
            )
            damaged = [
                f"{kind} {name}"
                for kind, name, value, digest in self.connection.execute("SELECT * FROM rows")
                if content_hash([kind, name, value]) != digest
            ]
        except sqlite3.DatabaseError as error:
            raise InputError(f"not a scoreboard, or damaged: {error}", self.path) from None
        if damaged:
            raise InputError(f"damaged: {', '.join(damaged[:5])}; delete the file, and it is made again", self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    def put(self, kind: str, name: str, value: Any) -> None:
        """Write a row."""
        text = json.dumps(strict_json(value), sort_keys=True)
        self.connection.execute(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", (kind, name, text, content_hash([kind, name, text]))
        )

    def all(self, kind: str) -> Iterator[tuple[str, Any]]:
        """The rows of a kind, by name."""
        for name, value in self.connection.execute("SELECT name, value FROM rows WHERE kind = ?", (kind,)):
            yield name, json.loads(value)

    def get(self, kind: str, name: str) -> Any:
        """A row; None where there is none."""
        return dict(self.all(kind)).get(name)

    def done(self) -> set[int]:
        """Numbers of the experiments that were watched."""
        names = self.connection.execute("SELECT name FROM rows WHERE kind = ?", (EXPERIMENT,))
        return {int(name) for (name,) in names}

    def begin(self, key: str, settings: dict[str, Any]) -> None:
        """Write what determines the rows, or see that it is what determined those that are here.

        Args:
          key: hash of all that determines them.
          settings: what is scored.

        Raises:
          InputError: it is not.
        """
        if self.get("about", "key") not in (None, key):
            raise InputError("was made by other code or settings, or on another machine; delete it", self.path)
        self.put("about", "key", key)
        self.put("about", "settings", settings)

    def event(self, what: str) -> None:
        """Write what happened last."""
        with contextlib.suppress(sqlite3.Error):
            self.put("about", "event", what)
