"""Reading values that a person typed: one `Kind` per kind of value, with the words that say what it expects."""

import dataclasses
import fnmatch
import re
import types
import typing
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from .errors import did_you_mean

Value = TypeVar("Value")
# What anyone writes for a number.  Python's float would also take 1_5, other scripts' digits and -nan.
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
SHOWN = 60  # characters of a wrong value that a message repeats


@dataclasses.dataclass(frozen=True)
class Kind(Generic[Value]):
    """How one kind of value is read from text.

    >>> whole(1, 9).parse("7")
    7
    >>> print("width " + whole(1, 9).wrong("12"))
    width '12'; expected a whole number from 1 to 9
    >>> print("dataset " + one_of(["digits", "cifar10"]).wrong("digit"))
    dataset 'digit' is unknown; did you mean 'digits'?

    Attributes:
      parse: turns text into the value; raises ValueError where the text is not one.
      expected: says of a text that is not one what was expected, such as `a whole number from 1 to 9`.
      names: the valid values, where they are names.
    """

    parse: Callable[[str], Value]
    expected: Callable[[str], str]
    names: tuple[str, ...] = ()

    def wrong(self, text: str) -> str:
        """The end of a message about a text that is not one of this kind: the text, and what was expected."""
        if self.names:
            return f"{text[:SHOWN]!r} is unknown{did_you_mean(text, self.names)}"
        return f"{text[:SHOWN]!r}; expected {self.expected(text)}"


def fits(value: object, hint: Any) -> bool:
    """Whether a value has the type that an annotation says; a whole number is a number, and `True` is neither.

    >>> fits((1, 2), tuple[int, ...]), fits(None, int | None), fits("1", float), fits(True, int)
    (True, True, False, False)

    Args:
      hint: a class, a union, or a tuple of them; of a dataclass its fields are looked at.
    """
    arguments = typing.get_args(hint)
    if hint is Any:
        return True
    if isinstance(hint, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if typing.get_origin(hint) is tuple:
        each = arguments[:1] * len(value) if isinstance(value, tuple) and ... in arguments else arguments
        return isinstance(value, tuple) and len(value) == len(each) and all(map(fits, value, each))
    if hint in (int, float):
        return type(value) is int or type(value) is hint
    if type(value) is hint and dataclasses.is_dataclass(hint):
        return all(fits(getattr(value, field.name), field.type) for field in dataclasses.fields(hint))
    return isinstance(value, hint)


def matches(name: str, patterns: Collection[str]) -> bool:
    """Whether a name is one of these, or fits one of them: a name may have characters of patterns in it.

    >>> matches("fc1", ["fc*"]), matches("fc [1]", ["fc [1]"]), matches("fc1", ["fc [1]"])
    (True, True, False)
    """
    return name in patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def whole(low: int, high: int = 2**31 - 1) -> Kind[int]:
    """A whole number from `low` to `high`, both included."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 12 or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return Kind(parse, lambda text: f"a whole number from {low} to {high}")


def number(valid: Callable[[float], bool], expected: str) -> Kind[float]:
    """A number that is `valid`; `expected` says which are.  A negative zero is none: a rate has no sign."""

    def parse(text: str) -> float:
        if not NUMBER.fullmatch(text) or not valid(float(text)) or (text.startswith("-") and float(text) == 0):
            raise ValueError
        return float(text)

    return Kind(parse, lambda text: expected)


def one_of(names: Collection[str]) -> Kind[str]:
    """One of some names."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return Kind(parse, lambda text: f"one of {', '.join(names)}", tuple(names))


def counts(separator: str, low: int, example: str) -> Kind[tuple[int, ...]]:
    """Whole numbers from `low` with a separator between them, such as `2/2/2/2`."""

    def parse(text: str) -> tuple[int, ...]:
        return tuple(whole(low).parse(part) for part in text.split(separator))

    return Kind(parse, lambda text: example)
