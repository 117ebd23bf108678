"""An extension of griffe: docstrings as Markdown shows them."""

import pathlib
import re
import sys
from typing import Any

import griffe

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # griffe loads this file by its path
from formulas import mathml

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
PAIR = re.compile(r"^( +)(\w+), (\w+): (.*\n?(?:\1 +.*\n?)*)", re.MULTILINE)  # two with one sentence
FORMULA = re.compile(r"^\.\. math::\n((?:[ ]+.*\n?)+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Fences examples, which Markdown would take for quotations; parts pairs of arguments; formulas become MathML."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            text = PAIR.sub(r"\1\2: \4\n\1\3: \4", text)
            obj.docstring.value = FORMULA.sub(lambda found: f"{mathml(found[1], display=True)}\n", text)
