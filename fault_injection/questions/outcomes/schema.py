"""The tables of a campaign's store, and what a row can say.

A sound row may say what this program never writes: by hand one can write anything.
"""

import json
import sqlite3
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

from ...campaign.store import Column, StoredTable
from ...faults.injection import ALL
from ...machine.reading import fits
from ...models.bits import width_of
from ...models.fault import Operand
from ...runs.outcome import OUTCOMES
from ...seam.measure import Measure
from .blocks import StoredBlock
from .conditions import Conditions
from .plan import Plan
from .result import Result

ALTERATIONS = "alterations"  # the table that stores made before 2026-11-24 do not have
COMPARISONS = "comparisons"  # the table that stores made before 2026-11-28 do not have
APART = (ALTERATIONS, "comparison")  # fields of a `Result` that are rows of those
GROUPS, GROUPED = "audit_groups", "grouped"  # the tables that stores made before 2026-11-29 do not have
BLOCKS = "blocks"  # of campaigns that want a width; the table that stores made before 2026-11-28 do not have
CURVE = 8  # bytes of a curve's row: loss and metric, float32
NOT_JSON = object()


def result_columns() -> dict[str, Column]:
    """The columns of a `Result`; what is in `APART` are rows of other tables."""
    columns = {}
    for field, kind in typing.get_type_hints(Result).items():
        if field in APART:
            continue
        null = isinstance(kind, types.UnionType)
        base = next(k for k in typing.get_args(kind) if k is not types.NoneType) if null else kind
        columns[field] = Column(base, null)
    return columns


TEXT, WHOLE, REAL = Column(str), Column(int), Column(float)
COLUMNS: dict[str, dict[str, Column]] = {
    "campaign": {"name": TEXT, "value": TEXT},
    "environments": {"id": TEXT, "description": TEXT},
    "events": {"number": WHOLE, "at": TEXT, "what": TEXT},
    "walks": {"number": WHOLE, "epoch": WHOLE, "steps": WHOLE, "seconds": REAL},
    "experiments": {**result_columns(), "key": TEXT, "environment": TEXT, "finished_at": TEXT},
    ALTERATIONS: {"key": TEXT, "number": WHOLE, "array": TEXT, "position": WHOLE, "before": WHOLE, "after": WHOLE},
    COMPARISONS: {"experiment": WHOLE, "settled_after": Column(int, null=True), "ended": WHOLE, "golden_steps": WHOLE},
    GROUPS: dict.fromkeys(("name", "members", "outcome", "rule"), TEXT)
    | dict.fromkeys(("epoch", "step", "steps"), WHOLE)
    | {"seconds": REAL},
    GROUPED: {"experiment": WHOLE, "name": TEXT, "alone": WHOLE},
    BLOCKS: {name: TEXT if at > 1 else WHOLE for at, name in enumerate(StoredBlock._fields)},
}
TABLES = {name: StoredTable(name, columns) for name, columns in COLUMNS.items()}


def parsed(text: str) -> Any:
    """What JSON says; `NOT_JSON` where it is none."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return NOT_JSON


def describes(kept: Any, kind: type[Conditions] | type[Measure]) -> bool:
    """Whether what was kept as JSON are the fields of a `kind`; of conditions an earlier version kept more."""
    try:
        known = typing.get_type_hints(kind) if kind is Conditions else kept.keys()
        fields: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item for name, item in kept.items() if name in known
        }
        value = kind(**fields)
    except (TypeError, AttributeError):
        return False
    typed = all(fits(getattr(value, name), hint) for name, hint in typing.get_type_hints(kind).items())
    return typed and (not isinstance(value, Measure) or value.better in ("higher", "lower"))


def is_comparison(row: sqlite3.Row) -> bool:
    """Whether a row of `COMPARISONS` is one that this program writes."""
    after, steps = row["settled_after"], row["golden_steps"]
    whole = all(type(number) is int and number >= 0 for number in (0 if after is None else after, steps))
    return whole and row["ended"] in (0, 1) and (after is not None or not row["ended"])


def is_group(row: sqlite3.Row, plan: Plan) -> bool:
    """Whether a row of `GROUPS` is one that this program writes."""
    members = parsed(row["members"])
    listed = isinstance(members, list) and len(members) > 1 and all(type(one) is int and one >= 0 for one in members)
    step = row["epoch"] in plan.epochs and 0 <= row["step"] < plan.steps_per_epoch
    return listed and step and row["outcome"] in OUTCOMES and row["steps"] > 0


def is_grouped(row: sqlite3.Row) -> bool:
    """Whether a row of `GROUPED` is one that this program writes."""
    return row["alone"] in (0, 1) and row["experiment"] >= 0


def wrong_column(plan: Plan) -> Callable[[sqlite3.Row], str | None]:
    """A function that names a column of an experiment of this plan that cannot be; None where all can."""
    columns, sites = COLUMNS["experiments"], plan.targets
    known: dict[str, Collection[object]] = {
        "model": {model.name for model in plan.models},
        "site": set(plan.sites),
        "operand": {operand.name.lower() for operand in Operand},
        "epoch": set(plan.epochs),
        "step": range(plan.steps_per_epoch),
        "worker": range(plan.owners) if plan.owners else [ALL],
        "outcome": set(OUTCOMES),
        "audit_outcome": {None, *OUTCOMES},
    }
    counted = [name for name, column in columns.items() if column.kind is int and name not in known]
    typed: set[tuple[type, ...]] = set()  # that of the rows so far, which are few

    def wrong_in(row: sqlite3.Row) -> str | None:
        types_of_row = tuple(map(type, row))
        if types_of_row not in typed:
            for name, column in columns.items():
                if not (column.null if row[name] is None else fits(row[name], column.kind)):
                    return name
            typed.add(types_of_row)
        for name, valid in known.items():
            if row[name] not in valid:
                return name
        if row["stage"] != (site := sites[row["site"]]).stage:
            return "stage"
        wide = width_of(site.operands[Operand[row["operand"].upper()]].dtype) > 32  # whose bits are signed
        for name in counted:
            if row[name] is not None and row[name] < 0 and not (wide and name in ("old_bits", "new_bits")):
                return name
        recorded = row["steps"] + row["audit_steps"]
        return None if recorded and len(row["curve"]) == CURVE * recorded else "curve"

    return wrong_in
