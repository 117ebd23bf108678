"""The verdict: what came of a fault, against the paired fault-free run.

The names are published (He et al., ISCA 2023); their numeric thresholds are not.  The ones
here are our own, each a field of `Thresholds`; a verdict states the rule and the numbers
that fired (docs/science.md, Outcomes).
"""

import dataclasses
from typing import Any

import numpy as np

MASKED = "Masked"
IMMEDIATE = "Immediate INFs/NaNs"
SHORT_TERM = "Short-term INFs/NaNs"
SLOW = "SlowDegrade"
SHARP_SLOW = "SharpSlowDegrade"
SHARP = "SharpDegrade"
LOW_TEST = "LowTestAccuracy"
UNDECIDED = "Undecided"
OUTCOMES = (MASKED, IMMEDIATE, SHORT_TERM, SLOW, SHARP_SLOW, SHARP, LOW_TEST, UNDECIDED)

# An accuracy lower by exactly the tolerance is no worse, whatever its last bits say: those of a
# step are float32, and 0.9 − 0.88 exceeds 0.02 even in float64.  One image in 10 million still counts.
ROUNDING = 1e-7


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Every number that a verdict depends on.  Accuracies are fractions: 0.02 is two points.

    Attributes:
      immediate_steps: a non-finite value up to so many steps after the faulty one is immediate.
      final_epochs: accuracies at the end are means over so many last epochs (of those that
        ended after the fault).
      tolerance: an accuracy at the end that is lower by no more than this is no worse.
      sigmas: the tolerance is at least so many standard deviations of the golden run's twins.
      collapse_steps: a collapse happens within so many steps after the faulty one.
      collapse_share: a collapse loses at least this share (above 0) of the golden run's
        accuracy above chance, in one step's training accuracy.
      level_steps: the level after a collapse is the mean training accuracy of so many steps,
        the one that collapsed the first of them; the level at the end is that of so many last
        steps.  (The epochs' means would not do: the fault's own holds steps before it.)
      stay: a run has stayed there whose level at the end differs from the one after the
        collapse by at most this share of the golden run's accuracy above chance (0.3 names the
        one published example as its authors did; it regains a quarter).
    """

    immediate_steps: int = 1
    final_epochs: int = 3
    tolerance: float = 0.02
    sigmas: float = 3.0
    collapse_steps: int = 2
    collapse_share: float = 0.75
    level_steps: int = 10
    stay: float = 0.3


@dataclasses.dataclass(frozen=True)
class Trace:
    """Accuracies of one run from the fault on, as fractions.

    Attributes:
      steps: training accuracy of each step, the faulty one first.
      train, test: training and test accuracy of each epoch that ended after the fault.
    """

    steps: np.ndarray
    train: np.ndarray
    test: np.ndarray


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A verdict.

    Attributes:
      outcome: one of `OUTCOMES`.
      exactly_masked_after: steps after the faulty one until the state was bit-identical to the
        fault-free one (0: already after the faulty step), a proof that nothing later can
        differ; None where that did not happen.
      rule: the rule that fired, with its numbers, in a sentence.
      first_nonfinite: steps from the faulty one to the first non-finite value, or None.
      final: accuracies at the end, `{golden|faulty: {train, test}}`, None if no epoch ended.
      worse: golden minus faulty of the same, `{train, test}`.
      tolerance: what `worse` is held against, `{train, test}`, and `twins` behind it (0: none).
      thresholds: the parameters of all rules.
    """

    outcome: str
    exactly_masked_after: int | None
    rule: str
    first_nonfinite: int | None
    final: dict[str, dict[str, float]] | None
    worse: dict[str, float] | None
    tolerance: dict[str, float]
    thresholds: Thresholds


def chance(labels: np.ndarray) -> float:
    """Accuracy of guessing: the share of the commonest label [n]."""
    return float(np.bincount(labels).max() / len(labels))


