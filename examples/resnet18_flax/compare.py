"""Strikes the explicit ResNet-18 and the one in Flax with the same faults, and prints both verdicts of each.

An element of an operand is given as Flax's operand has it.  The explicit operands have the published layouts:
padded, dilated, rotated or transposed.  `published_place` says where the element is in them.
"""

import argparse
import dataclasses
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from fault_injection.models.fault import Operand
from fault_injection.models.site import make_fault
from fault_injection.runs.exits import FirstNonFinite
from fault_injection.runs.follow import follow
from fault_injection.runs.golden_run import nudged
from fault_injection.runs.noise import final_metrics
from fault_injection.runs.outcome import Noise, Outcome, verdict_of
from fault_injection.runs.records import Recorder, Run
from fault_injection.runs.steps import Address, Observer, addresses, numbered
from fault_injection.seam.program import Program
from fault_injection.seam.workload import Workload
from fault_injection.workloads.registry import find_workload

EPOCHS, TWINS = 5, 3
VALUES = (0.0, 1e2, 1e4, 1e6, 1e9, 1e14, 1e19, 1e25, 1e30)
FLAX = f"{pathlib.Path(__file__).resolve().parent / 'my_run.py'}:training"


@dataclasses.dataclass(frozen=True)
class Strike:
    """One element of one operand of one convolution that becomes another value.

    Attributes:
      layer: of the convolution, as both networks call it.
      role: `forward`, `grad_in` or `grad_wt`.
      index: the coordinates of the element in Flax's operand.
      at: epoch and step.
    """

    layer: str
    role: str
    operand: Operand
    index: tuple[int, ...]
    value: float
    at: Address

    def __str__(self) -> str:
        return f"{self.role}:{self.layer} {self.operand.name.lower()}{list(self.index)} = {self.value:g} at {self.at}"


def both() -> tuple[Workload, Workload]:
    """The two workloads: the explicit network, with one worker, and Flax's."""
    explicit = find_workload("resnet18").embedded()
    return explicit.changed(workers=1, epochs=EPOCHS), find_workload(FLAX)


def names(strike: Strike) -> tuple[str, str]:
    """The struck site, as the explicit network calls it and as Flax's is called."""
    suffix = "" if strike.role == "forward" else f"_{strike.role}"
    return f"{strike.layer}{suffix}", f"{strike.role}:params/{strike.layer}/kernel"


def published_place(role: str, operand: Operand, index: tuple[int, ...], size: int, stride: int) -> tuple[int, ...]:
    """Where an element of Flax's operand is in the published one.

    Args:
      size, stride: of the convolution's kernel.

    >>> published_place("grad_wt", Operand.INPUT, (5, 0, 1, 7), size=3, stride=1)
    (7, 1, 2, 5)
    """
    pad, before = (size - 1) // 2, stride - 1 if size > 1 else 0
    a, b, c, d = index
    if role == "forward" or (role == "grad_in" and operand == Operand.OUTPUT):
        return index
    if role == "grad_in":  # the gradient, dilated and padded; the rotated kernel, whose channels are exchanged
        of_gradient = (a, pad + before + stride * b, pad + before + stride * c, d)
        return of_gradient if operand == Operand.INPUT else (a, b, d, c)
    if operand == Operand.INPUT:  # the padded input, channels first
        return d, b + pad, c + pad, a
    # the dilated gradient, examples third; the kernel's gradient, input channels first
    return (before + stride * b, before + stride * c, a, d) if operand == Operand.WEIGHT else (c, a, b, d)


