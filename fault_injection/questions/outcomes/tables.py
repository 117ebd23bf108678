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
from .standing import outcome_rates
from .store import Store

TABLES = ("experiments", "alterations", "comparisons", "environments", "events", "walks")
FORMATS = ("csv", "parquet")


def write_tables(store: Store, out: pathlib.Path, form: str) -> list[pathlib.Path]:
    """Write the campaign's tables to `out`; a curve becomes two lists, `loss` and `metric`.

    The rates of outcomes, with their intervals, are a table of their own.

    Args:
      form: one of `FORMATS`.  In CSV a list is JSON.

    Returns:
      The files written.

    Raises:
      InputError: PyArrow is not installed, which Parquet needs.
    """
    write = _write_csv if form == "csv" else _parquet_writer()
    written = []
    for name in filter(store.tables.__contains__, TABLES):
        rows = [dict(row) for row in store.query(f"SELECT * FROM {name}")]
        for row in rows:
            if "curve" in row:
                row["loss"], row["metric"] = np.frombuffer(row.pop("curve"), "<f4").reshape(-1, 2).T.tolist()
        path = out / f"{name}.{form}"
        write(path, rows)
        written.append(path)
    outcomes, not_masked = outcome_rates(store, store.plan())
    rates = outcomes | ({"not masked, of the decided": not_masked} if not_masked else {})
    written.append(out / f"rates.{form}")
    write(written[-1], [{"outcome": name, **rate._asdict()} for name, rate in rates.items()])
    return written


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
