"""The page of a map, as one HTML file that needs nothing beside it."""

from collections.abc import Sequence

from ...campaign.page import Cell, Commands, Picture, Section, Table, element, joined_markup, page, wide
from ...campaign.wording import number
from ...runs.fault_map import FaultMap
from .heat_map import MOST_ROWS, heat_map, legend
from .sentences import answers, share


def page_of_map(found: FaultMap, title: str, commands: Sequence[str] = ()) -> str:
    """The whole page: the answer, the picture, the rows with their first steps, how it was made.

    Args:
      commands: that made it, and others that a reader may want.
    """
    sections = [
        _map(found),
        Section("rows", "Rows", (), [Table("", "When each tensor first differs, and how much.", _rows(found))]),
        Section("left_out", "Not shown", found.left_out, without="" if found.left_out else "nothing is left out"),
    ]
    if commands:
        made = Commands("These commands make it, and the replay of the same file:", commands)
        sections.append(Section("made", "How it was made", (), [made]))
    return page(title, answers(found), sections, {})


def _map(found: FaultMap) -> Section:
    last, many = len(found.steps) - 1, len(found.rows) > MOST_ROWS
    slider = element("input", type="range", min="0", max=str(last), value=str(last), aria_label="last step shown")
    button = element("button", "Play", type="button")
    play = element("div", button, " steps 0 to ", element("output", str(last)), slider, class_="play")
    pictures = [wide(heat_map(found), "Map")]
    if many:
        whole = wide(heat_map(found, most=len(found.rows)), "Map of all tensors")
        unfold = f"Unfold: all {len(found.rows)} tensors, one row each"
        pictures.append(element("details", element("summary", unfold), whole))
    text = [
        found.injection.sentence(),
        "Each row is a tensor of the training step, in the order in which the step computes it: the forward pass, the "
        "loss, the backward pass, gradients, then the state after the step. Each column is a step. A cell is empty "
        "where all bits are those of the golden run. Its colour is the root-mean-square difference, divided by the "
        "root mean square of the golden tensor; of elements that are finite in both. Point at a cell for the share of "
        "elements that differ. The blue frame is where the fault strikes.",
    ]
    if many:
        text.append(
            f"The {len(found.rows)} rows are folded by layer, or by what names of layers begin with: a cell shows the "
            "tensor that differs most."
        )
    caption = f"Differences to the golden run over {last + 1} steps, relative to each tensor."
    drawn = joined_markup([legend(), play, *pictures])
    return Section("map", "Map", text, [Picture("", caption, "Rows of tensors, columns of steps.", drawn)])


def _rows(found: FaultMap) -> list[dict[str, Cell]]:
    """When each row first differs, and how much in that step and in the last."""
    last, relative, shares = len(found.steps) - 1, found.relative_rms, found.share
    rows: list[dict[str, Cell]] = []
    for place, row in enumerate(found.rows):
        first = found.first(place)
        then = {} if first is None else {"then": first, "last": last}
        cells: dict[str, Cell] = {"tensor": row.name, "kind": row.kind, "elements": row.size, "first step": first}
        for when in ("then", "last"):
            step = then.get(when)
            cells[f"differ {when}"] = "" if step is None else share(shares[place, step])
            cells[f"relative {when}"] = "" if step is None else number(relative[place, step])
        rows.append(cells)
    return rows
