"""How pages, terminals and the results say numbers: each magnitude in one way, each share in one way."""

import math

from .rates import Rate

MINUS = "−"


def significant(x: float, digits: int = 2) -> str:
    """A number with so many significant digits, and with all those before the point.

    >>> [significant(x) for x in (0, 0.0667, 1.25, 13.54, 100)]
    ['0', '0.067', '1.2', '14', '100']
    """
    if not x:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(float(f"{abs(x):.{digits - 1}e}"))))
    return f"{x:.{places}f}".replace("-", MINUS)


def number(x: float) -> str:
    """A number by its magnitude, with three significant digits; a whole one below a billion in full.

    >>> [number(x) for x in (0, 12345, 0.012345, 1234.5, 2.9123e36, -4.5e-9, math.inf, math.nan)]
    ['0', '12,345', '0.0123', '1,234', '2.91e36', '−4.5e-9', '∞', 'not a number']
    """
    if math.isnan(x):
        return "not a number"
    if math.isinf(x):
        return "∞" if x > 0 else f"{MINUS}∞"
    if isinstance(x, int) and abs(x) < 1e9:
        return f"{x:,}".replace("-", MINUS)
    if not x or 1e-3 <= abs(x) < 1e6:
        whole, point, part = significant(x, 3).partition(".")
        return f"{int(whole.replace(MINUS, '')):,}".join(["", point + part]) if x >= 0 else MINUS + number(-x)
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", MINUS, 1 if x < 0 else 0)


def percent(share: float) -> str:
    """A share in percent: one decimal from 1 % on, two significant digits below and just below 100 %.

    >>> [percent(x) for x in (0, 0.00667, 0.01254, 0.135, 0.9996, 1)]
    ['0', '0.67', '1.3', '13.5', '99.96', '100']
    """
    x = 100 * share
    if x in (0, 100):
        return f"{x:.0f}"
    if 99.9 < x <= 99.995:
        return f"{x:.2f}"
    return "100" if x > 99.9 else f"{x:.1f}" if x >= 1 else significant(x)


def interval(low: float, high: float) -> str:
    """Both ends of an interval of shares, in percent.

    >>> interval(0.022, 0.471)
    '[2.2, 47.1]'
    """
    return f"[{percent(low)}, {percent(high)}]"


def share(rate: Rate) -> str:
    """A rate with its interval, in percent.

    >>> share(Rate(1, 8, 0.125, 0.022, 0.471))
    '12.5 % [2.2, 47.1]'
    >>> share(Rate(1, 8, 0.125, 0.022, 0.93, guesses=5, unaudited=5))
    '12.5 % [2.2, 93.0], no audit'
    """
    if not rate.total:
        return "none decided"
    unseen = ", no audit" if rate.guesses and not rate.audits else ""
    return f"{percent(rate.share)} % {interval(rate.low, rate.high)}{unseen}"


def plural(n: int, noun: str) -> str:
    """A number of things.

    >>> plural(1, "step"), plural(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def level(confidence: float) -> str:
    """A confidence in percent.

    >>> level(0.95), level(0.975)
    ('95 %', '97.5 %')
    """
    return f"{100 * confidence:.4g} %"
