"""The verdict: what came of a fault, compared with the paired fault-free run.

The names are published (He et al., ISCA 2023); their numeric thresholds are not.  The ones
here are our own, each a field of `Thresholds`; a verdict states the rule and the numbers
that fired (docs/science.md, Outcomes).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..seam.leaves import Leaf
from ..seam.measure import NONFINITE_RULES, Measure
from .records import Epoch, Run, cut
from .steps import Address

MASKED = "Masked"
IMMEDIATE = "Immediate INFs/NaNs"
SHORT_TERM = "Short-term INFs/NaNs"
SLOW = "SlowDegrade"
SHARP_SLOW = "SharpSlowDegrade"
SHARP = "SharpDegrade"
LOW_TEST = "LowTestAccuracy"
UNDECIDED = "Undecided"
OUTCOMES = (MASKED, IMMEDIATE, SHORT_TERM, SLOW, SHARP_SLOW, SHARP, LOW_TEST, UNDECIDED)
DIVERGED = (IMMEDIATE, SHORT_TERM)  # a value is not finite, which whoever looks at the loss sees
LATENT = (SLOW, SHARP_SLOW, SHARP, LOW_TEST)  # a bad end with a finite loss

# A metric worse by exactly the tolerance is no worse, whatever its last bits say: those of a
# step are float32, and 0.9 − 0.88 exceeds 0.02 even in float64.  One image in 10 million still counts.
ROUNDING = 1e-7


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Every number that a verdict depends on.  Accuracies are fractions: 0.02 is two points.

    Attributes:
      nonfinite: what a run is ended by, and what *Immediate* and *Short-term* are about: `loss`, a
        training or test loss that is not finite, as in the published runs; or `state`, also a
        gradient or any leaf of the state.
      immediate_steps: a non-finite value at most this many steps after the faulty one is immediate.
      final_epochs: metrics at the end are means over the last this many epochs (of those that
        ended after the fault).
      tolerance: a metric at the end that is worse by no more than this is no worse; None for
        the tolerance that the loss head states.
      sigmas: the tolerance is at least this many standard deviations of the golden run's twins.
      collapse_steps: a collapse happens at most this many steps after the faulty one.
      collapse_share: a collapse loses at least this share (above 0) of the golden run's
        lead over guessing, in one step's training metric.
      collapse_lead: a golden run has something to lose if its lead over guessing is at least this
        share of the metric's span (`Measure.span`): a tenth in accuracy; a tenth of what guessing
        gives for a metric without limits, such as a loss.
      level_steps: the level after a collapse is the mean training metric of this many steps,
        the one that collapsed being the first; the level at the end is that of the last this
        many steps.  (The epochs' means would not do: the fault's own holds steps before it.)
      stay: a run has stayed there if its level at the end differs from the one after the
        collapse by at most this share of the golden run's lead over guessing (0.3 names the
        one published example as its authors did; it regains a quarter).
    """

    nonfinite: str = "loss"
    immediate_steps: int = 1
    final_epochs: int = 3
    tolerance: float | None = None
    sigmas: float = 3.0
    collapse_steps: int = 2
    collapse_share: float = 0.75
    collapse_lead: float = 0.1
    level_steps: int = 10
    stay: float = 0.3

    def __post_init__(self) -> None:
        if self.nonfinite not in NONFINITE_RULES:
            raise ValueError(f"nonfinite {self.nonfinite!r}; expected one of {', '.join(NONFINITE_RULES)}")


class Trace(NamedTuple):
    """The metric of one run from the fault on.

    Attributes:
      steps: of each step on its training batch, the faulty one first.
      train, test: on training and test data, of each epoch that ended after the fault.
    """

    steps: np.ndarray
    train: np.ndarray
    test: np.ndarray


class Parts(NamedTuple):
    """A number for the training data and one for the test data."""

    train: float
    test: float


class Noise(NamedTuple):
    """How far the metric at the end spreads over the golden run and its twins.

    Attributes:
      twins: how many were run.
      train, test: standard deviations.
    """

    twins: int = 0
    train: float = 0.0
    test: float = 0.0


