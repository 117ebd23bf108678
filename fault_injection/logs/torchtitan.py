"""The text of torchtitan: `step:  1  loss:  8.2  grad_norm:  1.3  memory: …`, and others that write it likewise.

Colours are taken off.  Where several ranks write into one file, each rank's tensors are tensors of their own.
"""

import re

from .cells import Cell
from .source import Source
from .table import LogTable, records

NAME = "torchtitan text"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STEP = re.compile(
    r"(?:^|[\s|,])(?:step|iter|iteration)[:= ]\s*([0-9][0-9,]{0,18})(?:\s*/\s*[0-9]+)?(?=$|[\s:|,])(.*)", re.IGNORECASE
)
PAIR = re.compile(
    r"([A-Za-z_][\w/.\-]*(?: [A-Za-z_][\w/.\-]*)*)\s*[:= ]\s*"
    r"([+-]?(?:[0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|nan|inf(?:inity)?)(?![\w.]))",
    re.IGNORECASE,
)
CLOCK = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,6})?)")
RANK = re.compile(r"\[(?:default|rank)?([0-9]+)\]:")
THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?")


def fits(source: Source) -> bool:
    """Whether a line says a step and a value."""
    return any(_pairs(COLOUR.sub("", line)) for _, line in source.lines())


def _pairs(line: str) -> tuple[str, list[tuple[str, str]]] | None:
    """The step of a line, and its names and values; None where it has none."""
    if (match := STEP.search(line)) and (pairs := PAIR.findall(match[2])):
        return match[1], pairs
    return None


def read(source: Source) -> LogTable:
    """The table: one row per line with a step; other lines are no part of the log."""
    found: list[tuple[int, str, dict[str, Cell]]] = []
    clocks = 0
    for line, text in source.lines():
        text = COLOUR.sub("", text)
        if not (said := _pairs(text)):
            continue
        record: dict[str, Cell] = {"step": said[0].replace(",", "")}
        for name, value in said[1]:
            name = " ".join(name.split())
            record.setdefault(name, value.replace(",", "") if THOUSANDS.fullmatch(value) else value.rstrip(","))
        if clock := CLOCK.search(text):
            record["time"] = clock[1]
            clocks += 1
        rank = RANK.search(text)
        found.append((line, rank[1] if rank else "", record))
    several = len({rank for _, rank, _ in found}) > 1
    kept = ("step", "time")
    rows = [
        (line, {name if name in kept or not several else f"rank{rank}/{name}": cell for name, cell in record.items()})
        for line, rank, record in found
    ]
    table = records(NAME, rows)
    return table if clocks == len(found) else table._replace(time=None)
