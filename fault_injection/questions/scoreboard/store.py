"""What a scoreboard knows: an SQLite file beside the campaign's, with one row of JSON per thing that was watched."""

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...campaign.store import DIGEST, Column, ComparedStore, StoredTable, StoredValue
from ...machine.errors import InputError
from ...machine.files import strict_json
from ...runs.dependencies import content_hash

NAME = "score.sqlite"
EXPERIMENT = "experiment"
ALARMS = "alarms"  # of a detector that has read exported logs, by its name
# Which names of detectors a store's rows have: it says the number of this generation.  What `dr_dna` was until then has
# another name since, and the name another meaning.
NAMES, RENAMED = 1, {"dr_dna": "dr_dna_published"}


class ScoreTable(StoredTable):
    """Its table, whose key has two columns, and whose digest is a hash of JSON."""

    def definition(self, digest: bool = True) -> str:
        """The SQL that makes it."""
        columns = [f"{name} TEXT" for name in [*self.columns, *[DIGEST] * digest]]
        return f"CREATE TABLE {self.name} ({', '.join(columns)}, PRIMARY KEY (kind, name))"

    def digest(self, values: Sequence[StoredValue]) -> str:
        """The digest of a row; what is no text has that of no text."""
        return content_hash([value if isinstance(value, str) else [repr(value)] for value in values])

    def shown(self, values: Sequence[StoredValue]) -> str:
        """A row for people, such as `experiment 17`."""
        return f"{values[0]!s} {values[1]!s}"


TABLES = {"rows": ScoreTable("rows", dict.fromkeys(("kind", "name", "value"), Column(str)))}


class ScoreStore(ComparedStore):
    """A scoreboard's file, open; see `ComparedStore`.

    Rows have a kind (`experiment`, `fault_free`, `cost`, `alarms`, `about`), a name within it, and a JSON text.  A row
    is a transaction.
    """

    WHAT, FILE = "scoreboard", NAME
    TABLES = TABLES
    REMEDY = "delete the file, and it is made again"

    def put(self, kind: str, name: str, value: Any) -> None:
        """Write a row."""
        text = json.dumps(strict_json(value), sort_keys=True)
        with self.transaction():
            self._insert("rows", [kind, name, text], "REPLACE")

    def all(self, kind: str) -> Iterator[tuple[str, Any]]:
        """The rows of a kind, by name; detectors have the names of today."""
        for name, value in self.query("SELECT name, value FROM rows WHERE kind = ?", [kind]):
            try:
                found = json.loads(value)
            except ValueError:
                raise self.not_ours(f"{kind} {name}") from None
            yield name, found if not self._former or kind == ALARMS else renamed(found, self._former)

    @functools.cached_property
    def _former(self) -> Mapping[str, str]:
        """What detectors of this store are called today, by the names that its rows have, where these differ."""
        known = {name for (name,) in self.query("SELECT name FROM rows WHERE kind = 'about'")}
        return RENAMED if "key" in known and "names" not in known else {}

    def get(self, kind: str, name: str) -> Any:
        """A row; None where there is none."""
        return dict(self.all(kind)).get(name)

    def done(self) -> set[int]:
        """Numbers of the experiments that were watched."""
        return {int(name) for (name,) in self.query("SELECT name FROM rows WHERE kind = ?", [EXPERIMENT])}

    def begin(self, key: str, settings: dict[str, Any]) -> None:
        """Write what determines the rows, or see that it is what determined those that are here.

        Args:
          key: hash of all that determines them.
          settings: what is scored.

        Raises:
          InputError: it is not.
        """
        other = set(self._former.values()) & set((self.get("about", "settings") or {}).get("detectors", ()))
        if self.get("about", "key") not in (None, key) or other:
            raise InputError("was made by other code or settings, or on another machine; delete it", self.path)
        self.put("about", "names", NAMES)
        self.put("about", "key", key)
        self.put("about", "settings", settings)

    def event(self, what: str) -> None:
        """Write what happened last."""
        with contextlib.suppress(InputError):
            self.put("about", "event", what)


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A JSON value in which keys, and texts of lists, that are one of these names are what the name stands for.

    >>> renamed({"seen": {"dr_dna": {"tensor": "dr_dna"}}, "detectors": ["asd", "dr_dna"]}, RENAMED)
    {'seen': {'dr_dna_published': {'tensor': 'dr_dna'}}, 'detectors': ['asd', 'dr_dna_published']}
    """
    if isinstance(value, dict):
        return {names.get(key, key): renamed(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [names.get(one, one) if isinstance(one, str) else renamed(one, names) for one in value]
    return value
