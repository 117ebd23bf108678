"""The text of Megatron-LM, Megatron-DeepSpeed and NeMo's Megatron: `iteration 10/ 100 | lm loss: 2.1E+00 | …`."""

import re

from .cells import Cell
from .source import Source
from .table import LogTable, records

NAME = "Megatron text"
LINE = re.compile(r"(?:^|\s)iteration\s+([0-9]{1,15})\s*/\s*[0-9]+\s*\|(.*)")
CLOCK = re.compile(r"\[?\s*([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)")
VALUE = re.compile(r"[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|nan|inf(?:inity)?)(?=$|[\s%])", re.IGNORECASE)


def fits(source: Source) -> bool:
    """Whether a line of the beginning, or any line, says an iteration."""
    return any(LINE.search(line) for line in source.beginning) or LINE.search(source.text) is not None


def read(source: Source) -> LogTable:
    """The table: one row per line of an iteration; other lines are no part of the log."""
    found: list[tuple[int, dict[str, Cell]]] = []
    clocks = 0
    for line, text in source.lines():
        match = LINE.search(text)
        if not match:
            continue
        record: dict[str, Cell] = {"iteration": match[1]}
        if clock := CLOCK.search(text[: match.start(1)]):
            record["time"] = clock[1]
            clocks += 1
        for part in match[2].split("|"):
            name, colon, value = part.rpartition(":")
            said = VALUE.match(value.strip())
            if colon and name.strip() and (said or not value.strip()):
                record[" ".join(name.split())] = said[0] if said else None
            elif colon and name.strip():
                record[" ".join(name.split())] = value.strip()  # no number: a wrong cell of this column
        found.append((line, record))
    table = records(NAME, found)
    return table if clocks == len(found) else table._replace(time=None)
