"""The detectors that a log can hold the values of, by name, and how each is made."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..machine.errors import InputError, did_you_mean
from .asd import Asd
from .asd_activations import AsdActivations
from .asd_environment import AsdThresholds, read_config, read_thresholds
from .asd_v1 import AsdV1
from .asd_v3 import AsdV3
from .nonfinite import NonFinite
from .peers import Peers
from .spike import GradientNorm, LossSpike
from .strikes import Strikes


class Chosen(NamedTuple):
    """A detector with its settings.

    Attributes:
      detector: or settings of what watches in another way; None where a variable of the environment switches it off.
      raises: whether its alarms are raised, or only written.
      strikes: how alarms are counted; None raises the first.
      every: whether every value is written.
      notes: what was not used of the settings, one sentence per line.
    """

    detector: Any
    raises: bool = True
    strikes: Strikes | None = None
    every: bool = False
    notes: tuple[str, ...] = ()


def _asd(kind: type[Asd], environment: Mapping[str, str]) -> Chosen:
    config, notes = read_config(environment)
    thresholds = float(config.upper_thresh1), float(config.upper_thresh2)
    detector = kind(*thresholds, config.grad_sample_interval) if config.enable else None
    strikes = Strikes(config.strikes_num, float(config.cooldown), float(config.strikes_window))
    return Chosen(detector, strikes=strikes, notes=tuple(notes))


def _thresholded(detector: Callable[[AsdThresholds], Any], environment: Mapping[str, str]) -> Chosen:
    said, notes = read_thresholds(environment)
    chosen = detector(said) if said.enable else None
    return Chosen(chosen, said.enable >= 2, every=said.enable == 3, notes=tuple(notes))


# Those that a log can hold the values of; each is made from the variables of the environment.
VALUE_BASED: dict[str, Callable[[Mapping[str, str]], Chosen]] = {
    "nonfinite": lambda environment: Chosen(NonFinite()),
    "loss_spike": lambda environment: Chosen(LossSpike()),
    "gradient_norm": lambda environment: Chosen(GradientNorm()),
    "peers": lambda environment: Chosen(Peers()),
    "asd": functools.partial(_asd, Asd),
    "asd_activations": functools.partial(_asd, AsdActivations),
    "asd_v1": functools.partial(_thresholded, lambda said: AsdV1(said.upper, said.sigma)),
    "asd_v3": functools.partial(_thresholded, lambda said: AsdV3(said.upper)),
}


def value_based(name: str, environment: Mapping[str, str], settings: Mapping[str, str] | None = None) -> Chosen:
    """A detector that runs over a log.

    Args:
      environment: variables that the vendors' detectors read.
      settings: fields of the detector that are changed, as text.

    Raises:
      InputError: there is none of that name, or it has no such setting.
    """
    if name not in VALUE_BASED:
        raise InputError(f"detector {name[:60]!r} is unknown{did_you_mean(name, VALUE_BASED)}")
    chosen = VALUE_BASED[name](environment)
    return chosen if not settings else chosen._replace(detector=changed(name, chosen.detector, settings))


DERIVED = ("bounds", "of", "variances")  # fields that a program decides
MOST = 10**6  # steps, or values in a memory


def changed(name: str, detector: Any, settings: Mapping[str, str]) -> Any:
    """A detector with settings replaced by what texts say; raises InputError where it has no such setting."""
    if detector is None:
        return None
    fields = {
        field.name: getattr(detector, field.name) for field in dataclasses.fields(detector) if field.name not in DERIVED
    }
    values = {}
    for key, text in settings.items():
        if key not in fields:
            raise InputError(f"{name} has no setting {key[:60]!r}{did_you_mean(key, fields)}")
        try:
            values[key] = _read(text, fields[key])
        except ValueError:
            raise InputError(f"{name}: {key}={text[:60]!r}; expected a value such as {fields[key]}") from None
    return dataclasses.replace(detector, **values)


def _read(text: str, like: object) -> object:
    """A positive number, or several separated by commas, of the kind of another value; whole ones up to `MOST`."""
    if isinstance(like, tuple):
        parts = text.split(",")
        if len(parts) != len(like):
            raise ValueError
        return tuple(_read(part, one) for part, one in zip(parts, like, strict=True))
    number = int(text) if isinstance(like, int) else float(text)
    if not 0 < number < float("inf") or (isinstance(number, int) and number > MOST):
        raise ValueError
    return number
