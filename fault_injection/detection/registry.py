"""The detectors by name, and how each is made."""

from collections.abc import Callable, Iterable, Mapping

from ..machine.errors import InputError, did_you_mean
from ..runs.steps import Back
from ..seam.program import Program
from .activation_range import ActivationRange
from .checksum import Checksum, SampledChecksum, UnconfirmedChecksum, VarianceChecksum
from .detector import AnyDetector, Memory
from .dr_dna import sample_places
from .dr_dna_watch import DrDnaPublishedSettings, DrDnaSettings, DrDnaWatch
from .history_bound import history_bound
from .history_ratio import history_ratio
from .own_detector import is_own, own_detector
from .peers import peers
from .probe import Probe, ProbeSettings
from .re_execution import ReExecution, ReExecutionSettings
from .replicas import ReplicaComparison, ReplicaSettings, replicas
from .rt_jump import RtJump
from .signals import KINDS, PROFILED, reductions_of
from .update_norm import UpdateNorm
from .value_based import VALUE_BASED, Chosen, changed, value_based
from .watch import Watch, Watcher

# Those that need to know the program that they watch.
OF_A_PROGRAM: dict[str, Callable[[Program], AnyDetector]] = {
    "history_bound": history_bound,
    "history_ratio": history_ratio,
    "rt_jump": lambda program: RtJump(),
    "update_norm": lambda program: UpdateNorm(),
    "peers": peers,
    "probe": lambda program: ProbeSettings(),
    "activation_range": lambda program: ActivationRange(),
    "checksum": lambda program: Checksum(),
    "unconfirmed_checksum": lambda program: UnconfirmedChecksum(),
    "sampled_checksum": lambda program: SampledChecksum(),
    "epoch_checksum": lambda program: SampledChecksum(every=program.steps_per_epoch),
    "variance_checksum": lambda program: VarianceChecksum(),
    "dr_dna": lambda program: DrDnaSettings(),
    "dr_dna_published": lambda program: DrDnaPublishedSettings(),
    "replay": lambda program: ReExecutionSettings(),
    "replicas": replicas,
}
DETECTORS = tuple(dict.fromkeys((*VALUE_BASED, *OF_A_PROGRAM)))


def beside_a_run(
    name: str, program: Program, environment: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> Chosen:
    """A detector that watches the steps of a program.

    Args:
      name: one of `DETECTORS`, or a user's `FILE.py:NAME`.
      program: any of the workload; what its steps report does not matter.

    Raises:
      InputError: as `value_based`, or the program has nothing that the detector could watch.
    """
    if is_own(name):
        if settings:
            raise InputError(f"{name[:60]} is set in its own file; leave out its settings")
        chosen = Chosen(own_detector(name))
    elif name not in DETECTORS:
        raise InputError(f"detector {name[:60]!r} is unknown{did_you_mean(name, DETECTORS)}")
    elif name in OF_A_PROGRAM:
        chosen = Chosen(changed(name, OF_A_PROGRAM[name](program), settings or {}))
    else:
        chosen = value_based(name, environment, settings)
    if reason := _unreported(chosen, program):
        raise InputError(f"{name} watches {reason}")
    wanted = reductions_of(chosen.detector.signals) if chosen.detector else frozenset()
    said = (program.extras.remark(reduction) for reduction in sorted(wanted))
    return chosen._replace(notes=(*chosen.notes, *(f"{name}: {remark}" for remark in said if remark)))


def _unreported(chosen: Chosen, program: Program) -> str:
    """Which signal that a detector watches the steps of a program cannot report, and why; empty where they can."""
    for kind in chosen.detector.signals if chosen.detector else ():
        if why := _unreported_kind(kind, program):
            return f"{kind}, which the steps of this workload do not report: {why}"
    return ""


def _unreported_kind(kind: str, program: Program) -> str:
    return next(filter(None, map(program.extras.unreported, sorted(reductions_of([kind])))), "")


def kinds_of(program: Program) -> dict[str, str]:
    """The kinds of signals that need no profile: why steps of the program cannot report one, empty where they can."""
    return {kind: _unreported_kind(kind, program) for kind in KINDS if kind not in PROFILED}


def of_one_device(program: Program, environment: Mapping[str, str]) -> dict[str, str]:
    """The detectors that watch runs on one device: what one cannot watch of a program and why, empty where it can."""
    return {name: _cannot_watch(name, program, environment) for name in DETECTORS if name != "replicas"}


def _cannot_watch(name: str, program: Program, environment: Mapping[str, str]) -> str:
    try:
        chosen = beside_a_run(name, program, environment)
    except InputError as error:
        return str(error).removeprefix(f"{name} watches ")
    return "" if chosen.detector is not None else "what a variable of the environment switches off"


def telling(program: Program, detectors: Iterable[AnyDetector]) -> Program:
    """The program whose steps also report the activations that some of the detectors look at.

    Raises:
      InputError: two of them sample other places.
    """
    seeds = {each.seed for each in detectors if isinstance(each, DrDnaSettings)}
    if len(seeds) > 1:
        raise InputError(f"detectors sample places by the seeds {sorted(seeds)}; expected one seed for all")
    return program.watching(sample_places(program, *seeds)) if seeds else program


WATCHERS: dict[type, Callable[..., Watcher]] = {
    ProbeSettings: Probe,
    ReExecutionSettings: ReExecution,
    ReplicaSettings: ReplicaComparison,
    DrDnaSettings: DrDnaWatch,
    DrDnaPublishedSettings: DrDnaWatch,
}


def watcher(
    program: Program,
    detector: AnyDetector,
    memory: Memory = None,
    recovery: Back | None = None,
) -> Watcher:
    """What watches the steps of a program with a detector.

    Args:
      memory, recovery: see `Watcher`.
    """
    return WATCHERS.get(type(detector), Watch)(program, detector, memory, recovery)
