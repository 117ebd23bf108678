"""`dr_dna` and `dr_dna_published`: activations are far from what they are without faults.

docs/detection_dr_dna.md says what of them is published.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from ..machine.errors import InputError
from ..machine.files import DamagedFile, read_arrays, write_arrays
from ..models.fault import site_id
from ..models.observe.dr_dna import (
    BEYOND,
    BINS,
    FEWEST,
    MARGIN,
    NAMES,
    PLACES,
    SAMPLED,
    SAMPLES,
    SUM,
    VALUES,
    Histograms,
    Profile,
    bins_of,
    layer_scores,
)
from ..runs.follow import follow
from ..runs.steps import Address, Observer
from ..seam.leaves import Batch, State
from ..seam.program import Program
from ..seam.report import StepReport
from .detector import STOP, Alarm, Alarms, Array, Detector, Memory, namespace
from .localization import located

# A limit is at least so large: where nothing varies it would be 0.  Neither rounding nor a tenth of a range is a fault.
LEAST = {**dict.fromkeys(BEYOND, 0.1), SUM: 1e-3}


@dataclasses.dataclass(frozen=True)
class DrDna(Detector):
    """Raises an alarm for each layer in which an example is farther from the profile than any without a fault.

    Each layer is judged by itself.  It has two values, each the largest of the examples of a step: how far one of its
    places is outside of that place's range, in widths of that range, and by how much the largest absolute value of the
    whole activation exceeds the profile's.  Neither has an upper bound.  Without memory.

    Attributes:
      limits: by tensor, in the order of the pass, the largest value without a fault: `of` a profile.
      margin: a threshold is so many times as large as the limit.

    >>> names = ["dr_dna_places/activations/fc", "dr_dna_layer/activations/fc"]
    >>> detector = DrDna(tuple(zip(names, (0.25, 0.1))))
    >>> _, alarms = detector.update(detector.init(names), np.array([1.2, 0.6]))
    >>> alarms.level.tolist(), alarms.threshold.round(3).tolist()
    ([0, 1], [1.25, 0.5])
    """

    limits: tuple[tuple[str, float], ...]
    margin: float = MARGIN

    signals: ClassVar[tuple[str, ...]] = BEYOND
    remembers = False

    @classmethod
    def of(cls, profile: Profile, margin: float | None = None) -> Self:
        """The detector of a profile; what it watches is reported where `profile.told` names it.

        Args:
          margin: None for the detector's own.
        """
        assert profile.histograms is not None
        limits = np.asarray(profile.histograms.limits, np.float64)
        found = [
            (f"{signal}/{layer}", float(limits[at, NAMES.index(signal)]))
            for at, layer in enumerate(profile.layers)
            for signal in cls.signals
        ]
        return cls(tuple(found)) if margin is None else cls(tuple(found), margin)

    def init(self, names: Sequence[str]) -> Memory:
        limits = dict(self.limits)
        return np.array([self.margin * limits[name] for name in names])

    def update(self, memory: Memory, values: Array) -> tuple[Memory, Alarms]:
        xp = namespace(values)
        threshold = xp.asarray(memory)
        excess = xp.where(xp.isfinite(values), xp.maximum(values / threshold, 0.0), xp.inf)
        return memory, Alarms(xp.where(excess > 1, STOP, 0).astype("int32"), threshold, excess)

    def first(self, alarms: Iterable[Alarm]) -> str | None:
        """The layer that the pass ran first among those with an alarm; None where there is none."""
        named = {alarm.tensor for alarm in alarms}
        return next((located(tensor).site for tensor, _ in self.limits if tensor in named), None)


@dataclasses.dataclass(frozen=True)
class DrDnaPublished(DrDna):
    """The score as published, second-hand: a sum along the layers, relative to what it is without a fault.

    The value of a layer is the largest (S − Ŝ)/Ŝ of the examples of a step.  A place adds at most 1 to S, however far
    it is outside of its range, and S is the sum of all layers so far: the detector is blind in late layers.

    >>> detector = DrDnaPublished((("dr_dna_sum/activations/conv1", 0.1), ("dr_dna_sum/activations/fc", 0.04)))
    >>> _, alarms = detector.update(detector.init([name for name, _ in detector.limits]), np.array([0.1, 0.3]))
    >>> alarms.level.tolist(), alarms.threshold.round(3).tolist()
    ([0, 1], [0.15, 0.06])
    """

    margin: float = 1.5

    signals: ClassVar[tuple[str, ...]] = (SUM,)


def sample_places(program: Program, seed: int = 0) -> Profile:
    """Where a profile samples: each place is drawn once, by seed and name of the layer.

    A layer with fewer than `PLACES` elements has all of them, some repeatedly.
    """
    sizes = program.activations()

    def drawn(layer: str, size: int) -> np.ndarray:
        random = np.random.default_rng([seed, site_id(layer)])
        return np.resize(random.choice(size, min(size, PLACES), replace=False), PLACES).astype(np.int32)

    return Profile(tuple(sizes), np.stack([drawn(*each) for each in sizes.items()]))


def make_profile(program: Program, state: State, batches: Iterable[Batch], seed: int = 0) -> Profile:
    """The profile of a state in evaluation.

    Examples that are classified wrongly, or only pad a batch, are left out.  Where a metric does
    not say right or wrong, as for text, all others enter.

    Args:
      state: without faults, on the devices.
      batches: on the devices, such as some of `ForwardPasses.tests` or of `program.batch(…)`.
      seed: of the places.

    Raises:
      InputError: an activation is not finite, fewer than `FEWEST` examples are left, or the
        program has no activations to watch.
    """
    bare = sample_places(program, seed)
    watching = program.watching(bare)
    found = []
    for batch in batches:
        seen = jax.device_get(watching.forward_passes().infer(state, batch, None))
        weight = np.asarray(jax.device_get(batch.get("weight", np.ones_like(seen.loss))))
        kept = weight > 0
        if seen.metric.dtype == bool:
            kept &= seen.metric
        kept = kept.reshape(*kept.shape[:2], -1).all(-1).ravel()
        found.append(samples_of(bare, seen.tensors)[kept])
    return profile_of(bare, found)


def make_training_profile(program: Program, state: State, steps: Iterable[Address], seed: int = 0) -> Profile:
    """The profile of the forward passes of training steps: of all their examples, while the state moves on.

    A profile holds for the activations that it has seen.  So it has to be of steps like those that
    it is to watch: the first epochs for the first epochs, or the epoch before for the next.

    Args:
      state: before the first step, without faults, on the devices; the first step consumes it.
      steps: what a fault-free run does.
      seed: of the places.

    Raises:
      InputError: as `make_profile`.
    """
    bare = sample_places(program, seed)
    kept = _Sampled(bare)
    follow(program.watching(bare), state, steps, observers=[kept])
    return profile_of(bare, kept.samples)


def profile_of(bare: Profile, samples: Sequence[np.ndarray]) -> Profile:
    """The profile of what was sampled.

    Ranges and histograms are of all examples.  Ŝ and the limits have to hold for examples that neither has seen.  So
    each half of the examples is judged by ranges and histograms of the other half.

    Args:
      bare: the places.
      samples: float32 [n,L,SAMPLED] of some examples each.

    Raises:
      InputError: as `make_profile`.

    >>> x = np.random.default_rng(0).normal(size=(64, 1, SAMPLED)).astype(np.float32)
    >>> made = profile_of(Profile(("fc",), np.arange(PLACES)[None]), [x])
    >>> made.histograms.frequency.sum(-1).round(3).tolist() == np.ones((1, PLACES)).tolist()
    True
    """
    x = np.concatenate([*samples, np.zeros((0, len(bare.layers), SAMPLED), np.float32)])
    if len(x) < FEWEST:
        raise InputError(f"a profile of activations of {len(x)} example(s); expected at least {FEWEST}")
    if not np.isfinite(x).all():
        raise InputError("a profile is made of activations without faults; found some that are not finite")
    halves = x[::2], x[1::2]
    pairs = [(_histograms(mine), other) for mine, other in (halves, halves[::-1])]
    alone = np.zeros(x.shape[:2])
    alone[1::2], alone[::2] = (np.asarray(_layer_scores(*pair)) for pair in pairs)
    total = np.cumsum(alone, -1)
    expected = total.mean(0)
    limits = {SUM: ((total - expected) / np.maximum(expected, 1e-6)).max(0)}
    for name in BEYOND:
        limits[name] = np.max([np.asarray(VALUES[name](*pair)).max(0) for pair in pairs], 0)
    known = np.stack([np.maximum(limits[name], LEAST[name]) for name in NAMES], -1).astype(np.float32)
    made = dataclasses.replace(_histograms(x), expected=expected.astype(np.float32), limits=known)
    return dataclasses.replace(bare, histograms=made)


_layer_scores = jax.jit(layer_scores)


def save_profile(path: str | os.PathLike[str], profile: Profile) -> None:
    """Write a profile as an .npz file with a checksum."""
    assert profile.histograms is not None
    histograms = {field.name: np.asarray(getattr(profile.histograms, field.name)) for field in _FIELDS}
    write_arrays(path, {"layers": np.array(profile.layers), "positions": np.asarray(profile.positions)} | histograms)


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read what `save_profile` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedFile: it is damaged, or no profile.
      InputError: it is a profile of version 0.2 or earlier, which has no limits of distances.
    """
    arrays = read_arrays(path)
    if "clamp_above" in arrays:
        raise InputError("a profile of an earlier version, without limits of distances; make a new one", path)
    if arrays.keys() != {"layers", "positions"} | {field.name for field in _FIELDS}:
        raise DamagedFile(f"{os.fspath(path)} is no profile of activations")
    layers, positions = tuple(map(str, arrays.pop("layers"))), arrays.pop("positions")
    return Profile(layers, positions, Histograms(**arrays))


