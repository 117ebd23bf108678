"""JSON lines: one object per line; also one list of objects, and one object of lists as Keras's `History.history`."""

import json
import re
from typing import Any

from ..machine.errors import InputError
from .cells import Cell
from .source import Source
from .table import LogTable, records

NAME = "JSON lines"
LIST = re.compile(r"\s*(\[\s*\{|\{)")  # Megatron and torchtitan begin with `[` and a time or a rank
DEEPEST = 8  # objects in objects


def fits(source: Source) -> bool:
    """Whether a line of the beginning is an object, or the file begins as a list of objects or one object."""
    lines = source.beginning
    return LIST.match(source.text) is not None or sum(line[:1] == "{" for line in lines) > len(lines) / 2


def read(source: Source) -> LogTable:
    """The table; the keys of nested objects are joined by `/`, and lists in them are left out.

    Raises:
      InputError: there is no object.
    """
    found: list[tuple[int, dict[str, Cell]]] = []
    broken: list[int] = []
    for line, text in source.lines():
        value = parsed(text)
        if isinstance(value, dict):
            found.append((line, flat(value)))
        else:
            broken.append(line)
    if len(found) < 2:
        whole = parsed(source.text)
        if isinstance(whole, dict) and (columns := _columns(whole)):
            whole = columns
        if isinstance(whole, list):
            found, broken = [(0, flat(each)) for each in whole if isinstance(each, dict)], []
    if not found:
        raise InputError("begins as JSON; expected one object per line, or a list of objects", source.path, 1)
    notes = [f"{len(broken)} line(s) that are no JSON objects are left out, from line {broken[0]} on"] if broken else []
    return records(NAME, found, tuple(notes))


def parsed(text: str) -> Any:
    """A JSON value, None where the text is none or too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def flat(value: dict[str, Any], before: str = "", deep: int = 0) -> dict[str, Cell]:
    """An object's numbers and texts by the path of their keys.

    >>> flat({"step": 1, "train": {"loss": 2.5, "shape": [3]}})
    {'step': 1, 'train/loss': 2.5}
    """
    found: dict[str, Cell] = {}
    for key, each in value.items():
        if isinstance(each, dict):
            found |= flat(each, f"{before}{key}/", deep + 1) if deep < DEEPEST else {}
        elif each is None or isinstance(each, bool | int | float | str):
            found[f"{before}{key}"] = each
    return found


def _columns(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an object of lists of one length; empty where it is none."""
    lists = {key: each for key, each in value.items() if isinstance(each, list)}
    lengths = {len(each) for each in lists.values()}
    if len(lengths) != 1:
        return []
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
