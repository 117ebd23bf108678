"""Matplotlib's SVG as an element of a page: in the page's colours, and with marks that tell what they stand for."""

import hashlib
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.artist import Artist

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
INK = "#010203"  # what is drawn in it has the colour of the page's text, in the light and in the dark
TOLD = "told "
REFERENCE = re.compile(r"url\(#([^)]+)\)")


class Mark(NamedTuple):
    """What a mark of a figure stands for.

    Attributes:
      said: shown under the pointer.
      experiment: shown at a click; None where it stands for no single one.
    """

    said: str
    experiment: int | None = None


def tell(artist: Artist, marks: Sequence[Mark]) -> None:
    """Say what an artist stands for: each of its markers, or all of it if there is one mark alone."""
    artist.set_gid(TOLD + json.dumps(marks))


def page_svg(text: str, alt: str) -> str:
    """What Matplotlib wrote, as an element for a page.

    Args:
      text: of the file.
      alt: what a reader who cannot see it is told.
    """
    root = ET.fromstring(text.replace(INK, "currentColor"))
    for above in list(root.iter()):
        for child in list(above):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                above.remove(child)
    for group in list(root.iter(f"{{{SVG}}}g")):
        if (key := group.get("id", "")).startswith(TOLD):
            _told(group, [Mark(*one) for one in json.loads(key.removeprefix(TOLD))])
    _named(root, hashlib.sha256(text.encode()).hexdigest()[:8])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib = {"xmlns": SVG, "role": "img", "aria-label": alt} | root.attrib
    for each in root.iter():
        each.tag = each.tag.rpartition("}")[2]
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)


def _told(group: ET.Element, marks: Sequence[Mark]) -> None:
    markers = [
        (above, at, each) for above in group.iter() for at, each in enumerate(above) if each.tag.endswith("}use")
    ]
    if len(markers) != len(marks):
        _tell(group, marks[0])
        return
    for (above, at, each), mark in zip(markers, marks, strict=True):
        above[at] = ET.Element(f"{{{SVG}}}g")
        above[at].append(each)
        _tell(above[at], mark)


def _tell(group: ET.Element, mark: Mark) -> None:
    title = ET.Element(f"{{{SVG}}}title")
    title.text = mark.said
    group.insert(0, title)
    group.set("class", "told")
    if mark.experiment is not None:
        group.set("data-experiment", str(mark.experiment))


def _named(root: ET.Element, prefix: str) -> None:
    """Keep the names that something refers to, and make them the figure's own: a page has several figures."""
    refers = {value[1:] for each in root.iter() if (value := each.get(f"{{{XLINK}}}href", ""))}
    refers |= {found for each in root.iter() for value in each.attrib.values() for found in REFERENCE.findall(value)}
    for each in root.iter():
        if (key := each.attrib.pop("id", None)) in refers:
            each.set("id", f"{prefix}-{key}")
        if (link := each.attrib.pop(f"{{{XLINK}}}href", None)) is not None:
            each.set("href", f"#{prefix}-{link[1:]}")
        for name, value in each.attrib.items():
            each.set(name, REFERENCE.sub(rf"url(#{prefix}-\1)", value))
