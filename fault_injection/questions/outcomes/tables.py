"""The tables of a campaign's store, for other tools."""

import csv
import functools
import io
import json
import pathlib
from typing import Any

import numpy as np

from ...machine.errors import InputError
from ...machine.files import write_atomically, write_text
from .answer import answer_of
from .standing import outcome_rates
from .store import Store
from .strata import divided

TABLES = ("experiments", "alterations", "comparisons", "audit_groups", "grouped", "environments", "events", "walks")
FORMATS = ("csv", "parquet")


def write_tables(store: Store, out: pathlib.Path, form: str) -> list[pathlib.Path]:
    """Write the campaign's tables to `out`; a curve becomes two lists, `loss` and `metric`.

    The rates of outcomes, with their intervals, are a table of their own.  Experiments of a campaign that wants a width
    have their stratum beside them, its weight, and the chance with which it was drawn.

    Args:
      form: one of `FORMATS`.  In CSV a list is JSON.

    Returns:
      The files written.

    Raises:
      InputError: PyArrow is not installed, which Parquet needs.
    """
    write = _write_csv if form == "csv" else _parquet_writer()
    written, drawn = [], _drawn(store)
    for name in filter(store.tables.__contains__, TABLES):
        rows = [dict(row) for row in store.query(f"SELECT * FROM {name}")]
        for row in rows:
            if "curve" in row:
                row["loss"], row["metric"] = np.frombuffer(row.pop("curve"), "<f4").reshape(-1, 2).T.tolist()
            if name == "experiments" and drawn:
                row |= drawn[row["number"]]
        path = out / f"{name}.{form}"
        write(path, rows)
        written.append(path)
    written.append(out / f"rates.{form}")
    write(written[-1], _rates(store))
    return written


def _rates(store: Store) -> list[dict[str, Any]]:
    plan = store.plan()
    if plan is not None and plan.wanted is not None:
        answer = answer_of(store, plan)
        return [one.as_dict() for one in answer.rates()] if answer.experiments else []
    outcomes, not_masked = outcome_rates(store, plan)
    rates = outcomes | ({"not masked, of the decided": not_masked} if not_masked else {})
    return [{"outcome": name, **rate._asdict()} for name, rate in rates.items()]


def _drawn(store: Store) -> dict[int, dict[str, Any]]:
    """Of a campaign that wants a width, by the number of an experiment: its stratum, and what weighs it.

    Over the experiments of a block the mean of weight / chance · y estimates the sum of weight · y of the strata with a
    chance, whatever y is.
    """
    plan, found = store.plan(), {}
    for block in store.blocks():
        assert plan is not None
        division = divided(plan)
        for number, stratum in zip(block.numbers, block.strata, strict=True):
            weight, chance = division.strata[stratum].weight, block.chances[stratum]
            named = {"block": block.number, "stratum": division.title(stratum)}
            found[number] = {**named, "weight": weight, "chance": chance}
    return found


def _write_csv(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    for row in rows:
        writer.writerow(json.dumps(cell) if isinstance(cell, list) else cell for cell in row.values())
    write_text(path, text.getvalue())


def _parquet_writer() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "pip install 'fault-injection[parquet]', or export as CSV with --format csv"
        raise InputError(f"Parquet tables need PyArrow: {hint}") from None

    def write(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
        table = pyarrow.Table.from_pylist(rows)
        write_atomically(path, functools.partial(pyarrow.parquet.write_table, table))

    return write
