"""How `write.py` says numbers and tests, and how a sentence fails that the numbers do not bear out."""

import collections
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fault_injection.campaign.rates import Rate
from fault_injection.campaign.wording import interval, percent, significant

LEVEL = 0.05  # a p-value below it is a difference
WIDTH = 120  # characters of a line
UNIT = re.compile(r" (?=%)|(?<=[<=]) |(?<=\bp) (?=[<=])")  # where no line ends


class Unsupported(Exception):
    """A sentence that the numbers do not bear out."""


# ---- Numbers as text -----------------------------------------------------------------------


def rate(known: Rate, unit: str = " %") -> str:
    """A rate with its interval; `none` where nothing was counted.

    >>> rate(Rate(1, 8, 0.125, 0.022, 0.471))
    '12.5 % [2.2, 47.1]'
    """
    return f"{percent(known.share)}{unit} {interval(known.low, known.high)}" if known.total else "none"


def power(x: float, digits: int = 1) -> str:
    """A large or small number as a power of ten, rounded down.

    >>> power(2.58e17, 2), power(5e-8)
    ('2.5·10¹⁷', '5·10⁻⁸')
    """
    exponent = math.floor(math.log10(x))
    mantissa = math.floor(x / 10.0**exponent * 10 ** (digits - 1) + 1e-9) / 10 ** (digits - 1)
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa:.{digits - 1}f}·10{raised}"


