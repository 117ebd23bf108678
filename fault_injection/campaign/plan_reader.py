"""Values of a plan's TOML, checked; a mistake is named with its line and key."""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import SHOWN

LONGEST = 400  # characters of a pattern, and of a message about a key
SAID = 200  # characters of a message that is not ours


class Reader:
    """Values of a TOML document by their kinds, mistakes named with the line they stand in."""

    def __init__(self, text: str, path: object):
        self.text, self.path = text, path

    def wrong(self, key: str, message: str) -> InputError:
        """The mistake at a key, or at a table."""
        return InputError(f"{key}: {message[:LONGEST]}", self.path, self._line(key))

    def _line(self, key: str) -> int | None:
        """Where a key or a table stands, or what it stands in."""
        table = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if (header := re.match(r"\s*\[([^\[\]]+)\]", line)) is not None:
                table = ".".join(part.strip(" \t\"'") for part in header[1].split("."))
                if table == key:
                    return number
                continue
            given = re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", line)
            if given is not None and ".".join(filter(None, (table, given[1]))) == key:
                return number
        return self._line(key.rpartition(".")[0]) if "." in key else None

    def keys(self, table: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
        """Refuse a key that is not known."""
        for key in table:
            if key not in known:
                raise self.wrong(f"{prefix}{key[:60]}", f"unknown key{did_you_mean(key, known)}")

    def table(self, document: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A table, empty where there is none."""
        value = document.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"{shown_value(value)}; expected a table, [{key}]")
        return value

    @staticmethod
    def _get(table: Mapping[str, Any], key: str, default: Any) -> Any:
        return table.get(key.rpartition(".")[2], default)

    def whole(self, table: Mapping[str, Any], key: str, default: int | None, low: int, high: int) -> Any:
        """A whole number."""
        value = self._get(table, key, default)
        if value is not default and (type(value) is not int or not low <= value <= high):
            raise self.wrong(key, f"{shown_value(value)}; expected a whole number from {low} to {high}")
        return value

    def number(self, table: Mapping[str, Any], key: str, default: float | None, low: float, high: float) -> Any:
        """A number."""
        value = self._get(table, key, default)
        is_number = type(value) in (int, float) and low <= value <= high
        if value is not default and (not is_number or str(value) == "-0.0"):
            raise self.wrong(key, f"{shown_value(value)}; expected a number from {low} to {high}")
        return value

    def one_of(self, table: Mapping[str, Any], key: str, default: str | None, names: Collection[str]) -> str:
        """A name."""
        value = self._get(table, key, default)
        if not isinstance(value, str) or value not in names:
            near = did_you_mean(value, names) if isinstance(value, str) else f"; expected one of {', '.join(names)}"
            raise self.wrong(key, f"{shown_value(value)} is unknown{near}")
        return value

    def list_of(
        self, table: Mapping[str, Any], key: str, default: list[Any] | None, kind: type, expected: str
    ) -> list[Any]:
        """A list of one kind, not empty unless it is the default."""
        value = self._get(table, key, default)
        if value is default is not None:
            return default
        if not isinstance(value, list) or not value or any(type(item) is not kind for item in value):
            raise self.wrong(key, f"{shown_value(value)}; expected a list of {expected}")
        return value


def shown_value(value: Any) -> str:
    """A value of a document as a message repeats it; one too deep or too long to print by what it is."""
    try:
        return f"{value!r}"[:SHOWN]
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__}"


def as_text(value: Any) -> str:
    """A value as a row of an injection file would have it, for its kind to read."""
    return value if isinstance(value, str) else shown_value(value)


def read_document(text: str, path: object) -> tuple[dict[str, Any], Reader]:
    """A plan's document, and what reads values out of it; raises InputError where it is not TOML."""
    try:
        return tomllib.loads(text), Reader(text, path)
    except RecursionError:
        raise InputError("not a plan: it has tables or lists nested a thousand deep", path) from None
    except ValueError as error:  # a number of thousands of digits is a ValueError too
        raise InputError(f"not TOML: {str(error)[:SAID]}", path) from None
