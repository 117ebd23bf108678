"""The page of a map, as one HTML file that needs nothing beside it."""

from collections.abc import Sequence

from ...campaign.page import STYLE, Markup, element, joined_markup
from ...runs.fault_map import FaultMap
from .heat_map import MOST_ROWS, heat_map, legend
from .sentences import number, sentences, share

MORE_STYLE = """
.map { overflow-x: auto } .map svg { max-width: none } .keys { font-size: .8rem }
.key { display: inline-block; margin-right: .9rem; white-space: nowrap }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; border: 1px solid var(--line) }
.play { display: none } .play input { width: 14rem; vertical-align: middle }
@media print {
  .map { overflow: visible } .map svg { max-width: 100%; height: auto } .play { display: none !important }
}
"""
# Shows the steps up to one; without scripts all of them are shown.
SCRIPT = """
for (const box of document.querySelectorAll('.play')) {
  const [button, range] = [box.querySelector('button'), box.querySelector('input')];
  const groups = document.querySelectorAll('g.step'), said = box.querySelector('output');
  const show = () => { said.value = range.value;
    for (const g of groups) g.style.opacity = +g.dataset.step <= +range.value ? 1 : .06; };
  let timer = 0;
  range.oninput = show;
  button.onclick = () => { clearInterval(timer); range.value = 0; show();
    timer = setInterval(() => { if (+range.value >= +range.max) return clearInterval(timer);
      range.value = +range.value + 1; show(); }, 450); };
  box.style.display = 'block'; show();
}
"""


def page_of_map(found: FaultMap, title: str, commands: Sequence[str] = ()) -> str:
    """The whole page: the sentences, the picture, the rows with their first steps, how it was made.

    Args:
      commands: that made it, and others that a reader may want.
    """
    last = len(found.steps) - 1
    slider = element("input", type="range", min="0", max=str(last), value=str(last), aria_label="last step shown")
    slider = Markup(slider.removesuffix("</input>"))
    play = element("p", element("button", "Play", type="button"), " steps 0 to ", element("output", str(last)), slider)
    many = len(found.rows) > MOST_ROWS
    pictures = [
        element("div", heat_map(found, folded=many), class_="map", tabindex="0", role="region", aria_label="Map")
    ]
    if many:
        whole = element("div", heat_map(found, folded=False), class_="map")
        text = f"Unfold: all {len(found.rows)} tensors, one row each"
        pictures.append(element("details", element("summary", text), whole))
    explained = (
        "Each row is a tensor of the training step, in the order in which the step computes it: the forward pass, the "
        "loss, the backward pass, gradients, then the state after the step. Each column is a step. A cell is empty "
        "where all bits are those of the golden run. Its colour is the root-mean-square difference, divided by the "
        "root mean square of the golden tensor; of elements that are finite in both. Point at a cell for the share of "
        "elements that differ. The blue frame is where the fault strikes."
    )
    if many:
        explained += f" The {len(found.rows)} rows are folded by layer: a cell shows the tensor that differs most."
    body = [
        element("h1", title),
        element(
            "section",
            element("h2", "Summary"),
            element("ul", *(element("li", each) for each in sentences(found))),
            class_="summary",
        ),
        element("p", found.injection.sentence()),
        element(
            "section",
            element("h2", "Map"),
            element("p", explained),
            legend(),
            Markup(play.replace("<p>", '<p class="play">', 1)),
            *pictures,
        ),
        element("section", element("h2", "Rows"), _rows(found)),
    ]
    if found.left_out:
        left = element("ul", *(element("li", each) for each in found.left_out))
        body.append(element("section", element("h2", "Not shown"), left))
    if commands:
        body.append(element("section", element("h2", "How it was made"), element("pre", "\n".join(commands))))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE + MORE_STYLE)),
    )
    script = element("script", Markup(SCRIPT))
    whole = element("html", head, Markup("\n"), element("body", joined_markup([*body, script], "\n")), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _rows(found: FaultMap) -> Markup:
    """The table of rows: when each first differs, and how much in that step and in the last."""
    columns = (
        "tensor",
        "kind",
        "elements",
        "first step",
        "differ then",
        "relative then",
        "differ last",
        "relative last",
    )
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    body = []
    relative, shares = found.relative_rms, found.share
    for place, row in enumerate(found.rows):
        cells = ["", "", "", "", ""]
        if (first := found.first(place)) is not None:
            at = (first, len(found.steps) - 1)
            cells = [
                str(first),
                *(text for step in at for text in (share(shares[place, step]), number(relative[place, step]))),
            ]
        numbers = [element("td", cell, class_="number") for cell in (f"{row.size:,}", *cells)]
        body.append(element("tr", element("th", row.name, scope="row"), element("td", row.kind), *numbers))
    table = element("table", element("thead", head), element("tbody", joined_markup(body, "\n")))
    scrolled = element("div", table, class_="scroll", tabindex="0", role="region", aria_label="Rows")
    return element("details", element("summary", f"Show {len(found.rows):,} rows"), scrolled)
