"""A detector in a user's own file, by its name `FILE.py:NAME`: what it has to be, and one line where it is not.

It is an object with `signals`, `init` and `update`, or a class or function without arguments that makes one.
`update(memory, values)` returns the new memory and, for each value, how large it is in units of its threshold: above 1
is an alarm that stops.  It may return `Alarms` in its place, so that a detector of this project with other settings is
one of these too.  `fault-injection init --detector FILE.py` writes one to begin with.

It has to be pure, because a scoreboard gives it memories of the fault-free run, in any order.  That is tried out before
anything runs: the same values twice give the same, and what it was given is unchanged.
"""

import dataclasses
import pathlib
import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..machine.errors import InputError, did_you_mean
from ..machine.reading import SHOWN
from ..machine.user_files import user_object
from .detector import STOP, WARN, Alarms, Array, Detector, Memory
from .signals import KINDS, PROFILED

FAILURES = (Exception, SystemExit)  # of a user's code, which may end itself
TRIED = 300  # steps of made-up values, more than the warm-ups of this project's detectors


def is_own(name: str) -> bool:
    """Whether a name is that of a user's file.

    >>> [is_own(name) for name in ("mine.py:detector", "asd")]
    [True, False]
    """
    return ".py:" in name


def shown_name(name: str) -> str:
    """What a user's detector is called where results are shown: its file without folders.

    >>> shown_name("/home/me/mine.py:detector")
    'mine.py:detector'
    """
    file, _, wanted = name.rpartition(":")
    return f"{pathlib.Path(file).name}:{wanted}"


@dataclasses.dataclass(frozen=True)
class OwnDetector(Detector):
    """A user's detector; what it does wrong is one line that names its file and line.

    Attributes:
      given: the user's object.
      name: `FILE.py:NAME`.
      path: its file.
    """

    given: Any
    name: str
    path: pathlib.Path

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(self.given.signals)

    @property
    def executes_again(self) -> bool:  # type: ignore[override]  # where others have an attribute of their class
        return bool(getattr(self.given, "executes_again", False))

    @property
    def reported_every(self) -> int:
        every = getattr(self.given, "reported_every", 1)
        return every if isinstance(every, int) and every > 0 else 1

    def init(self, names: Sequence[str]) -> Memory:
        """The user's memory before the first step; raises InputError where their code fails."""
        try:
            return self.given.init(list(names))
        except FAILURES as error:
            raise self._failed("init", error) from None

    def update(self, memory: Memory, values: Array) -> tuple[Memory, Alarms]:
        """What the user's code says of a step.

        Raises:
          InputError: it fails, or what it returns is not a memory and N excesses, or alarms.
        """
        values = np.asarray(values).view()
        values.flags.writeable = False
        try:
            returned = self.given.update(memory, values)
        except FAILURES as error:
            raise self._failed("update", error) from None
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise self._wrong("update", f"returned {_described(returned)}; expected (memory, excess)")
        return returned[0], self._alarms(returned[1], values)

    def _alarms(self, told: Any, values: np.ndarray) -> Alarms:
        excess = self._array("the excess", told.excess if isinstance(told, Alarms) else told, values, "f")
        if np.isnan(excess).any():
            raise self._wrong("update", "returned an excess that is NaN; expected inf for a value that is not finite")
        if isinstance(told, Alarms):
            level = self._array("the level", told.level, values, "i")
            if not np.array_equal(level == STOP, excess > 1) or not np.isin(level, (0, STOP, WARN)).all():
                expected = f"expected level {STOP} exactly where the excess is above 1, else {WARN} or 0"
                raise self._wrong("update", f"returned levels that contradict the excess; {expected}")
            return Alarms(level, self._array("the threshold", told.threshold, values, "f"), excess)
        with np.errstate(all="ignore"):
            threshold = np.where(excess > 0, np.abs(values) / excess, np.inf)
        return Alarms(np.where(excess > 1, STOP, 0).astype("int32"), threshold, excess)

    def _array(self, what: str, given: Any, values: np.ndarray, kind: str) -> np.ndarray:
        """A part of what was returned: one number per value."""
        try:
            found = np.asarray(given)
        except Exception:
            found = np.asarray(None)
        if found.shape != values.shape or found.dtype.kind not in {"f": "fiu", "i": "iu"}[kind]:
            number = "whole number" if kind == "i" else "number"
            expected = f"expected a NumPy array with one {number} for each of the {len(values)} values"
            raise self._wrong("update", f"returned {what} as {_described(given)}; {expected}")
        return found.astype(np.float64 if kind == "f" else np.int32)

    def _failed(self, method: str, error: BaseException) -> InputError:
        """What an exception of the user's code was, with the last line of that file on the way to it."""
        file = str(self.path.resolve())
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if str(pathlib.Path(frame.filename).resolve()) == file]
        message = f"{method} of {self.name.rpartition(':')[2]} raised {type(error).__name__}: {error}"
        return InputError(message, self.path, lines[-1] if lines else self._line(method))

    def _wrong(self, method: str, message: str) -> InputError:
        return InputError(f"{method} of {self.name.rpartition(':')[2]} {message}", self.path, self._line(method))

    def _line(self, method: str) -> int | None:
        """Where a method begins, if it stands in the user's file."""
        code = getattr(getattr(self.given, method, None), "__code__", None)
        inside = code is not None and pathlib.Path(code.co_filename).resolve() == self.path.resolve()
        return int(code.co_firstlineno) if code is not None and inside else None


