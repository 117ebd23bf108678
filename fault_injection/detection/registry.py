"""The detectors by name, and how each is made."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..machine.errors import InputError, did_you_mean
from ..runs.follow import Back
from ..seam.program import Program
from ..seam.trees import State
from .asd_environment import read_config, read_thresholds
from .checksum import Checksum, VarianceChecksum
from .detector import Detector, Memory
from .dr_dna import DrDna
from .dr_dna_watch import DrDnaSettings, DrDnaWatch
from .gradient_norm import GradientNorm
from .history_bound import history_bound
from .loss_spike import LossSpike
from .nonfinite import NonFinite
from .re_execution import Confirmed, ReExecution, ReExecutionSettings
from .replicas import ReplicaComparison, ReplicaSettings, replicas
from .signals import reductions_of
from .strikes import Strikes
from .watch import Watch, Watcher

AnyDetector = Detector | ReExecutionSettings | ReplicaSettings | DrDnaSettings  # what a watcher is made of


class Chosen(NamedTuple):
    """A detector with its settings.

    Attributes:
      detector: None where a variable of the environment switches it off.
      raises: whether its alarms are raised, or only written.
      strikes: how alarms are counted; None raises the first.
      every: whether every value is written.
      notes: what was not used of the settings, one sentence per line.
    """

    detector: AnyDetector | None
    raises: bool = True
    strikes: Strikes | None = None
    every: bool = False
    notes: tuple[str, ...] = ()


def _asd(environment: Mapping[str, str]) -> Chosen:
    config, notes = read_config(environment)
    return Chosen(config.detector if config.enable else None, strikes=config.strikes, notes=tuple(notes))


def _thresholded(version: str) -> Callable[[Mapping[str, str]], Chosen]:
    def make(environment: Mapping[str, str]) -> Chosen:
        thresholds, notes = read_thresholds(environment)
        detector = getattr(thresholds, version) if thresholds.enable else None
        return Chosen(detector, thresholds.enable >= 2, every=thresholds.enable == 3, notes=tuple(notes))

    return make


# Those that a log can hold the values of; each is made from the variables of the environment.
VALUE_BASED: dict[str, Callable[[Mapping[str, str]], Chosen]] = {
    "nonfinite": lambda environment: Chosen(NonFinite()),
    "loss_spike": lambda environment: Chosen(LossSpike()),
    "gradient_norm": lambda environment: Chosen(GradientNorm()),
    "asd": _asd,
    "asd_v1": _thresholded("v1"),
    "asd_v3": _thresholded("v3"),
}

# Those that need to know the program that they watch.
OF_A_PROGRAM: dict[str, Callable[[Program], AnyDetector]] = {
    "history_bound": history_bound,
    "checksum": lambda program: Checksum(),
    "variance_checksum": lambda program: VarianceChecksum(),
    "dr_dna": lambda program: DrDnaSettings(),
    "replay": lambda program: ReExecutionSettings(),
    "replicas": replicas,
}
DETECTORS = (*VALUE_BASED, *OF_A_PROGRAM)


def beside_a_run(
    name: str, program: Program, environment: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> Chosen:
    """A detector that watches the steps of a program.

    Args:
      program: any of the workload; what its steps report does not matter.

    Raises:
      InputError: as `value_based`, or the program has nothing that the detector could watch.
    """
    if name not in DETECTORS:
        raise InputError(f"detector {name[:60]!r} is unknown{did_you_mean(name, DETECTORS)}")
    if name in VALUE_BASED:
        chosen = value_based(name, environment, settings)
    else:
        chosen = Chosen(_changed(name, OF_A_PROGRAM[name](program), settings or {}))
    if missing := unreported(chosen, program):
        raise InputError(f"{name} watches {missing[0]}, which the steps of this workload do not report")
    return chosen


def unreported(chosen: Chosen, program: Program) -> list[str]:
    """The signals that a detector watches and that the steps of a program cannot report."""
    signals = chosen.detector.signals if chosen.detector else ()
    if isinstance(chosen.detector, DrDnaSettings):  # which asks for activations by `telling`
        signals = DrDna.signals
    return [kind for kind in signals if not reductions_of([kind]) <= program.extras.reports]


def of_one_device(program: Program, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of all detectors that can watch a program on one device."""
    made = {name: make(environment) for name, make in VALUE_BASED.items()}
    made |= {name: Chosen(make(program)) for name, make in OF_A_PROGRAM.items() if name != "replicas"}
    return tuple(name for name in DETECTORS if name in made and not unreported(made[name], program))


def telling(program: Program, settings: Iterable[AnyDetector]) -> Program:
    """The program whose steps also report the activations that some of the detectors look at."""
    sampled = [each for each in settings if isinstance(each, DrDnaSettings)]
    return program.forward_passes().watching(sampled[0].places(program)) if sampled else program


def watcher(
    program: Program,
    settings: AnyDetector,
    memory: Memory = None,
    recovery: Back | None = None,
    state: State = None,
) -> Watcher:
    """What watches the steps of a program with a detector.

    Args:
      memory: of the detector, to go on with.
      state: a copy of the state before the next step, for detectors that execute steps again.
    """
    match settings:
        case ReExecutionSettings():
            return ReExecution(program, settings, memory, recovery)
        case ReplicaSettings():
            return ReplicaComparison(program, memory, recovery)
        case DrDnaSettings():
            return DrDnaWatch(program, settings, memory, recovery)
        case Checksum():
            return Confirmed(program, settings, memory, recovery, state)
    return Watch(program, settings, memory, recovery)


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
    return chosen if not settings else chosen._replace(detector=_changed(name, chosen.detector, settings))


DERIVED = ("bounds", "of")  # fields that a program decides


def _changed(name: str, detector: AnyDetector | None, settings: Mapping[str, str]) -> AnyDetector | None:
    if detector is None:
        return None
    fields = {
        field.name: getattr(detector, field.name)
        for field in dataclasses.fields(detector)  # type: ignore[arg-type]
        if field.name not in DERIVED
    }
    values = {}
    for key, text in settings.items():
        if key not in fields:
            raise InputError(f"{name} has no setting {key[:60]!r}{did_you_mean(key, fields)}")
        try:
            values[key] = _read(text, fields[key])
        except ValueError:
            raise InputError(f"{name}: {key}={text[:60]!r}; expected a value such as {fields[key]}") from None
    return dataclasses.replace(detector, **values)  # type: ignore[type-var]


def _read(text: str, like: object) -> object:
    """A positive number, or several separated by commas, of the kind of another value."""
    if isinstance(like, tuple):
        parts = text.split(",")
        if len(parts) != len(like):
            raise ValueError
        return tuple(_read(part, one) for part, one in zip(parts, like, strict=True))
    number = int(text) if isinstance(like, int) else float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number