def draw(seed: int, count: int) -> list[Strike]:
    """Faults at all roles and operands in turn; layers, elements, values and steps are drawn."""
    random, flax = np.random.default_rng(seed), both()[1]
    sites = flax.sites()
    layers = [site.layer.split("/")[1] for site in sites.values() if site.stage == "forward"]
    convolutions = [layer for layer in layers if layer not in ("conv1", "fc")]  # conv1 has no gradient of its input
    found = []
    for number in range(count):
        role, operand = ("forward", "grad_in", "grad_wt")[number % 3], Operand(number // 3 % 3)
        layer = str(random.choice(convolutions))
        shape = sites[f"{role}:params/{layer}/kernel"].shapes[operand]
        index = tuple(int(random.integers(0, n)) for n in shape)
        value = float(random.choice(VALUES) * random.choice([-1.0, 1.0]))
        at = Address(int(random.integers(1, 3)), int(random.integers(0, 11)))
        found.append(Strike(layer, role, operand, index, value, at))
    return found


class _Struck(Observer):
    """Keeps what the faulty step said of its fault."""

    def __init__(self, at: Address):
        self.at = at

    def after_step(self, at, state, report):
        if at == self.at:
            self.report = report


class _Kept(Observer):
    """Keeps the state at the end of each epoch."""

    def __init__(self):
        self.states = {}

    def after_epoch(self, epoch, state, evaluate):
        self.states[epoch + 1] = jax.device_get(state)


class Verdict(NamedTuple):
    """What came of one fault in one network: the value that it replaced, the loss of its step, and the verdict."""

    old: float
    loss: float
    outcome: Outcome


class Door:
    """One of the two networks, with its golden run and its twins.

    Args:
      sites: that are going to be struck.
    """

    def __init__(self, workload: Workload, sites: frozenset[str]):
        self.workload, self.explicit = workload, workload.name == "resnet18"
        self.program: Program = workload.program(sites)
        starts = [self.program.init(), *(nudged(self.program, twin) for twin in range(1, TWINS + 1))]
        self.goldens, self.states = zip(*map(self._run, starts), strict=True)
        self.ends = np.array([final_metrics(run.epochs[-3:]) for run in self.goldens])

    def _run(self, state) -> tuple[Run, dict[int, Any]]:
        """A fault-free run, and the states at the beginning of its epochs."""
        recorder, kept = Recorder(Run(0, (), 0)), _Kept()
        kept.states[0] = state
        last = Address(EPOCHS - 1, self.program.steps_per_epoch - 1)
        steps = addresses(Address(0, 0), last, self.program.steps_per_epoch)
        follow(self.program, self.program.place(state), steps, observers=[recorder, kept])
        return recorder.run, kept.states

    def fault(self, strike: Strike):
        """The strike, as this network's sites have it."""
        site = self.workload.sites()[names(strike)[0 if self.explicit else 1]]
        index = strike.index
        if self.explicit:
            forward = self.workload.sites()[strike.layer]
            size = forward.shapes[Operand.WEIGHT][0]
            stride = forward.shapes[Operand.INPUT][1] // forward.shapes[Operand.OUTPUT][1]
            index = published_place(strike.role, strike.operand, index, size, stride)
        position = int(np.ravel_multi_index(index, site.shapes[strike.operand]))
        return make_fault(site, strike.operand, 0, [position], flip=int(np.float32(strike.value).view(np.uint32)))

    def one_step(self, strike: Strike):
        """The first step of all, with the strike: the value that it replaces, the loss, and what is added or learned.

        Both networks begin alike, so that these agree but for rounding.
        """
        state = self.program.place(self.states[0][0])
        batch = self.program.batch(0, 0)
        new, report = self.program.faulty_step(state, batch, 0, 0, self.fault(strike))
        struck = jax.device_get(report.struck)
        assert int(struck.hits) == 1, strike
        leaves = {leaf.name: value for leaf, value in zip(self.program.state.leaves, jax.tree.leaves(new), strict=True)}
        return float(struck.old.view(np.float32)[0]), float(report.loss), jax.device_get(leaves)

    def verdict(self, strike: Strike, noise: Noise, twin: int = 0) -> Verdict:
        """The run with the strike, to its end or to a loss that is not finite, as a replay makes it.

        Args:
          twin: of which fault-free run it is the faulty one: 0 is the golden run.
        """
        program, at = self.program, strike.at
        steps = program.steps_per_epoch
        recorder, struck = Recorder(Run(at.epoch, (), 0)), _Struck(at)
        nonfinite = FirstNonFinite(lambda here: numbered(here, steps) - numbered(at, steps), "loss")
        follow(
            program,
            program.place(self.states[twin][at.epoch]),
            addresses(Address(at.epoch, 0), Address(EPOCHS - 1, steps - 1), steps),
            {at: self.fault(strike)},
            [recorder, struck, nonfinite],
        )
        outcome = verdict_of(
            recorder.run,
            lambda epoch: self.goldens[twin].epochs[epoch],
            at,
            program.measure(),
            finished=True,
            first_nonfinite=nonfinite.first,
            noise=lambda window: noise,
        )
        old = struck.report.struck.old.view(np.float32)[0]
        return Verdict(float(old), float(struck.report.loss), outcome)


def doors(strikes: list[Strike]) -> tuple[Door, Door]:
    """Both networks, with the sites of these strikes, and their golden runs."""
    explicit, flax = both()
    found = [frozenset(names(strike)[which] for strike in strikes) for which in (0, 1)]
    return Door(explicit, found[0]), Door(flax, found[1])


def outcomes(door: Door, strike: Strike, noise: Noise) -> set[str]:
    """The outcomes of a fault in the golden run and in all twins: what rounding alone makes of it."""
    return {door.verdict(strike, noise, twin).outcome.outcome for twin in range(TWINS + 1)}


def spread(two: tuple[Door, Door]) -> Noise:
    """The noise floor of both: how far golden runs of either network and their twins spread at the end."""
    train, test = np.concatenate([door.ends for door in two]).std(0, ddof=1)
    return Noise(2 * (TWINS + 1) - 1, float(train), float(test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=36, help="number of faults")
    parser.add_argument("--seed", type=int, default=0, help="from which they are drawn")
    options = parser.parse_args()
    strikes = draw(options.seed, options.count)
    two = doors(strikes)
    noise = spread(two)
    print(
        f"standard deviation at the end, of both golden runs and {2 * TWINS} twins: {noise.train:.4f} {noise.test:.4f}"
    )
    alike = 0
    for strike in strikes:
        verdicts = [door.verdict(strike, noise).outcome for door in two]
        alike += verdicts[0].outcome == verdicts[1].outcome
        print(f"{strike}: {' / '.join(dict.fromkeys(verdict.outcome for verdict in verdicts))}", flush=True)
        if verdicts[0].outcome != verdicts[1].outcome:
            for name, door, verdict in zip(("explicit", "Flax"), two, verdicts, strict=True):
                print(f"    {name}: {verdict.rule}; with its twins {' / '.join(sorted(outcomes(door, strike, noise)))}")
    print(f"{alike} of {len(strikes)} verdicts are the same")


if __name__ == "__main__":
    main()
