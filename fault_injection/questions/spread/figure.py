"""The picture of a map for papers and READMEs: it needs no page, is sharp at any size, and says in words what it shows.

Cells of one colour are one path, and neighbours in a row one rectangle of it, so the SVG of a map of 80 rows has some
ten kilobytes.  Its text is text: it can be searched, and takes no room for the shapes of letters.
"""

import itertools
import pathlib
from typing import Any, BinaryIO

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from ...machine.files import write_atomically
from ...runs.fault_map import FaultMap
from .heat_map import COLOURS, NONFINITE, bands, cells, meanings, short
from .sentences import answers

STYLE: Any = {
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # which are as wide: what is measured in one fits in the other
    "svg.fonttype": "none",
    "svg.hashsalt": "map",  # the same map is the same file
}
ROW, STEP, KEYS = 0.115, 0.14, 0.42  # inches: a cell's height and width, and how far below what colours mean is said
NAMES, FRAME = 6, "#0072b2"  # points of a row's name; colour of the frame around what is struck


def figure_of(found: FaultMap) -> Figure:
    """The picture: rows are tensors, folded where there are many; columns are steps.

    Names and what colours mean stand beside the figure, which is only as large as its cells: save it with
    `bbox_inches="tight"`.
    """
    shown = bands(found.rows, alone=found.struck)
    names, height = [short(band.label) for band in shown], ROW * len(shown)
    figure = Figure(figsize=(STEP * len(found.steps), height), dpi=160)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, len(found.steps) - 0.5), ylim=(len(shown) - 0.5, -0.5))
    colours = np.array([[cell.colour for cell in row] for row in cells(found, shown)])
    for place, colour in enumerate((*COLOURS, NONFINITE)):
        if (colours == place).any():
            axes.add_patch(PathPatch(_path(colours == place), facecolor=colour, lw=0, antialiased=False))
    axes.set_yticks(range(len(shown)), names, fontsize=NAMES)
    axes.tick_params(axis="y", left=False)
    axes.tick_params(axis="x", labelsize=NAMES)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"steps after epoch {found.steps[0].epoch}, step {found.steps[0].step}", fontsize=7)
    for place, band in enumerate(shown):
        if not place or band.kind != shown[place - 1].kind:
            axes.annotate(
                band.kind,
                (1, place),
                (4, 0),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                va="center",
                fontsize=NAMES,
                color="#555555",
            )
            axes.axhline(place - 0.5, color="#888888", lw=0.5)
        for step in {step for one in band.rows for step in found.struck.get(found.rows[one].name, ())}:
            frame = Rectangle((step - 0.5, place - 0.5), 1, 1, fill=False, edgecolor=FRAME, lw=1.5, clip_on=False)
            axes.add_patch(frame).set_zorder(3)
            axes.get_yticklabels()[place].set_fontweight("bold")
    said = [("#ffffff", "no bit differs"), *meanings()]
    keys = [Patch(facecolor=colour, edgecolor="#888888", lw=0.4, label=text) for colour, text in said]
    keys.append(Patch(facecolor="none", edgecolor=FRAME, lw=1.5, label="struck"))
    title = "difference, relative to the golden tensor (root mean square)"
    axes.legend(
        handles=keys,
        loc="upper center",
        bbox_to_anchor=(0.5, -KEYS / height),
        ncols=3,
        fontsize=NAMES,
        title=title,
        title_fontsize=7,
        frameon=False,
    )
    return figure


def _path(cells: np.ndarray) -> Path:
    """The outline of cells, bool [rows,columns]: one rectangle for neighbours in a row."""
    corners, codes = [], [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for row, columns in enumerate(cells):
        left = 0
        for inside, run in itertools.groupby(columns):
            right = left + len([*run])
            if inside:
                x, X, y, Y = left - 0.5, right - 0.5, row - 0.5, row + 0.5
                corners += [(x, y), (X, y), (X, Y), (x, Y), (x, y)]
            left = right
    return Path(corners, codes * (len(corners) // len(codes)))


def write_pictures(found: FaultMap, title: str, out: pathlib.Path) -> None:
    """Write `map.svg`, which also has the sentences as its description, and `map.png` to the folder `out`."""
    said = " ".join(one.sentence for one in answers(found))
    about: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": None, "Title": title, "Description": said},
        "png": {"Software": None},
    }
    with matplotlib.rc_context(STYLE):
        figure = figure_of(found)
        for kind, metadata in about.items():

            def save(file: BinaryIO, kind: str = kind, metadata: dict[str, Any] = metadata) -> None:
                figure.savefig(file, format=kind, metadata=metadata, bbox_inches="tight", pad_inches=0.05)

            write_atomically(out / f"map.{kind}", save)
