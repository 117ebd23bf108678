"""The file of a defect profile: TOML, shipped or a user's own.  A mistake gives one line."""

import functools
import importlib.resources
import math
import pathlib
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

from ...machine.errors import InputError, did_you_mean
from ...machine.files import read_text
from ...machine.reading import SHOWN
from ...models.fault import Operand
from ..number_formats import format_of
from ..schedule import ONCE, SCHEDULE
from .profile import DRAWN, PASSES, DefectProfile, Error

TABLES: dict[str, tuple[str, ...]] = {
    "": ("summary", "source", "inferred", "worker", "operations", "elements", "error", "time"),
    "operations": ("kinds", "passes", "formats", "operand", "share"),
    "elements": ("least", "below", "period", "phase", "share"),
    "error": ("xor", "mask", "set", "relative", "neighbour", "values", "bits"),
    "time": ("schedule", "growing"),
}
KINDS_OF_ERROR = ("xor", "mask", "set", "relative", "neighbour", "values")
LARGEST_PERIOD = 2**31 - 1


@functools.cache
def shipped() -> tuple[str, ...]:
    """The names of the profiles that come with the package.

    >>> "matrix_lane" in shipped()
    True
    """
    files = importlib.resources.files(__package__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def find_profile(name: str) -> DefectProfile:
    """The profile of a name that is shipped, or of a file whose name ends in `.toml`, as a step of one's own is found.

    Raises:
      InputError: there is none, or it is none: one line.

    >>> find_profile("matrix_lane").error.xor
    ('exponent 3',)
    """
    return parse_profile(profile_text(name), name, name if name.endswith(".toml") else f"{name}.toml")


def profile_text(name: str) -> str:
    """The text of the file of a profile, see `find_profile`."""
    if name.endswith(".toml"):
        return read_text(pathlib.Path(name))
    if name not in shipped():
        raise InputError(
            f"unknown defect profile {name[:SHOWN]!r}{did_you_mean(name, shipped())}, or a path to a .toml"
        )
    return importlib.resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


@functools.lru_cache(maxsize=64)
def parse_profile(text: str, name: str, path: object) -> DefectProfile:
    """The profile that a file's text says.

    Args:
      name: of the profile.
      path: as messages name the file.

    Raises:
      InputError: it says none, or something twice: one line.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not TOML: {str(error)[:200]}", path) from None
    return _Reader(document, path).profile(name)


class _Reader:
    """What a document says, with its mistakes."""

    def __init__(self, document: Mapping[str, Any], path: object):
        self.path, self.tables = path, {"": document}
        for table in ("operations", "elements", "error", "time"):
            value = document.get(table, {})
            if not isinstance(value, dict):
                raise self.wrong(table, f"expected a table, [{table}]")
            self.tables[table] = value
        for table, known in TABLES.items():
            for key in self.tables[table]:
                if key not in known:
                    raise self.wrong(f"{table}.{key[:SHOWN]}".lstrip("."), f"unknown key{did_you_mean(key, known)}")

    def wrong(self, key: str, message: str) -> InputError:
        return InputError(f"{key}: {message}", self.path)

    def profile(self, name: str) -> DefectProfile:
        summary, source, inferred = (self._text(key) for key in ("summary", "source", "inferred"))
        operations, elements = self.tables["operations"], self.tables["elements"]
        operand = self._one_of("operations", "operand", "output", [one.name.lower() for one in Operand])
        formats = self._names("operations", "formats", ())
        for one in formats:
            self._format(one)
        least, below = self._number("elements", "least", 0.0, 0, math.inf), None
        if "below" in elements:
            below = self._number("elements", "below", None, 0, math.inf)
            if below <= least:
                raise self.wrong("elements.below", f"{below:g}; expected more than least, which is {least:g}")
        periods = self._periods()
        phase = None if "phase" not in elements else self._whole("elements", "phase", 0, 0, min(periods) - 1)
        passes = self._names("operations", "passes", PASSES)
        for one in passes:
            if one not in PASSES:
                raise self.wrong("operations.passes", f"{one[:SHOWN]!r}; expected {' or '.join(PASSES)}")
        return DefectProfile(
            name,
            summary,
            source,
            inferred,
            error=self._error(),
            operand=Operand[operand.upper()],
            kinds=self._names("operations", "kinds", ("*",)),
            passes=passes,
            formats=formats,
            operations=self._share("operations", operations),
            least=least,
            below=below,
            periods=periods,
            phase=phase,
            elements=self._share("elements", elements),
            schedule=self._schedule(),
            growing=self._whole("time", "growing", 1, 1, 10**9),
            worker=None if "worker" not in self.tables[""] else self._whole("", "worker", 0, 0, 10**6),
        )

    def _error(self) -> Error:
        given = [key for key in KINDS_OF_ERROR if key in self.tables["error"]]
        if len(given) != 1:
            raise self.wrong(
                "error", f"found {' and '.join(given) or 'none'}; expected one of {', '.join(KINDS_OF_ERROR)}"
            )
        (kind,) = given
        if "bits" in self.tables["error"] and self.tables["error"].get("values") not in ("bit_flip", "stuck"):
            raise self.wrong("error.bits", "belongs to values = 'bit_flip' or 'stuck'")
        roles = {key: self._names("error", key, ()) for key in ("xor", "bits")}
        for key, names in roles.items():
            for role in names:
                if names.count(role) > 1:
                    raise self.wrong(f"error.{key}", f"{role[:SHOWN]!r} stands there twice")
                if format_of("float64").bit(role) is None:
                    what = "expected roles of bits: sign, exponent 1 (the highest), exponent 2, …, mantissa 1, …"
                    raise self.wrong(f"error.{key}", f"{role[:SHOWN]!r}; {what}")
        value = self.tables["error"][kind]
        if kind == "mask":
            digits = isinstance(value, str) and 0 < len(value) <= 16 and set(value) <= set("0123456789abcdefABCDEF")
            if not digits or not int(value, 16):
                raise self.wrong("error.mask", f"{value!r:.60}; expected hexadecimal digits, such as '1000'")
            return Error(mask=int(value, 16))
        if kind == "set":
            return Error(set=self._number("error", "set", None, -math.inf, math.inf, nan=True))
        if kind == "relative":
            relative = self._number("error", "relative", None, -0.5, 1e6)
            if abs(relative) < 2**-24 or relative <= -0.5:
                raise self.wrong("error.relative", f"{relative:g}; expected 6e-8 or more in size, and more than -0.5")
            return Error(relative=relative)
        if kind == "neighbour":
            if not (found := self._whole("error", "neighbour", 1, -LARGEST_PERIOD, LARGEST_PERIOD)):
                raise self.wrong("error.neighbour", "0 positions on is the element itself")
            return Error(neighbour=found)
        if kind == "values":
            return Error(values=self._one_of("error", "values", "", DRAWN), bits=roles["bits"])
        return Error(xor=roles["xor"])

    def _periods(self) -> tuple[int, ...]:
        value = self.tables["elements"].get("period", 1)
        found = value if isinstance(value, list) else [value]
        if not found or any(type(one) is not int or not 1 <= one <= LARGEST_PERIOD for one in found):
            raise self.wrong("elements.period", f"{value!r:.60}; expected whole numbers from 1, of which one is drawn")
        return tuple(found)

    def _schedule(self) -> Any:
        text = self.tables["time"].get("schedule", str(ONCE))
        try:
            found = SCHEDULE.parse(text)
        except (ValueError, TypeError):
            raise self.wrong("time.schedule", SCHEDULE.wrong(str(text))) from None
        if found.device:
            raise self.wrong("time.schedule", f"{found}; a file says which device it is: leave out 'as device …'")
        return found

    def _share(self, table: str, of: Mapping[str, Any]) -> float:
        found = self._number(table, "share", 1.0, 0, 1)
        if not found:
            raise self.wrong(f"{table}.share", "0; expected more, up to 1")
        return found

    def _number(self, table: str, key: str, default: Any, low: float, high: float, nan: bool = False) -> float:
        value = self.tables[table].get(key, default)
        inside = type(value) in (int, float) and (low <= value <= high or (nan and value != value))
        try:
            found = float(value) if inside else math.nan
        except OverflowError:  # a whole number that no float64 holds
            inside = False
        if not inside:
            raise self.wrong(f"{table}.{key}", f"{value!r:.60}; expected a number from {low:g} to {high:g}")
        return found

    def _whole(self, table: str, key: str, default: int, low: int, high: int) -> int:
        value = self.tables[table].get(key, default)
        if type(value) is not int or not low <= value <= high:
            name = f"{table}.{key}".lstrip(".")
            raise self.wrong(name, f"{value!r:.60}; expected a whole number from {low} to {high}")
        return value

    def _one_of(self, table: str, key: str, default: str, names: Collection[str]) -> str:
        value = self.tables[table].get(key, default)
        if value not in names:
            raise self.wrong(f"{table}.{key}", f"{value!r:.60}; expected one of {', '.join(names)}")
        return str(value)

    def _names(self, table: str, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self.tables[table].get(key, list(default))
        if (
            not isinstance(value, list)
            or (key in self.tables[table] and not value)
            or any(type(x) is not str for x in value)
        ):
            raise self.wrong(f"{table}.{key}", f"{value!r:.60}; expected a list of names")
        return tuple(value)

    def _text(self, key: str) -> str:
        value = self.tables[""].get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(
                key, f"expected a sentence, {key} = '…': a profile says what it is, whose, and what is inferred"
            )
        return " ".join(value.split())

    def _format(self, name: str) -> None:
        try:
            floating = bool(format_of(name).exponent) and format_of(name).name == name
        except (TypeError, ValueError):
            floating = False
        if not floating:
            raise self.wrong("operations.formats", f"{name[:SHOWN]!r}; expected floating-point types such as bfloat16")
