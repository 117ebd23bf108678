"""`dr_dna`: sampled activations are far from what they are without faults (docs/detection_dr_dna.md)."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from ..machine.errors import InputError
from ..machine.files import DamagedFile, read_arrays, write_arrays
from ..models.fault import site_id
from ..models.observe.dr_dna import BINS, FEWEST, NAME, PLACES, SAMPLES, Histograms, Profile, bins_of, layer_scores
from ..runs.follow import follow
from ..runs.steps import Address, Observer
from ..seam.leaves import Batch, State
from ..seam.program import Program
from ..seam.report import StepReport
from .detector import STOP, Alarm, Alarms, Array, Detector, Memory, namespace

MARGIN = 1.5  # see `DrDna`; the same for what mitigation clamps


@dataclasses.dataclass(frozen=True)
class DrDna(Detector):
    """Raises an alarm for each layer where an example is further from the profile than any without a fault.

    The value of a layer is the largest (S − Ŝ)/Ŝ of the examples of a step.  Without memory.

    Attributes:
      limits: by layer, in the order of the pass, the largest value without a fault: `of` a profile.
      margin: a threshold is so many times as large as the limit.

    >>> detector = DrDna((("conv1", 0.1), ("fc", 0.04)))
    >>> names = ["dr_dna/activations/conv1", "dr_dna/activations/fc"]
    >>> _, alarms = detector.update(detector.init(names), np.array([0.1, 0.3]))
    >>> alarms.level.tolist(), alarms.threshold.round(3).tolist()
    ([0, 1], [0.15, 0.06])
    """

    limits: tuple[tuple[str, float], ...]
    margin: float = MARGIN

    signals: ClassVar[tuple[str, ...]] = (NAME,)
    remembers = False

    @classmethod
    def of(cls, profile: Profile, margin: float = MARGIN) -> "DrDna":
        """The detector of a profile."""
        assert profile.histograms is not None
        # A layer in which nothing varies has the limit 0, and the rounding of its score is no fault.
        limits = np.maximum(np.asarray(profile.histograms.limit, np.float64), 1e-3)
        return cls(tuple(zip(profile.layers, limits.tolist(), strict=True)), margin)

    def init(self, names: Sequence[str]) -> Memory:
        limits = dict(self.limits)
        return np.array([self.margin * limits[name.removeprefix(f"{NAME}/")] for name in names])

    def update(self, memory: Memory, values: Array) -> tuple[Memory, Alarms]:
        xp = namespace(values)
        threshold = xp.asarray(memory)
        excess = xp.where(xp.isfinite(values), xp.maximum(values / threshold, 0.0), xp.inf)
        return memory, Alarms(xp.where(excess > 1, STOP, 0).astype("int32"), threshold, excess)

    def first(self, alarms: Iterable[Alarm]) -> str | None:
        """The layer that the pass ran first among those with an alarm; None where there is none."""
        named = {alarm.tensor.removeprefix(f"{NAME}/") for alarm in alarms}
        return next((layer for layer, _ in self.limits if layer in named), None)


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
    found, largest = [], []
    for batch in batches:
        seen = jax.device_get(watching.forward_passes().infer(state, batch, None))
        weight = np.asarray(jax.device_get(batch.get("weight", np.ones_like(seen.loss))))
        kept = weight > 0
        if seen.metric.dtype == bool:
            kept &= seen.metric
        kept = kept.reshape(*kept.shape[:2], -1).all(-1).ravel()
        found.append(samples_of(bare, seen.tensors)[kept])
        largest.append(largest_of(bare, seen.reductions))
    return profile_of(bare, found, largest)


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
    return profile_of(bare, kept.samples, kept.largest)


def profile_of(bare: Profile, samples: Sequence[np.ndarray], largest: Sequence[np.ndarray]) -> Profile:
    """The profile of what was sampled.

    Histograms are of all examples.  Ŝ and the limits have to hold for examples that no histogram
    has seen.  So each half of the examples is scored by histograms of the other half.

    Args:
      bare: the places.
      samples: float32 [n,L,PLACES] of some examples each.
      largest: float32 [L], of each batch the largest absolute values.

    Raises:
      InputError: as `make_profile`.

    >>> x = np.random.default_rng(0).normal(size=(64, 1, PLACES)).astype(np.float32)
    >>> made = profile_of(Profile(("fc",), np.arange(PLACES)[None]), [x], [np.float32([3.0])])
    >>> made.histograms.frequency.sum(-1).round(3).tolist() == np.ones((1, PLACES)).tolist()
    True
    """
    x = np.concatenate([*samples, np.zeros((0, *bare.positions.shape), np.float32)])
    if len(x) < FEWEST:
        raise InputError(f"a profile of activations of {len(x)} example(s); expected at least {FEWEST}")
    if not (np.isfinite(x).all() and np.isfinite(largest).all()):
        raise InputError("a profile is made of activations without faults; found some that are not finite")
    halves = x[::2], x[1::2]
    score = jax.jit(layer_scores)
    alone = np.zeros(x.shape[:2])
    alone[1::2], alone[::2] = (np.asarray(score(_histograms(mine), other)) for mine, other in (halves, halves[::-1]))
    total = np.cumsum(alone, -1)
    expected = total.mean(0)
    mean = alone.mean(0)
    made = dataclasses.replace(
        _histograms(x),
        expected=expected.astype(np.float32),
        limit=((total - expected) / np.maximum(expected, 1e-6)).max(0).astype(np.float32),
        clamp_above=(mean + MARGIN * (alone.max(0) - mean)).astype(np.float32),
        largest=np.max(largest, 0),
    )
    return dataclasses.replace(bare, histograms=made)


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
    """
    arrays = read_arrays(path)
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
        self.largest: list[np.ndarray] = []

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self.samples.append(samples_of(self._bare, report.tensors))
        self.largest.append(largest_of(self._bare, report.reductions))


def samples_of(bare: Profile, tensors: Mapping[str, Any]) -> np.ndarray:
    """float32 [R·b,L,PLACES], what a step has sampled."""
    stacked = np.stack([tensors[SAMPLES][layer] for layer in bare.layers], -2)
    return stacked.reshape(-1, *stacked.shape[2:])


def largest_of(bare: Profile, reductions: Mapping[str, Any]) -> np.ndarray:
    """float32 [L], the largest absolute value of each layer's activation."""
    return np.array([reductions[f"largest/activations/{layer}"] for layer in bare.layers], np.float32)


def _histograms(x: np.ndarray) -> Histograms:
    """What the samples [n,L,PLACES] say; what is about scores is still zero."""
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
        limit=zeros,
        clamp_above=zeros,
        largest=zeros,
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
