"""The answer of a page: the few sentences that its reader came for, as the page, the terminal and JSON give them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class BoxAnswer(NamedTuple):
    """One sentence of a page's first box.

    Attributes:
      question: what it answers, in a few words.
      sentence: the answer.
      facts: the numbers behind it, for machines to read.
    """

    question: str
    sentence: str
    facts: Mapping[str, Any] = {}


Box = Sequence[BoxAnswer]


def box_lines(box: Box) -> list[str]:
    """A box for a terminal, a line per answer.

    >>> box_lines([BoxAnswer("How often", "Never.")])
    ['How often: Never.']
    """
    return [f"{one.question}: {one.sentence}" for one in box]


def box_dict(box: Box) -> list[dict[str, Any]]:
    """A box for JSON.

    >>> box_dict([BoxAnswer("How often", "Never.", {"share": 0.0})])
    [{'question': 'How often', 'answer': 'Never.', 'facts': {'share': 0.0}}]
    """
    return [{"question": one.question, "answer": one.sentence, "facts": dict(one.facts)} for one in box]
