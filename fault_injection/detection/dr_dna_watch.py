"""`dr_dna` beside a training: each epoch is watched by the profile of the one before."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..machine.errors import InputError
from ..models.observe.dr_dna import SAMPLES, Profile, largest_excess
from ..runs.steps import Address
from ..seam.leaves import State
from ..seam.program import Program
from ..seam.report import StepReport
from .detector import Alarm, AnyDetector, told
from .dr_dna import MARGIN, DrDna, largest_of, profile_of, sample_places, samples_of
from .watch import Watcher


@dataclasses.dataclass(frozen=True)
class DrDnaSettings(AnyDetector):
    """Settings of the detector in a training.

    Attributes:
      seed: of the places that are sampled.
      margin: see `DrDna`.
    """

    seed: int = 0
    margin: float = MARGIN

    signals: ClassVar[tuple[str, ...]] = DrDna.signals


class Remembered(NamedTuple):
    """What the watch knows between two steps.

    Attributes:
      profile: of the epoch before; None in the first.
      samples: float32 [n,L,PLACES] of each step of this epoch so far.
      largest: float32 [L] of each.
    """

    profile: Profile | None = None
    samples: tuple[np.ndarray, ...] = ()
    largest: tuple[np.ndarray, ...] = ()


class DrDnaWatch(Watcher):
    """Scores the activations of every step, and makes a new profile at the end of each epoch.

    Activations move as the parameters do, so that a profile does not hold for long.  An epoch whose
    activations are not all finite makes none: the profile before it goes on.

    Args:
      program: samples activations: `Program.watching(places(program, settings.seed))`.
    """

    def __init__(self, program: Program, detector: DrDnaSettings, *more: Any, **named: Any) -> None:
        super().__init__(program, detector, *more, **named)
        self._bare, self._margin = sample_places(program, detector.seed), detector.margin

    def look(self, at: Address, state: State, report: StepReport) -> tuple[list[Alarm], float]:
        known: Remembered = self.memory or Remembered()
        found, peak = [], 0.0
        if known.profile is not None:
            detector = DrDna.of(known.profile, self._margin)
            names = [f"{DrDna.signals[0]}/{layer}" for layer in self._bare.layers]
            values = np.asarray(largest_excess(known.profile, report.tensors[SAMPLES]), np.float64)
            _, alarms = detector.update(detector.init(names), values)
            found = told(self.number(at), names, values, alarms)
            peak = float(np.max(alarms.excess))
        samples, largest = samples_of(self._bare, report.tensors), largest_of(self._bare, report.reductions)
        known = Remembered(known.profile, (*known.samples, samples), (*known.largest, largest))
        if at.step == self.program.steps_per_epoch - 1:
            try:
                known = Remembered(profile_of(self._bare, known.samples, known.largest))
            except InputError:  # not finite
                known = Remembered(known.profile)
        self.memory = known
        return found, peak
