"""Formulas in LaTeX as MathML, which browsers show without a script."""

import html

import latex2mathml.converter


def mathml(latex: str, display: bool) -> str:
    """A formula as MathML that Markdown leaves alone.

    Args:
      display: whether it stands on a line of its own.
    """
    text = html.unescape(latex).replace(r"\thinspace", r"\,").strip()
    made = latex2mathml.converter.convert(text, display="block" if display else "inline")
    made = made if display else f"<span>{made}</span>"  # at the start of a line, Markdown takes `<math>` for a block
    # What Markdown would take for emphasis or the end of a cell is no longer there.
    return made.replace("_", "&#95;").replace("*", "&#42;").replace("|", "&#124;").replace("\n", " ")
