"""`peers`: one worker's gradient is the largest or the smallest of all, step after step.

Reference: the e-detector of Shiryaev and Roberts, Shin, Ramdas and Rinaldo, *E-detectors: a nonparametric framework for
sequential change detection*, 2022 (arXiv 2203.03532); ranks of workers in its place of a density are ours.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from ..machine.errors import InputError
from ..seam.program import Program
from .detector import Alarms, Array, Detector, graded, namespace
from .worker_names import of_any_worker

ALONE = """peers watches the workers' own gradients, and here one gradient is of all workers together; expected copies \
of the state, such as strategy = "ddp", or several devices"""
SHARES = (0.5, 0.75, 0.95)  # how often a defective worker is assumed to be the outermost: what is between is seen too


class PeersMemory(NamedTuple):
    """Of whom the values are, and what speaks against each.

    Attributes:
      order: int [P, W], which of the N values is worker w's of parameter p.
      place: int [N], where in the flattened `order` a value is; P W for one that is not of all workers.
      evidence: [P, W, 2, shares], log R of worker w's being the largest, and the smallest, of parameter p.
    """

    order: Array
    place: Array
    evidence: Array


@dataclasses.dataclass(frozen=True)
class Peers(Detector):
    """Raises an alarm where a worker's gradient is the largest, or the smallest, more often than chance allows.

    Workers draw their examples alike.  So each of W has the largest norm of a parameter's gradient with probability
    1/W, however the training goes.  With I whether it has,

    .. math::
      R_t = (1 + R_{t-1}) L, \\qquad
      L = q W \\text{ if } I \\text{ else } \\frac{1 - q}{1 - 1/W}, \\qquad
      \\overline{R} > M A

    with the mean over some q, and M the number of all such sums: two for each worker and parameter.  In n fault-free
    steps the chance of any alarm is at most n / A.  After its alarm a sum begins anew.  What is not finite raises an
    alarm at once, and nothing is learnt of its parameter from that step.

    Attributes:
      steps: A, the mean number of fault-free steps up to a false alarm, at least.

    >>> detector = Peers(steps=1e3)
    >>> memory = detector.init([f"norm/local_gradients/worker_{w}/kernel" for w in range(4)])
    >>> for step in range(8):
    ...     memory, alarms = detector.update(memory, np.array([1.0 + step % 2, 1.1, 1.2 - step % 3, 9.0]))
    >>> alarms.level
    array([0, 0, 0, 1], dtype=int32)
    """

    signals: ClassVar[tuple[str, ...]] = ("norm/local_gradients",)
    compares = True

    steps: float = 1e8

    def init(self, names: Sequence[str]) -> PeersMemory:
        found: dict[str, list[int]] = collections.defaultdict(list)
        for place, name in enumerate(names):
            found[of_any_worker(name)].append(place)
        workers = max(map(len, found.values()), default=0)
        if workers < 2:
            raise InputError(ALONE)
        order = np.array([places for places in found.values() if len(places) == workers])
        inverse = np.full(len(names), order.size)
        inverse[order.ravel()] = np.arange(order.size)
        return PeersMemory(order, inverse, np.full((*order.shape, 2, len(SHARES)), -np.inf))

    def update(self, memory: PeersMemory, values: Array) -> tuple[PeersMemory, Alarms]:
        xp = namespace(values)
        order, place, evidence = (xp.asarray(part) for part in memory)
        of_all = values[order]
        beside = _beside(xp, of_all)
        outermost = xp.stack([of_all > beside[0], of_all < beside[1]], axis=-1)[..., None]
        chance, shares = 1 / order.shape[1], xp.asarray(SHARES, dtype=values.dtype)
        likelihood = xp.where(outermost, xp.log(shares / chance), xp.log((1 - shares) / (1 - chance)))
        usable = xp.all(xp.isfinite(of_all), axis=1)[:, None, None, None]
        evidence = xp.where(usable, xp.logaddexp(evidence, xp.zeros_like(evidence)) + likelihood, evidence)

        # The logarithm of the mean; what has just begun is minus infinity.
        most = xp.max(evidence, axis=-1, keepdims=True)
        most = xp.where(xp.isfinite(most), most, 0.0)
        against = xp.log(xp.mean(xp.exp(evidence - most), axis=-1)) + most[..., 0]
        needed = math.log(2 * order.size * self.steps)
        over = against > needed
        new = PeersMemory(order, place, xp.where(over[..., None], -xp.inf, evidence))

        larger = against[..., 0] >= against[..., 1]
        per_value = (
            (xp.where(larger, against[..., 0], against[..., 1]), 0.0),
            (xp.where(larger, beside[0], beside[1]), xp.inf),
            (over[..., 0] | over[..., 1], False),
        )
        reached, threshold, stop = (
            xp.concatenate([part.ravel(), xp.asarray([otherwise], dtype=part.dtype)])[place]
            for part, otherwise in per_value
        )
        finite = xp.isfinite(values)
        unit = xp.full_like(values, needed)
        return new, graded(xp.maximum(reached, 0.0), unit, threshold, finite, stop | ~finite)


def _beside(xp: Array, values: Array) -> tuple[Array, Array]:
    """The largest, and the smallest, of the others' values, for each worker: twice [P, W]."""
    ordered = xp.sort(values, axis=1)
    first, second, last, before = (ordered[:, at, None] for at in (0, 1, -1, -2))
    return xp.where(values >= last, before, last), xp.where(values <= first, second, first)


def peers(program: Program) -> Peers:
    """The detector of a program.

    Raises:
      InputError: its steps know one gradient, which is of all workers together, or its workers do not train alike.
    """
    spec = program.state
    if spec.strategy.diverges:
        raise InputError("peers watches workers with the same parameters; the strategy of this run lets them differ")
    if max(spec.copies, 1 if spec.strategy.stages else program.devices) < 2:
        raise InputError(ALONE)
    return Peers()