def own_detector(name: str) -> OwnDetector:
    """The user's detector `FILE.py:NAME`, tried out.

    Raises:
      InputError: one line; there is none, it lacks something, watches what no step reports, or is not pure.
    """
    found, path = user_object(name, "detector")
    try:
        made = isinstance(found, type) or not hasattr(found, "update")
        found = found() if made else found
    except FAILURES as error:
        what = f"detector {name[:SHOWN]!r} is no object with signals, init and update, and calling it fails"
        raise InputError(f"{what}: {type(error).__name__}: {error}", path) from None
    try:
        lacking = [method for method in ("init", "update") if not callable(getattr(found, method, None))]
        signals = getattr(found, "signals", None)
    except FAILURES as error:
        what = f"detector {name[:SHOWN]!r}: reading signals, init and update raised {type(error).__name__}: {error}"
        raise InputError(what, path) from None
    if lacking:
        raise InputError(f"detector {name[:SHOWN]!r} has no {lacking[0]}; expected signals, init and update", path)
    _check_signals(signals, name, path)
    detector = OwnDetector(found, name, path)
    _try_out(detector)
    return detector


def _check_signals(signals: Any, name: str, path: pathlib.Path) -> None:
    known = [kind for kind in KINDS if kind not in PROFILED]
    if not isinstance(signals, list | tuple) or not signals or not all(isinstance(each, str) for each in signals):
        expected = f"expected kinds of values, such as ('loss', 'gradient_norm'), of: {', '.join(known)}"
        raise InputError(f"detector {name[:SHOWN]!r}: signals are {_described(signals)}; {expected}", path)
    for each in signals:
        if each not in known:
            near = did_you_mean(each, known)
            raise InputError(f"detector {name[:SHOWN]!r}: signal {each[:SHOWN]!r} is unknown{near}", path)
    if len(set(signals)) < len(signals):
        raise InputError(f"detector {name[:SHOWN]!r}: a signal is listed twice", path)


def _try_out(detector: OwnDetector) -> None:
    """See that it is pure, on made-up values: those of a training, and zeros, huge ones, infinities and NaN."""
    names = list(dict.fromkeys(name for kind in detector.signals for name in _names(kind)))
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(-np.arange(TRIED) / TRIED, 0.05, (len(names), TRIED)).T)
    values[TRIED // 3, 0], values[TRIED // 2, -1], values[TRIED // 2 + 1, 0] = 1e30, np.nan, np.inf
    values[-20] = 0.0
    first, second = (_said(detector, names, values) for _ in range(2))
    for step, (one, other) in enumerate(zip(first, second, strict=True)):
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)):
            what = f"said something else of the same values a second time, from step {step} on"
            raise detector._wrong("update", f"{what}; expected all that it remembers in the memory that it returns")


def _names(kind: str) -> list[str]:
    """Made-up names of values of a kind, in the form of a run's.

    >>> _names("loss"), _names("norm/local_gradients")[:2]
    (['loss'], ['norm/local_gradients/worker_0/fc1/kernel', 'norm/local_gradients/worker_0/fc2/kernel'])
    """
    if "/" not in kind:
        return [kind]
    places = ("worker_0/", "worker_1/") if kind.endswith("/local_gradients") else ("",)
    return [f"{kind}/{place}{part}/kernel" for place in places for part in ("fc1", "fc2")]


def _said(detector: OwnDetector, names: Sequence[str], values: np.ndarray) -> list[Alarms]:
    memory, said = detector.init(names), []
    with np.errstate(all="ignore"):
        for row in values:
            before = _bytes(detector, memory)
            after, alarms = detector.update(memory, row)
            if _bytes(detector, memory) != before:
                raise detector._wrong("update", "changed the memory that it was given; expected a new one")
            memory = after
            said.append(alarms)
    return said


def _bytes(detector: OwnDetector, memory: Memory) -> bytes:
    try:
        return pickle.dumps(memory)
    except Exception as error:
        what = f"keeps a memory that cannot be stored: {error}"
        raise detector._wrong("init", f"{what}; expected arrays and numbers, in tuples, lists or dicts") from None


def _described(value: Any) -> str:
    """What a value is, in a few words.

    >>> _described(np.ones((2, 3))), _described(3), _described(None)
    ('float64 [2, 3]', 'int', 'nothing')
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping | list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
