"""Which rows describe which fault of an injection file: a second one's end in `.2`, a third one's in `.3`."""

import re

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import SHOWN
from ..seam.workload import Workload
from .rows import Row, Rows

# Rows of the fault in the published order; two options of every workload follow them.
FAULT_ROWS = (
    *("model", "stage", "fmodel", "target_worker", "target_layer", "target_epoch", "target_step"),
    *("inj_pos", "inj_values"),
)
OF_OPERATIONS = ("stage", "fmodel", "target_worker", "target_layer")  # for which `target` stands, of the state
OWN_ROWS = ("target", "profile", "inj_lane", "inj_bits", "schedule", "horizon", "nonfinite")  # ours, optional
SAID_BY_PROFILE = ("stage", "fmodel", "target", "inj_pos", "inj_values", "inj_lane", "inj_bits")  # or by the operation
INSTEAD = {"inj_pos": "inj_lane", "inj_values": "inj_bits"}  # a row that can replace a published one
OF_THE_RUN = ("model", "horizon", "nonfinite")  # which all faults of a file share, as they do the workload's options
OF_ONE_FAULT = tuple(key for key in (*FAULT_ROWS, *OWN_ROWS) if key not in OF_THE_RUN)
AS_FIRST = ("target_epoch", "target_step")  # of a further fault, where it does not say otherwise
SUFFIXED = re.compile(r"(?P<key>.+)\.(?P<number>[0-9]+)")


def number_of(key: str) -> tuple[str, int]:
    """A row's key without suffix, and the number of the fault that the row describes.

    >>> number_of("inj_pos.12"), number_of("inj_pos"), number_of("inj_pos.b")
    (('inj_pos', 12), ('inj_pos', 1), ('inj_pos.b', 1))
    """
    found = SUFFIXED.fullmatch(key)
    return (found["key"], int(found["number"][:9])) if found else (key, 1)


def rows_of_faults(listed: list[Row], path: object, workload: Workload) -> list[Rows]:
    """The rows of each fault by their keys without suffix, those that all share among them; none required is missing.

    Raises:
      InputError: a row is unknown, given twice, or missing.
    """
    known = (*FAULT_ROWS, *workload.REQUIRED, *OWN_ROWS, *workload.OPTIONS)
    faults: dict[int, dict[str, Row]] = {1: {}}
    for row in listed:
        key, number = (row.key, 1) if row.key in known else number_of(row.key)
        if key not in known:
            hint = did_you_mean(key, known) or f"; expected one of {', '.join(known)}"
            raise InputError(f"unknown key {row.key[:SHOWN]!r}{hint}", path, row.line)
        if key != row.key and key not in OF_ONE_FAULT:
            what = f"{row.key[:SHOWN]}: all faults of a file share the row {key}"
            raise InputError(f"{what}; write it without a suffix", path, row.line)
        if row.key != key and row.key != f"{key}.{max(number, 2)}":
            what = f"{row.key[:SHOWN]}: the first fault's rows have no suffix"
            raise InputError(f"{what}, a second one's end in .2, a third one's in .3", path, row.line)
        rows = faults.setdefault(number, {})
        if key in rows:
            raise InputError(f"{row.key} is given twice, first in line {rows[key].line}", path, row.line)
        rows[key] = row
    for number in sorted(faults)[1:]:
        if number - 1 not in faults:
            row = next(iter(faults[number].values()))
            what = f"{row.key} is of fault {number}, and no row is of fault {number - 1}"
            raise InputError(f"{what}; expected the suffixes .2, .3 and so on, none left out", path, row.line)
    first = faults.pop(1)
    _check_complete(first, path, workload)
    found = [Rows(path, first)]
    shared = {key: row for key, row in first.items() if key not in OF_ONE_FAULT or key in AS_FIRST}
    for number in sorted(faults):
        _check_complete(shared | faults[number], path, workload, f".{number}")
        found.append(Rows(path, shared | faults[number]))
    return found


def _check_complete(rows: dict[str, Row], path: object, workload: Workload, suffix: str = "") -> None:
    """Refuse rows of one fault of which one is missing, or two exclude each other."""
    of_leaf = "target" in rows
    for key in OF_OPERATIONS if of_leaf else ():
        if key in rows and key != "target_worker":
            what = f"{rows[key].key} does not go with the row {rows['target'].key}: a leaf is struck, not an operation"
            raise InputError(f"{what}; leave out one", path, rows[key].line)
    of_profile = (*SAID_BY_PROFILE, "target_layer", "target_worker") if "profile" in rows else ()
    for key in SAID_BY_PROFILE if of_profile else ():
        if key in rows:
            what = f"{rows[key].key} does not go with the row {rows['profile'].key}, which says what is struck"
            raise InputError(f"{what}; leave out one", path, rows[key].line)
    for key in (*FAULT_ROWS, *workload.REQUIRED):
        if key in of_profile:
            continue
        if of_leaf and key in OF_OPERATIONS:
            continue
        other = INSTEAD.get(key, key)
        if key not in rows and other not in rows:
            missing = f"no row '{key}{suffix},…'"
            raise InputError(missing + (f" (or '{other}{suffix},…')" if other != key else ""), path)
    if "inj_pos" in rows and "inj_lane" in rows:
        lane, pos = rows["inj_lane"], rows["inj_pos"]
        raise InputError(f"{lane.key} says which elements are struck, and so does {pos.key}", path, lane.line)
