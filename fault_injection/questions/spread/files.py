"""What a map writes: the page, JSON, CSV, and the picture as SVG and PNG.

`map.json` comes last: where it is, all is.
"""

import csv
import io
import pathlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from ...campaign.box import box_dict
from ...faults.injection_file import format_injection
from ...machine.files import write_atomically, write_json, write_text
from ...runs.fault_map import FaultMap
from .heat_map import COLOURS, NONFINITE, bands, cells
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


def figure_of(found: FaultMap) -> Figure:
    """The picture for papers: the rows folded where there are many."""
    shown = bands(found.rows)
    colours = np.array([[cell.colour for cell in row] for row in cells(found, shown)])
    figure = Figure(figsize=(3.2 + 0.14 * len(found.steps), 0.9 + 0.115 * len(shown)), dpi=160, layout="constrained")
    axes = figure.subplots()
    palette = ListedColormap(["#ffffff", *COLOURS, NONFINITE])
    axes.imshow(colours, aspect="auto", cmap=palette, norm=BoundaryNorm(np.arange(-1.5, len(COLOURS) + 1), palette.N))
    axes.set_yticks(range(len(shown)), [band.label for band in shown], fontsize=5)
    axes.set_xlabel(f"steps after epoch {found.steps[0].epoch}, step {found.steps[0].step}", fontsize=7)
    axes.tick_params(axis="x", labelsize=6)
    for place in range(1, len(shown)):
        if shown[place].kind != shown[place - 1].kind:
            axes.axhline(place - 0.5, color="#888888", lw=0.5)
    for row, band in enumerate(shown):
        for one in band.rows:
            for step in found.struck.get(found.rows[one].name, ()):
                axes.plot(step, row, "s", ms=4, mfc="none", mec="#0072b2", mew=1.2)
    return figure


def write_map(found: FaultMap, title: str, out: pathlib.Path, commands: Sequence[str] = ()) -> None:
    """Write everything of a map to the folder `out`."""
    (out / "map.json").unlink(missing_ok=True)
    write_text(out / "map.html", page_of_map(found, title, commands))
    write_text(out / "map.csv", as_csv(found))
    figure = figure_of(found)
    for kind in ("svg", "png"):

        def save(file: BinaryIO, kind: str = kind) -> None:
            figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})

        write_atomically(out / f"map.{kind}", save)
    write_json(out / "map.json", as_json(found))
