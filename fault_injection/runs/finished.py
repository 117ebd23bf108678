"""Replays that have ended: found by their results, listed, drawn together."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..faults.fault_rows import number_of
from ..machine.errors import InputError
from ..machine.files import DamagedFile, read_arrays, read_bounded
from ..seam.measure import Measure

MOST_CURVES = 8  # that a picture can show apart
LARGEST = 2**30  # bytes of a provenance, which has all elements that a fault struck


@dataclasses.dataclass(frozen=True)
class Finished:
    """A replay that has ended.

    Attributes:
      folder: its results.
      outcome: the verdict.
      summary: metrics at the end, or when it met a non-finite value.
      known: all of `outcome.json`.
      provenance: all of `provenance.json`.
    """

    folder: pathlib.Path
    outcome: str
    summary: str
    known: dict[str, Any]
    provenance: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        return {"folder": str(self.folder), **self.known, "fault": self.provenance["fault"]}


def find_finished(folders: Iterable[pathlib.Path]) -> list[Finished]:
    """The finished replays in folders and below them, in the order of their paths.

    Raises:
      InputError: a file is not what a replay writes; the message names it.
    """
    found = []
    for path in sorted({path for folder in folders for path in folder.rglob("outcome.json")}):
        known, provenance = (_read(file) for file in (path, path.with_name("provenance.json")))
        try:
            found.append(Finished(path.parent, known["outcome"], _summary(known), known, provenance))
            provenance["fault"]
        except (LookupError, TypeError, ValueError, AttributeError):
            raise InputError("is not what a replay writes", path) from None
    return found


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bounded(path, LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", path) from None
    if not isinstance(value, dict):
        raise InputError("is not what a replay writes", path)
    return value


def _summary(known: dict[str, Any]) -> str:
    final = known["final"]
    if known["first_nonfinite"] is not None:
        what = "loss" if known["thresholds"].get("nonfinite") == "loss" else "a value"
        end = f"{what} not finite {known['first_nonfinite']} step(s) after the fault"
    elif known["exactly_masked_after"] is not None:
        end = f"the golden state again {known['exactly_masked_after']} step(s) after the fault"
    elif final is None:
        end = "no epoch ended"
    else:
        of = ("train", "test")
        end = ", ".join(f"{part} {final['faulty'][part]:.3f} against {final['golden'][part]:.3f}" for part in of)
    first = known.get("first_nonfinite_state")
    end = end if known.get("struck", True) else f"nothing was struck; {end}"
    return end + (f"; {first['leaf']} not finite {first['steps']} step(s) after it" if first else "")


def draw_together(found: list[Finished], path: pathlib.Path) -> None:
    """Draw replays in one picture, beside the golden run that they share.

    Raises:
      InputError: there are none, too many, or their golden runs differ.
    """
    from .curves import draw_curves  # Matplotlib is slow to import

    if not 1 <= len(found) <= MOST_CURVES:
        raise InputError(f"{len(found)} replays, expected 1 to {MOST_CURVES} for one picture; name their folders")
    keys = {str(entry.provenance.get("golden_run")): entry.folder for entry in found}
    if len(keys) > 1:
        folders = " and ".join(map(str, list(keys.values())[:2]))
        raise InputError(f"{folders} have different golden runs; a picture shows replays of one")
    tables: dict[str, dict[str, np.ndarray]] = {}
    golden: dict[str, np.ndarray] = {}
    fault_at: dict[str, tuple[float, ...]] = {}
    for entry in found:
        try:
            columns = read_arrays(entry.folder / "record.npz")
        except (OSError, DamagedFile) as error:
            raise InputError(str(error)) from None
        name = entry.folder.name
        try:
            tables[name] = _part(columns, "faulty")
            # The golden run as far as the longest of them goes.
            golden = max(golden, _part(columns, "golden"), key=lambda table: len(table.get("steps/loss", ())))
            steps = int(golden["steps/step"].max()) + 1
            at = dict(line.split(",", 1) for line in entry.provenance["injection"] if "," in line)
            epochs = [key for key in at if number_of(key)[0] == "target_epoch"]  # one of each fault
            fault_at[name] = tuple(int(at[key]) + int(at[key.replace("epoch", "step")]) / steps for key in epochs)
            if not fault_at[name]:
                raise LookupError
            measure = Measure(**entry.known["measure"])
        except (LookupError, TypeError, ValueError, AttributeError):
            raise InputError("is not what a replay writes", entry.folder) from None
    draw_curves(path, f"{len(found)} replays", golden, tables, fault_at, steps, measure)


def _part(columns: dict[str, np.ndarray], run: str) -> dict[str, np.ndarray]:
    prefix = f"{run}/"
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