class NonFiniteLeaf(NamedTuple):
    """The first array of the state, or gradient, that was not finite.

    Attributes:
      leaf: its name.
      steps: from the faulty step to the one after which it was not.
    """

    leaf: str
    steps: int


class Compared(NamedTuple):
    """Metrics at the end, of both runs, and what a difference is compared with."""

    golden: Parts
    faulty: Parts
    worse: Parts
    tolerance: Parts

    def __str__(self) -> str:
        return ", ".join(
            f"{part} {faulty:.4f} against {golden:.4f} ({worse:+.4f} worse, tolerance {tolerance:.4f})"
            for part, golden, faulty, worse, tolerance in zip(Parts._fields, *self, strict=True)
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A verdict.

    Attributes:
      outcome: one of `OUTCOMES`.
      exactly_masked_after: steps after the faulty one until the state was bit-identical to the
        fault-free one (0: already after the faulty step), a proof that nothing later can
        differ; None if that did not happen.
      rule: the rule that fired, with its numbers, in a sentence.
      first_nonfinite: steps from the faulty one to the first non-finite value of those that
        `thresholds.nonfinite` looks at, or None.
      first_nonfinite_state: whatever is looked at, the first gradient or leaf of the state that was
        not finite, `{leaf, steps}`; None if all were finite as far as the run went.
      measure: what the loss head measures.
      final: metrics at the end, `{golden|faulty: {train, test}}`; None if no epoch ended.
      worse: by how much the faulty run's are worse, `{train, test}`.
      tolerance: what `worse` is compared with, `{train, test}`, and how many `twins` are behind it.
      thresholds: the parameters of all rules.
      struck: False where no step ran the operation, so that nothing was struck; `rule` says so, too.
    """

    outcome: str
    exactly_masked_after: int | None
    rule: str
    first_nonfinite: int | None
    first_nonfinite_state: dict[str, str | int] | None
    measure: dict[str, object]
    final: dict[str, dict[str, float]] | None
    worse: dict[str, float] | None
    tolerance: dict[str, float]
    thresholds: Thresholds
    struck: bool = True

    def of_nothing(self, why: str) -> "Outcome":
        """The same of a fault that struck nothing, and why it did."""
        rule = f"nothing was struck: {why}; {self.rule}"
        return dataclasses.replace(self, rule=rule, struck=False)


def verdict_of(
    run: Run,
    golden: Callable[[int], Epoch],
    fault: Address,
    measure: Measure,
    *,
    finished: bool,
    watched: Sequence[Leaf] = (),
    first_nonfinite: int | None = None,
    exactly_masked_after: int | None = None,
    noise: Callable[[int], Noise | None] = lambda epochs: None,
    thresholds: Thresholds | None = None,
) -> Outcome:
    """The verdict on a recorded run.

    Args:
      run: the faulty one, from the start of the fault's epoch on.
      golden: the golden run's record of an epoch.
      fault: the faulty step.
      watched: what the recorded magnitudes belong to, `Program.watched`; without it nothing is
        said of the first array that was not finite.
      finished, first_nonfinite, exactly_masked_after: as in `classify`.
      noise: spread over the golden run's twins, as a mean over a given number of last epochs.
    """
    t = thresholds or Thresholds()
    records = [cut(golden(run.first + i), len(epoch["step"])) for i, epoch in enumerate(run.epochs)]
    paired = Run(run.first, tuple(records), run.ended)
    # The twins are compared over as many epochs as the verdict is a mean of.
    window = min(t.final_epochs, run.ended or t.final_epochs)
    return classify(
        _trace(paired, fault.step),
        _trace(run, fault.step),
        measure,
        finished=finished,
        first_nonfinite=first_nonfinite,
        first_nonfinite_state=first_nonfinite_leaf(run.column("magnitude")[fault.step :], watched) if watched else None,
        exactly_masked_after=exactly_masked_after,
        noise=noise(window),
        thresholds=t,
    )


def first_nonfinite_leaf(magnitude: np.ndarray, watched: Sequence[Leaf]) -> NonFiniteLeaf | None:
    """The first array that was not finite; of those of one step, the first in their order: gradients come first.

    >>> leaves = [Leaf("gradient/w"), Leaf("w")]
    >>> first_nonfinite_leaf(np.array([[1.0, 2.0], [3.0, np.inf]]), leaves)
    NonFiniteLeaf(leaf='w', steps=1)

    Args:
      magnitude: largest absolute values [steps, arrays], the faulty step first.
      watched: what they belong to.
    """
    bad = ~np.isfinite(magnitude)
    if not bad.any():
        return None
    steps = int(bad.any(axis=1).argmax())
    return NonFiniteLeaf(watched[int(bad[steps].argmax())].name, steps)


def _trace(run: Run, step: int) -> Trace:
    steps = run.column("metric")[step:].astype(np.float64)
    return Trace(steps, run.epoch_column("train_metric"), run.epoch_column("valid_metric"))


def classify(
    golden: Trace,
    faulty: Trace,
    measure: Measure,
    *,
    finished: bool,
    first_nonfinite: int | None = None,
    first_nonfinite_state: NonFiniteLeaf | None = None,
    exactly_masked_after: int | None = None,
    noise: Noise | None = None,
    thresholds: Thresholds | None = None,
) -> Outcome:
    """The first rule that applies, in the order of docs/science.md, Outcomes.

    >>> accuracy = Measure("accuracy", "higher", chance=0.1, tolerance=0.02)
    >>> golden = Trace(np.full(30, 0.9), np.full(3, 0.9), np.full(3, 0.8))
    >>> faulty = Trace(np.full(30, 0.9), np.full(3, 0.9), np.full(3, 0.7))
    >>> classify(golden, faulty, accuracy, finished=True).outcome
    'LowTestAccuracy'

    Args:
      golden, faulty: both runs over the same steps and epochs.
      measure: what the metric is, and in which direction it is better.
      finished: whether the faulty run was to reach the end of the training.
      first_nonfinite: steps from the faulty one to the first non-finite value of those that
        `thresholds.nonfinite` looks at; None if there was none.
      first_nonfinite_state: the first gradient or leaf of the state that was not finite, which is
        stated and does not decide; None if there was none.
      exactly_masked_after: see `Outcome`.
      noise: None if no twins were run.
    """
    t = thresholds or Thresholds()
    noise = noise or Noise()
    least = measure.tolerance if t.tolerance is None else t.tolerance
    tolerance = Parts(*(max(least, t.sigmas * deviation) for deviation in (noise.train, noise.test)))
    compared = _compare(golden, faulty, measure, tolerance, t)
    if first_nonfinite is not None:
        name, rule = _nonfinite(first_nonfinite, t)
    elif exactly_masked_after is not None:
        name, rule = MASKED, f"exactly masked: the state {_when(exactly_masked_after)} is bit-identical to the golden"
        rule += " run's"
    elif not finished or compared is None:
        so_far = "no epoch has ended since the fault" if compared is None else f"so far {compared}"
        name, rule = UNDECIDED, f"the run was cut {len(faulty.steps) - 1} step(s) after the fault; {so_far}"
    else:
        name, rule = _at_the_end(golden, faulty, measure, compared, t)
    if first_nonfinite_state is not None:
        leaf, steps = first_nonfinite_state
        rule += f"; of gradients and state, {leaf} was the first that was not finite, {_at(steps)}"
    return Outcome(
        outcome=name,
        exactly_masked_after=exactly_masked_after,
        rule=rule,
        first_nonfinite=first_nonfinite,
        first_nonfinite_state=first_nonfinite_state and first_nonfinite_state._asdict(),
        measure=dataclasses.asdict(measure),
        final=compared and {"golden": compared.golden._asdict(), "faulty": compared.faulty._asdict()},
        worse=compared and compared.worse._asdict(),
        tolerance={**tolerance._asdict(), "twins": noise.twins},
        thresholds=dataclasses.replace(t, tolerance=least),
    )


def _compare(golden: Trace, faulty: Trace, measure: Measure, tolerance: Parts, t: Thresholds) -> Compared | None:
    """The metrics at the end; None if no epoch ended."""
    if not len(faulty.train):
        return None
    ours, theirs = (
        Parts(*(float(np.mean(part[-t.final_epochs :])) for part in (run.train, run.test))) for run in (golden, faulty)
    )
    worse = Parts(*(measure.worse(one, other) for one, other in zip(ours, theirs, strict=True)))
    return Compared(ours, theirs, worse, tolerance)


def _when(steps: int) -> str:
    return "after the faulty step" if steps == 0 else f"{steps} step(s) after the faulty one"


def _at(steps: int) -> str:
    return "at the faulty step" if steps == 0 else _when(steps)


def _nonfinite(first: int, t: Thresholds) -> tuple[str, str]:
    name = IMMEDIATE if first <= t.immediate_steps else SHORT_TERM
    what = "loss" if t.nonfinite == "loss" else "value"
    return name, f"first non-finite {what} {_at(first)}; immediate means at most {t.immediate_steps} after it"


def _at_the_end(golden: Trace, faulty: Trace, measure: Measure, compared: Compared, t: Thresholds) -> tuple[str, str]:
    """Outcome and rule of a run that reached the end of the training with finite values."""
    name = measure.name
    no_worse = Parts(*(w <= limit + ROUNDING for w, limit in zip(compared.worse, compared.tolerance, strict=True)))
    if no_worse.train and no_worse.test:
        return MASKED, f"neither {name} at the end is worse than the tolerance: {compared}"
    if no_worse.train:
        return LOW_TEST, f"only the test {name} at the end is worse than the tolerance: {compared}"
    worse = f"training {name} at the end is worse than the tolerance: {compared}"
    collapse = _collapse(golden.steps, faulty.steps, measure, t)
    if collapse is None:
        return SLOW, (
            f"{worse}; no collapse: in no step within {t.collapse_steps} of the fault did the golden run "
            f"lead guessing by {_least_lead(measure, t):.3g}, so there was too little to lose"
        )
    at, share = collapse
    if share < t.collapse_share:
        return SLOW, (
            f"{worse}; no collapse: within {t.collapse_steps} steps at most {share:.2f} of the lead over "
            f"guessing was lost, a collapse is {t.collapse_share}"
        )
    since = faulty.steps[at:]
    after, last = since[: t.level_steps], since[-t.level_steps :]
    level, end = float(np.mean(after)), float(np.mean(last))
    moved = abs(end - level) / float(measure.lead(golden.steps[at]))
    collapsed = f"{share:.2f} of the lead over guessing was lost {at} step(s) after the faulty one"
    levels = (
        f"from {level:.3f} (mean of {len(after)} step(s) from there on) to {end:.3f} (of the last {len(last)}), "
        f"by {moved:.2f} of the lead over guessing, staying is {t.stay}: {compared}"
    )
    if moved <= t.stay:
        return SHARP, f"{collapsed}, and the run stayed there, {levels}"
    direction = "recovered" if measure.worse(level, end) < 0 else "declined further"
    return SHARP_SLOW, f"{collapsed}, then the run {direction} {levels}"


def _least_lead(measure: Measure, t: Thresholds) -> float:
    return t.collapse_lead * measure.span


def _collapse(golden: np.ndarray, faulty: np.ndarray, measure: Measure, t: Thresholds) -> tuple[int, float] | None:
    """The step, 1 … `collapse_steps` after the fault, that lost the largest share of the lead over guessing.

    None where the golden run has too small a lead to lose in each of them.
    """
    losses = []
    for at in range(1, min(t.collapse_steps + 1, len(faulty))):
        lead = measure.lead(golden[at])
        if lead > 0 and lead >= _least_lead(measure, t) - ROUNDING:
            losses.append((max(float(measure.worse(golden[at], faulty[at]) / lead), 0.0), at))
    if not losses:
        return None
    share, at = max(losses, key=lambda loss: loss[0])  # the first of equals
    return at, share