_FIELDS = dataclasses.fields(Histograms)


class _Sampled(Observer):
    """Keeps what the steps of a run have sampled."""

    def __init__(self, bare: Profile):
        self._bare = bare
        self.samples: list[np.ndarray] = []

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self.samples.append(samples_of(self._bare, report.tensors))


def samples_of(bare: Profile, tensors: Mapping[str, Any]) -> np.ndarray:
    """float32 [R·b,L,SAMPLED], what a step has sampled."""
    stacked = np.stack([tensors[SAMPLES][layer] for layer in bare.layers], -2)
    return stacked.reshape(-1, *stacked.shape[2:])


def _histograms(x: np.ndarray) -> Histograms:
    """What the samples [n,L,SAMPLED] say; Ŝ and limits are still zero."""
    largest, x = x[..., PLACES].max(0), x[..., :PLACES]
    layers = x.shape[1]
    layer_low, layer_high = _range(x.min((0, 2)), x.max((0, 2)), np.zeros(layers))
    low, high = _range(x.min(0), x.max(0), (layer_high - layer_low)[:, None])
    part = np.asarray(bins_of(x, low, high))
    frequency = np.stack([(part == bin).mean(0) for bin in range(BINS)], -1)
    part = np.asarray(bins_of(x, layer_low[:, None], layer_high[:, None]))
    below = np.stack([(part < edge).mean((0, 2)) for edge in range(BINS + 1)], -1)
    winners = (x.argmax(-1), x.argmin(-1))  # [n,L]
    extremes = [[np.bincount(at[:, j], minlength=PLACES).argmax() for at in winners] for j in range(layers)]
    zeros = np.zeros(layers, np.float32)
    return Histograms(
        low=low,
        high=high,
        frequency=frequency.astype(np.float32),
        layer_low=layer_low,
        layer_high=layer_high,
        below=below.astype(np.float32),
        extremes=np.array(extremes, np.int32),
        expected=zeros,
        largest=largest,
        limits=np.zeros((layers, len(NAMES)), np.float32),
    )


def _range(low: np.ndarray, high: np.ndarray, around: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A range of float32 that has a width.  A constant lies inside a bin, not at its edge.

    It is at least a thousandth of what is `around`, and a millionth of the values themselves; or 1
    where all of these are 0.
    """
    least = np.maximum(around / 1000, np.maximum(np.abs(low), np.abs(high)) * 1e-6)
    least = np.where(least > 0, least, 1)
    flat = high - low < least
    low, high = np.where(flat, low - 0.45 * least, low), np.where(flat, high + least, high)
    return low.astype(np.float32), high.astype(np.float32)
