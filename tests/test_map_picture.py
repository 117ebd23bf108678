"""The picture of a map for papers shows each cell in its colour, frames what is struck, and says what it shows."""

import itertools
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, Rectangle

from fault_injection.questions.spread.figure import FRAME, figure_of, write_pictures
from fault_injection.questions.spread.heat_map import bands
from fault_injection.questions.spread.sentences import answers
from fault_injection.runs.fault_map import FaultMap, MapRow
from fault_injection.runs.steps import Address


def drawn_map(seed, rows=12, steps=7):
    """A map of made-up numbers: some cells without a difference, some not finite, all magnitudes."""
    rng = np.random.default_rng(seed)
    each = [1, *rng.multinomial(rows - 2, [0.3, 0.7])]
    kinds = ["forward"] * each[1] + ["loss"] * each[0] + ["parameter"] * (rows - 1 - each[1])
    named = tuple(MapRow(f"{kind}:m/layer_{i}/kernel", kind, f"layer_{i}", 100) for i, kind in enumerate(kinds))
    differs = rng.integers(0, 2, (rows, steps)) * rng.integers(1, 100, (rows, steps))
    rms = np.where(differs > 0, 10.0 ** rng.integers(-9, 5, (rows, steps)), 0.0)
    lost = np.where(differs > 0, rng.integers(0, 4, (rows, steps)) == 3, 0).astype(np.int64)
    ones, none = np.ones((rows, steps)), np.zeros((rows, steps), np.int64)
    at = tuple(Address(1, 4 + step) for step in range(steps))
    struck = {named[0].name: (0, 3)}
    losses = np.stack([np.full(steps, 1.0), np.full(steps, 1.001)])
    return FaultMap(None, named, at, struck, differs, lost, none, rms, rms, ones, ones, losses, "", ())


def expected(found, row, step):
    """The colour of a cell, from the words of the documentation and the numbers of the map."""
    if found.nonfinite[row, step]:
        return "#000000"
    if not found.differs[row, step]:
        return None
    bounds = [1e-6, 1e-4, 1e-2, 1e-1, 1, 100]
    colours = ["#fde9c9", "#fdd49e", "#fdbb84", "#fc8d59", "#e34a33", "#b30000", "#6a0010"]
    return colours[int(np.searchsorted(bounds, found.rms[row, step], side="right"))]


@pytest.mark.parametrize("seed", range(5))
def test_each_cell_has_its_colour_and_what_is_struck_its_frame(seed):
    found = drawn_map(seed)
    axes = figure_of(found).axes[0]
    paths = [one for one in axes.patches if isinstance(one, PathPatch)]
    for row in range(len(found.rows)):
        for step in range(len(found.steps)):
            inside = [to_hex(one.get_facecolor()) for one in paths if one.get_path().contains_point((step, row))]
            assert inside == [colour for colour in [expected(found, row, step)] if colour], (row, step)
    frames = [one for one in axes.patches if isinstance(one, Rectangle) and to_hex(one.get_edgecolor()) == FRAME]
    assert {(*one.get_center(),) for one in frames} == {(0, 0), (3, 0)}


def test_what_is_struck_has_a_row_of_its_own_and_a_layer_is_one_row_whatever_the_roles():
    names = [(role, f"block_{b}/dense_{d}") for b in range(9) for d in range(5) for role in ("grad_in", "grad_wt")]
    rows = [MapRow(f"{role}:m/{layer}", "backward", f"m/{layer}", 9) for role, layer in names]
    struck = rows[37].name
    shown = bands(rows, 11, {struck})
    assert [place for band in shown for place in band.rows] == list(range(len(rows)))
    assert [band.label for band in shown if 37 in band.rows] == [struck]
    assert [len(band.rows) for band in shown] == [10, 10, 10, 7, 1, 2, 10, 10, 10, 10, 10]


@pytest.mark.parametrize("rows, steps", [(3, 1), (12, 7), (300, 21)])
def test_no_text_of_a_picture_covers_another_or_a_cell(rows, steps):
    found = drawn_map(0, rows, steps)
    figure = figure_of(found)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    names = [one.get_window_extent() for one in axes.get_yticklabels()]
    assert len(names) <= 80
    kinds = [one.get_window_extent() for one in axes.texts]
    below = [axes.xaxis.label.get_window_extent(), axes.get_legend().get_window_extent()]
    cells = axes.get_window_extent()
    for column in (names, kinds, below):
        for above, under in itertools.pairwise(column):
            assert above.y0 >= under.y1 - 0.2 * under.height
    assert all(one.x1 <= cells.x0 for one in names) and all(one.x0 >= cells.x1 for one in kinds)
    assert all(one.y1 <= cells.y0 for one in below)


def test_a_picture_is_small_and_says_in_words_what_it_shows(tmp_path):
    found = drawn_map(1, 80, 21)
    write_pictures(found, "a map", tmp_path)
    written = (tmp_path / "map.svg").read_bytes()
    root = ET.fromstring(written)
    said = [one.text for one in root.iter() if one.tag.endswith("}description")]
    assert said == [" ".join(one.sentence for one in answers(found))]
    texts = {one.text for one in root.iter() if one.tag.endswith("}text")}
    assert {row.name for row in found.rows} <= texts and "no bit differs" in texts
    assert b"<image" not in written and len(written) < 150_000
    with matplotlib.rc_context({"font.size": 22, "svg.fonttype": "path"}):  # of the person who runs it
        write_pictures(found, "a map", tmp_path)
    assert (tmp_path / "map.svg").read_bytes() == written