def classify(
    golden: Trace,
    faulty: Trace,
    *,
    finished: bool,
    first_nonfinite: int | None = None,
    exactly_masked_after: int | None = None,
    noise: dict[str, Any] | None = None,
    chance: float = 0.1,
    thresholds: Thresholds | None = None,
) -> Outcome:
    """The first rule that applies, in the order of docs/science.md, Outcomes.

    Args:
      golden, faulty: accuracies of both runs over the same steps and epochs.
      finished: whether the faulty run reached the end of the training.
      first_nonfinite: steps from the faulty one to the first non-finite loss, gradient,
        parameter, optimizer moment, running statistic or validation loss; None if there was none.
      exactly_masked_after: see `Outcome`.
      noise: `train` and `test` standard deviations of the accuracy at the end over the golden
        run and its `twins`; None if no twins were run.
      chance: accuracy of guessing.
    """
    t = thresholds or Thresholds()
    noise = noise or {"twins": 0, "train": 0.0, "test": 0.0}
    tolerance = {part: max(t.tolerance, t.sigmas * noise[part]) for part in ("train", "test")}
    final, worse = _final(golden, faulty, t)
    name, rule = _first_rule(
        golden, faulty, finished, first_nonfinite, exactly_masked_after, final, worse, tolerance, chance, t
    )
    return Outcome(
        outcome=name,
        exactly_masked_after=exactly_masked_after,
        rule=rule,
        first_nonfinite=first_nonfinite,
        final=final,
        worse=worse,
        tolerance={**tolerance, "twins": noise["twins"]},
        thresholds=t,
    )


def _final(golden, faulty, t):
    if not len(faulty.train):
        return None, None
    window = slice(-t.final_epochs, None)
    final = {
        name: {part: float(np.mean(getattr(run, part)[window])) for part in ("train", "test")}
        for name, run in (("golden", golden), ("faulty", faulty))
    }
    return final, {part: final["golden"][part] - final["faulty"][part] for part in ("train", "test")}


def _first_rule(golden, faulty, finished, nonfinite, exact, final, worse, tolerance, chance, t):
    if nonfinite is not None:
        when = "at the faulty step" if nonfinite == 0 else f"{nonfinite} step(s) after the faulty one"
        name = IMMEDIATE if nonfinite <= t.immediate_steps else SHORT_TERM
        return name, f"first non-finite value {when}; immediate means at most {t.immediate_steps} after it"
    if exact is not None:
        when = "after the faulty step" if exact == 0 else f"{exact} step(s) after the faulty one"
        return MASKED, f"exactly masked: the state {when} is bit-identical to the fault-free one"
    if not finished:
        distance = (
            "no epoch has ended since the fault" if worse is None else f"so far {_compared(final, worse, tolerance)}"
        )
        return UNDECIDED, f"the run was cut {len(faulty.steps) - 1} step(s) after the fault; {distance}"

    compared = _compared(final, worse, tolerance)
    no_worse = {part: worse[part] <= tolerance[part] + ROUNDING for part in worse}
    if no_worse["train"]:
        if no_worse["test"]:
            return MASKED, f"neither accuracy at the end is worse than the tolerance: {compared}"
        return LOW_TEST, f"only the test accuracy at the end is worse than the tolerance: {compared}"
    at, share = _collapse(golden.steps, faulty.steps, chance, t)
    if share < t.collapse_share:
        return SLOW, (
            f"training accuracy at the end is worse than the tolerance: {compared}; no collapse: within "
            f"{t.collapse_steps} steps at most {share:.2f} of the accuracy above chance was lost, "
            f"a collapse is {t.collapse_share}"
        )
    since = faulty.steps[at:]
    after, last = since[: t.level_steps], since[-t.level_steps :]
    level, end = float(np.mean(after)), float(np.mean(last))
    moved = abs(end - level) / (golden.steps[at] - chance)
    collapsed = f"{share:.2f} of the accuracy above chance was lost {at} step(s) after the faulty one"
    levels = (
        f"from {level:.3f} (mean of {len(after)} step(s) from there on) to {end:.3f} (of the last {len(last)}), "
        f"by {moved:.2f} of the accuracy above chance, staying is {t.stay}: {compared}"
    )
    if moved <= t.stay:
        return SHARP, f"{collapsed}, and the run stayed there, {levels}"
    direction = "recovered" if end > level else "declined further"
    return SHARP_SLOW, f"{collapsed}, then the run {direction} {levels}"


def _compared(final, worse, tolerance):
    return ", ".join(
        f"{part} {final['faulty'][part]:.4f} against {final['golden'][part]:.4f} "
        f"({worse[part]:+.4f} worse, tolerance {tolerance[part]:.4f})"
        for part in ("train", "test")
    )


def _collapse(golden, faulty, chance, t):
    """The step, 1 … `collapse_steps` after the fault, that lost the largest share of the accuracy above chance."""
    losses = [(0.0, 1)]
    for at in range(1, min(t.collapse_steps + 1, len(faulty))):
        if golden[at] > chance:
            losses.append((float((golden[at] - faulty[at]) / (golden[at] - chance)), at))
    share, at = max(losses, key=lambda loss: loss[0])  # the first of equals
    return at, share
