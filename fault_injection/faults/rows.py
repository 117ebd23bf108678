"""The rows of an injection file, and which of them are at fault where something does not fit."""

import csv
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..machine.errors import InputError
from ..machine.reading import SHOWN, Kind, Value
from ..seam.workload import Workload, format_option
from ..workloads.registry import WORKLOADS

LONGEST = 300  # characters of a message that is not ours


class Row(NamedTuple):
    """A row of a file: its line, from 1, its key and what follows the key."""

    line: int
    key: str
    cells: list[str]


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of an injection file.

    Attributes:
      path: the file, as messages name it.
      by_key: its rows.
    """

    path: object
    by_key: Mapping[str, Row]

    def __contains__(self, key: str) -> bool:
        return key in self.by_key

    def wrong(self, key: str, message: str) -> InputError:
        """A mistake in the row of `key`, which the message calls as the file does: `inj_pos.2`."""
        if (row := self.by_key.get(key)) is None:
            return InputError(message, self.path)
        if row.key != key:
            begins = message.startswith(key)
            message = f"{row.key}{message.removeprefix(key)}" if begins else f"{message} (row {row.key})"
        return InputError(message, self.path, row.line)

    def every(self, key: str, kind: Kind[Value]) -> tuple[Value, ...]:
        """The values of a row, at least one."""
        row, values = self.by_key[key], []
        if not row.cells:
            raise self.wrong(key, f"{key} takes at least one value, found none")
        for cell in row.cells:
            try:
                values.append(kind.parse(cell))
            except ValueError:
                raise self.wrong(key, f"{key} {kind.wrong(cell)}") from None
        return tuple(values)

    def one(self, key: str, kind: Kind[Value]) -> Value:
        """The value of a row that takes one."""
        if len(self.by_key[key].cells) != 1:
            raise self.wrong(key, f"{key} takes one value, found {len(self.by_key[key].cells)}")
        return self.every(key, kind)[0]


def list_rows(text: str, path: object) -> list[Row]:
    """The rows of the text, without blank lines and comments.

    >>> list_rows("# of mine\\nmodel, resnet18", "x.csv")
    [Row(line=2, key='model', cells=['resnet18'])]

    Raises:
      InputError: a row is not one of comma-separated values.
    """
    listed = []
    for line, raw in enumerate(re.split("\r\n|\n|\r", text), 1):  # as editors count; splitlines() knows more ends
        if not raw.strip() or raw.lstrip().startswith("#"):
            continue
        try:
            key, *cells = (cell.strip() for cell in next(csv.reader([raw], strict=True)))
        except csv.Error as error:
            raise InputError(f"not a row of comma-separated values: {error}", path, line) from None
        listed.append(Row(line, key, cells))
    return listed


@dataclasses.dataclass(frozen=True)
class SetUp:
    """What a file says of its workload.

    Attributes:
      rows: of the file.
      published: the workload that the row `model` names, without further rows.
      options: values of the rows of options that the file has.
    """

    rows: Rows
    published: Workload
    options: Mapping[str, Any]

    @property
    def workload(self) -> Workload:
        """The workload that the file describes."""
        return self.published.changed(**self.options)

    def without(self, names: Iterable[str]) -> Workload:
        """The workload that the file would describe without some of its rows."""
        return self.published.changed(**{key: self.options[key] for key in self.options.keys() - set(names)})

    def differing(self, place: str | None = None) -> list[str]:
        """Options whose rows say something else than the published run has, in the order of the workload's options.

        Args:
          place: only those that say how large this is.
        """
        return [
            name
            for name, option in self.published.OPTIONS.items()
            if name in self.options
            and self.options[name] != getattr(self.published, name)
            and (place is None or place in option.scales)
        ]

    def at_fault(self, names: Iterable[str], fits: Callable[[Workload], bool]) -> list[str]:
        """Those of the rows without which, one at a time, all would fit."""
        return [name for name in names if _fits(self.without([name]), fits)]

    def blame(self, names: Sequence[str]) -> str:
        """` (row epochs, line 16, says 20 where the published run has 80)`; empty where no row is at fault."""
        run = "the published run" if self.published.name in WORKLOADS else "the workload itself"
        each = [
            f"row {name}, line {self.rows.by_key[name].line}, says {shown_option(self.options[name])} "
            f"where {run} has {shown_option(getattr(self.published, name))}"
            for name in names
        ]
        return f" ({' and '.join(each)})" if each else ""

    def outside(self, key: str, message: str, place: str, fits: Callable[[Workload], bool]) -> InputError:
        """A place outside: names the rows on which this limit depends, and says what to do if they came later."""
        names = self.differing(place)
        message += self.blame(self.at_fault(names, fits) or names)
        scale = [name for name in self.differing() if self.published.OPTIONS[name].scales]
        if not names or not _fits(self.without(scale), fits):
            return self.rows.wrong(key, message)
        own = "published scale" if self.published.name in WORKLOADS else "scale of the workload itself"
        take_out = f"take out its row{'s'[: len(scale) > 1]} {', '.join(scale)}"
        command = f"python -m fault_injection scale FILE{self.flags(scale)}"
        return self.rows.wrong(key, f"{message}. If the file was written for the {own}: {take_out}, then {command}")

    def flags(self, names: Iterable[str]) -> str:
        """The options as flags of a command, such as ` --width 8`."""
        return "".join(f" --{name.replace('_', '-')} {shown_option(self.options[name])}" for name in names)


def _fits(workload: Workload, fits: Callable[[Workload], bool]) -> bool:
    return workload.contradiction() is None and fits(workload)


def shown_option(value: object) -> str:
    """An option's value as a message repeats it."""
    return str(format_option(value))[:SHOWN]


def said(message: object) -> str:
    """What a workload, perhaps a user's own, says of its options: printable, and of a length that fits a line.

    >>> said("no\\x00thing")
    'no?thing'
    """
    text = "".join(character if character.isprintable() else "?" for character in str(message))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
