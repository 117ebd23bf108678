"""`dr_dna` and `dr_dna_published` beside a training: each epoch is watched by the profile of the one before."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..machine.errors import InputError
from ..models.observe.dr_dna import SAMPLES, Profile, largest_values
from ..runs.steps import Address
from ..seam.leaves import State
from ..seam.program import Program
from ..seam.report import StepReport
from .detector import Alarm, AnyDetector, told
from .dr_dna import DrDna, DrDnaPublished, profile_of, sample_places, samples_of
from .watch import Watcher

# Activations move between epochs: fault-free trainings of the embedded defaults reached less than 50 times the limit.
# What a margin costs is little, because what harms is most often many orders of magnitude outside of a range.
MARGIN = 100.0


@dataclasses.dataclass(frozen=True)
class DrDnaSettings(AnyDetector):
    """Settings of `dr_dna` in a training.

    Attributes:
      seed: of the places that are sampled.
      margin: see `DrDna`.
    """

    seed: int = 0
    margin: float = MARGIN

    detector: ClassVar[type[DrDna]] = DrDna
    signals: ClassVar[tuple[str, ...]] = DrDna.signals


@dataclasses.dataclass(frozen=True)
class DrDnaPublishedSettings(DrDnaSettings):
    """Those of `dr_dna_published`."""

    margin: float = DrDnaPublished.margin

    detector: ClassVar[type[DrDna]] = DrDnaPublished
    signals: ClassVar[tuple[str, ...]] = DrDnaPublished.signals


class Remembered(NamedTuple):
    """What the watch knows between two steps.

    Attributes:
      profile: of the epoch before; None in the first.
      samples: float32 [n,L,SAMPLED] of each step of this epoch so far.
    """

    profile: Profile | None = None
    samples: tuple[np.ndarray, ...] = ()


class DrDnaWatch(Watcher):
    """Scores the activations of every step, and makes a new profile at the end of each epoch.

    Activations move as the parameters do, so that a profile does not hold for long.  An epoch whose
    activations are not all finite makes none: the profile before it goes on.

    Args:
      program: samples activations: `Program.watching(places(program, settings.seed))`.
    """

    def __init__(self, program: Program, detector: DrDnaSettings, *more: Any, **named: Any) -> None:
        super().__init__(program, detector, *more, **named)
        self._settings = detector
        self._bare = dataclasses.replace(sample_places(program, detector.seed), told=detector.signals)

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        known: Remembered = self.memory or Remembered()
        found, peak = [], 0.0
        if known.profile is not None:
            detector = self._settings.detector.of(known.profile, self._settings.margin)
            values = largest_values(known.profile, report.tensors[SAMPLES])
            names = [f"{name}/{layer}" for name in values for layer in self._bare.layers]
            numbers = np.concatenate([np.asarray(one, np.float64) for one in values.values()])
            _, alarms = detector.update(detector.init(names), numbers)
            found = told(self.number(at), names, numbers, alarms)
            peak = float(np.max(alarms.excess))
        known = Remembered(known.profile, (*known.samples, samples_of(self._bare, report.tensors)))
        if at.step == self.program.steps_per_epoch - 1:
            try:
                known = Remembered(profile_of(self._bare, known.samples))
            except InputError:  # not finite
                known = Remembered(known.profile)
        self.memory = known
        return found, peak
