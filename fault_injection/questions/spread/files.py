"""What a map writes: the page, JSON, CSV, and the picture as SVG and PNG.

`map.json` comes last: where it is, all is.
"""

import csv
import io
import pathlib
from collections.abc import Sequence
from typing import Any

from ...campaign.box import box_dict
from ...faults.injection_file import format_injection
from ...machine.files import write_json, write_text
from ...runs.fault_map import FaultMap
from .figure import write_pictures
from .page import page_of_map
from .sentences import answers

FIELDS = ("differs", "share", "nonfinite", "golden_nonfinite", "largest", "relative_largest", "rms", "relative_rms")


def as_json(found: FaultMap) -> dict[str, Any]:
    """A map as JSON values: its rows, each with its numbers step by step."""
    fields = (*FIELDS, "golden_largest", "golden_rms") + (() if found.twin is None else ("twin",))
    numbers = {name: getattr(found, name) for name in fields}
    rows = []
    for place, row in enumerate(found.rows):
        first = found.first(place)
        rows.append({**row._asdict(), "first": first, **{name: each[place].tolist() for name, each in numbers.items()}})
    return {
        "injection": format_injection(found.injection).splitlines(),
        "sentence": found.injection.sentence(),
        "summary": box_dict(answers(found)),
        "steps": [at._asdict() for at in found.steps],
        "struck": {name: list(places) for name, places in found.struck.items()},
        "loss": {"golden": found.loss[0].tolist(), "faulty": found.loss[1].tolist()},
        "ended": found.ended,
        "left_out": list(found.left_out),
        "rows": rows,
    }


def as_csv(found: FaultMap) -> str:
    """A map as a table: one line a tensor and step."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("tensor", "kind", "layer", "elements", "epoch", "step", "after", *FIELDS))
    numbers = [getattr(found, name) for name in FIELDS]
    for place, row in enumerate(found.rows):
        for step, at in enumerate(found.steps):
            values = (each[place, step].item() for each in numbers)
            writer.writerow((row.name, row.kind, row.layer, row.size, at.epoch, at.step, step, *values))
    return file.getvalue()


def write_map(found: FaultMap, title: str, out: pathlib.Path, commands: Sequence[str] = ()) -> None:
    """Write everything of a map to the folder `out`."""
    (out / "map.json").unlink(missing_ok=True)
    write_text(out / "map.html", page_of_map(found, title, commands))
    write_text(out / "map.csv", as_csv(found))
    write_pictures(found, title, out)
    write_json(out / "map.json", as_json(found))