def listed(items: Iterable[Any]) -> str:
    """`a, b and c`."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def counted(items: Iterable[Any]) -> str:
    """How often each item occurs.

    >>> counted(["SlowDegrade", "LowTestAccuracy", "SlowDegrade"])
    '2 SlowDegrade and 1 LowTestAccuracy'
    """
    return listed(f"{n} {item}" for item, n in collections.Counter(items).most_common())


# ---- Tests ---------------------------------------------------------------------------------


class Test(NamedTuple):
    """A test of the hypothesis that nothing differs: its name, and its p-value."""

    name: str
    p: float

    def __str__(self) -> str:
        return named(self)

    @property
    def shown(self) -> bool:
        """Whether a difference is shown."""
        return self.p < LEVEL


def named(*tests: Test) -> str:
    """Tests by their names, each name once.

    >>> named(Test("χ²", 0.21), Test("χ²", 0.00001))
    'χ², p = 0.2 and < 0.0001'
    """
    by_name: dict[str, list[str]] = {}
    for name, p in tests:
        by_name.setdefault(name, []).append("< 0.0001" if p < 1e-4 else f"= {significant(p, 2 if p < 0.1 else 1)}")
    return "; ".join(f"{name}, p {listed(values)}" for name, values in by_name.items())


def pair(part: Any) -> tuple[int, int]:
    """Found and total, of a `campaigns.Part`, a rate, or of a pair of these."""
    found, total = getattr(part, "pair", part[:2])
    return int(found), int(total)


def fisher(a: Any, b: Any) -> Test:
    """Fisher's exact test of two shares, see `pair`.

    >>> str(fisher((45, 45), (31, 35)))
    "Fisher's exact test, p = 0.033"
    """
    (x, n), (y, m) = pair(a), pair(b)
    return Test("Fisher's exact test", float(stats.fisher_exact([[x, n - x], [y, m - y]])[1]))


def chi2(*groups: Any) -> Test:
    """The χ² test of several shares; where all are none or all, there is nothing to tell apart."""
    table = np.array([(x, n - x) for x, n in map(pair, groups) if n])
    if len(table) < 2 or not table.sum(axis=0).all():
        return Test("χ²", 1.0)
    return Test("χ²", float(stats.chi2_contingency(table, correction=False).pvalue))


def sign(ours: int, theirs: int) -> Test:
    """The exact sign test of pairs of which so many differ in the one and in the other direction."""
    return Test("exact sign test", float(stats.binomtest(ours, ours + theirs).pvalue) if ours + theirs else 1.0)


def binomial(found: int, total: int, share: float) -> Test:
    """Whether a count is what a share leaves to expect."""
    return Test("exact binomial test", float(stats.binomtest(found, total, share).pvalue))


def newcombe(a: Any, b: Any) -> Test:
    """The test that belongs to Newcombe's interval of a difference of two shares, each a cell of `pvf` at 95 %.

    Reference: Newcombe, Statistics in Medicine 17 (1998) 873, method 10.
    """
    difference = a["pvf"] - b["pvf"]
    upper, lower = (a, b) if difference > 0 else (b, a)
    width = math.hypot(upper["pvf"] - upper["interval"][0], lower["interval"][1] - lower["pvf"])
    z = float(stats.norm.ppf(0.975)) * abs(difference) / width if width else 0.0
    return Test("Newcombe's interval of the difference", float(2 * stats.norm.sf(z)))


def fit(cells: Sequence[tuple[int, int, float]]) -> Test:
    """The χ² test of counts, each (found, total, the share that a model gives)."""
    square = sum((x - n * p) ** 2 / (n * p * (1 - p)) for x, n, p in cells)
    return Test(f"χ² of {len(cells)} counts", float(stats.chi2.sf(square, len(cells))))


def smallest(tests: Sequence[Test]) -> Test:
    """Whether any of several tests shows a difference: the smallest p-value times their number (Bonferroni)."""
    least = min(tests, key=lambda test: test.p)
    return Test(f"the smallest of {len(tests)}, {least.name}, Bonferroni", min(1.0, len(tests) * least.p))


def largest(tests: Sequence[Test]) -> Test:
    """Whether all of several tests show a difference: the largest p-value."""
    most = max(tests, key=lambda test: test.p)
    return Test(f"the largest of {len(tests)}, {most.name}", most.p)


# ---- Sentences -----------------------------------------------------------------------------


def claim(holds: object, caller: Callable[[], str]) -> str:
    """A sentence that the numbers have to bear out."""
    text = caller()
    if not holds:
        raise Unsupported(" ".join(text.split()))
    return text


def differ(*tests: Test, caller: Callable[[], str]) -> str:
    """A sentence that says that something differs; each test has to show it, and is added."""
    return f"{claim(all(test.shown for test in tests), caller)} ({named(*tests)})"


def alike(*tests: Test, caller: Callable[[], str]) -> str:
    """A sentence that says that no difference is shown; no test may show one, and each is added."""
    return f"{claim(not any(test.shown for test in tests), caller)} ({named(*tests)})"


def either(test: Test, differs: str, alike: str) -> str:
    """What a test says: one of two wordings, and the test."""
    return f"{differs if test.shown else alike} ({test})"


# ---- Lines ---------------------------------------------------------------------------------


def _opening(line: str) -> str:
    """The blanks that a line opens with, and the mark of an item of a list."""
    return line.removesuffix(line.lstrip().removeprefix("- "))


def filled(page: str) -> str:
    r"""A page whose paragraphs have lines of at most `WIDTH` characters; tables, code and headings are left alone.

    >>> print(filled("- a\n  b\n- c\n\n| d |\n| e |"))
    - a b
    - c
    <BLANKLINE>
    | d |
    | e |
    """
    done: list[str] = []
    paragraph: list[str] = []
    code = False

    def flush() -> None:
        if paragraph:
            opening = _opening(paragraph[0])
            text = UNIT.sub("\0", " ".join(line.strip() for line in paragraph).removeprefix(opening.lstrip()))
            wrapper = textwrap.TextWrapper(
                WIDTH, opening, " " * len(opening), break_long_words=False, break_on_hyphens=False
            )
            done.append(wrapper.fill(text).replace("\0", " "))
            paragraph.clear()

    for line in page.split("\n"):
        fence = line.lstrip().startswith("```")
        alone = code or fence or not line.strip() or line.lstrip().startswith(("|", "#", "!["))
        code ^= fence
        if alone or _opening(line).endswith("- "):
            flush()
        if alone:
            done.append(line)
        else:
            paragraph.append(line)
    flush()
    return "\n".join(done)
