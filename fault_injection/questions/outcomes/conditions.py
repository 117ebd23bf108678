"""The early verdict: what a run must show within two updates of the fault for a bad outcome to follow later.

**Second-hand** [He 2023]: a bad outcome that does not show at once needs, within two steps of the
fault, large values in the optimizer's gradient history or a large running variance.  What "large"
means is **ours**: larger than the golden run's in the same step.  Where no moment shows a parameter's
gradient, the gradient itself is looked at, because its update is a multiple of it.  **Ours**, too, is that
no parameter may be large, and that everything is finite: audits of faults in the state asked for it.

The condition speaks of a transient fault in an operation, of what an optimizer does with the gradient, and of
parameters as what is evaluated.  So a rule is used only where that is so (`Conditions.rule`), or where audits of
the same campaign support it (`support.Support`).
"""

import dataclasses
import enum
import math

CONDITIONS = "conditions"  # the reason to end a run early


class Rule(enum.StrEnum):
    """Why a run need not be followed; each is a condition of `Conditions.rule`."""

    AT_ONCE = "at once"
    WITHIN = "within the envelope"
    LOSS_GAP = "loss gap"
    VARIANCE = "variance alone"


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the steps since the fault have shown, in units of the golden run's same step; each the largest so far.

    Attributes:
      history: largest value of what the optimizer keeps, of gradients that no moment shows, and of statistics that
        steps read.
      variance: the same of running statistics of norms; 0 where there are none.
      loss_gap: difference to the golden run's loss, of the steps after the faulty one.
      parameters: largest parameter.
      finite: whether every gradient and every array of the state was.
      updates: of the parameters in the golden run, since the difference has reached them; None while it has not, as
        while gradients are accumulated.
      unknown: whether an array of an unknown role differs after this step.
      apart: whether running statistics of norms have differed, and nothing else has.
    """

    history: float = 0.0
    variance: float = 0.0
    loss_gap: float = 0.0
    parameters: float = 0.0
    finite: bool = True
    updates: int | None = None
    unknown: bool = False
    apart: bool = False


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Every number that the early verdict depends on.

    Attributes:
      steps: how many updates after the one with the fault are looked at.
      usual: a history of at most this many times the golden run's is usual: from step to step, its own largest moments
        vary by that much (a median of 1.4 to 1.5 in `resnet18`, over three epochs).
      at_once: if no history exceeds what is usual, and nothing else this many times the golden run's value, the faulty
        step is enough.
      margin: a value is large if it exceeds this many times the golden run's.
      loss: a loss agrees if it differs from the golden run's of that step by at most this much.
      close_loss: a large history does no harm if the loss differs by at most this much.
      floor: an array whose golden value is below this share of the largest of all arrays of the same moment counts as
        if it had that share: the gradients of a bias before a batch norm are rounding errors, and vary by themselves.
    """

    steps: int = 2
    usual: float = 1.5
    at_once: float = 1.05
    margin: float = 2.0
    loss: float = 0.05
    close_loss: float = 1e-3
    floor: float = 0.01

    def rule(self, steps: int, seen: Seen, premises: bool = True, unread: bool = False) -> Rule | None:
        """The rule by which a run need not be followed, or None.  What is not a number satisfies none.

        >>> Conditions().rule(0, Seen(history=1.0, variance=1.0))
        <Rule.AT_ONCE: 'at once'>
        >>> Conditions().rule(2, Seen(history=40.0, variance=1.0, loss_gap=0.01, updates=2)) is None
        True

        Args:
          steps: how many after the faulty one.
          seen: in these and the faulty one.
          premises: whether the optimizer has yet to make an update of what the fault struck, or audits decide what
            the rules are worth.  What strikes a state or an update need not make anything large to do harm.
          unread: whether training is known to read no running statistics of norms.
        """
        if seen.apart:  # however small: a variance near zero does harm, too
            return Rule.VARIANCE if steps == self.steps and self._small(seen) else None
        if not premises or seen.unknown or not seen.finite or not seen.parameters <= self.margin:
            return None
        if steps == 0 and self._usual(seen):
            return Rule.AT_ONCE
        if seen.updates != self.steps or not math.isfinite(seen.history) or not math.isfinite(seen.variance):
            return None
        if seen.variance > self.margin:
            return Rule.VARIANCE if unread and self._small(seen) else None
        if self._small(seen):
            return Rule.WITHIN
        return Rule.LOSS_GAP if seen.loss_gap <= self.close_loss else None

    def _small(self, seen: Seen) -> bool:
        return seen.history <= self.margin and seen.loss_gap <= self.loss

    def _usual(self, seen: Seen) -> bool:
        return seen.history <= self.usual and seen.variance <= self.at_once and seen.parameters <= self.at_once

    def near(self, rule: Rule, seen: Seen) -> bool:
        """Whether a verdict is so near a threshold that it is worth an audit.

        It is if a value exceeded what is usual without being large, or if a large history
        came with a loss gap above half of what does no harm.
        """
        if rule == Rule.WITHIN:
            return not self._usual(seen)
        return rule == Rule.LOSS_GAP and seen.loss_gap > self.close_loss / 2

    def sentence(self, rule: Rule, seen: Seen) -> str:
        """A rule with its numbers."""
        values = (seen.history, seen.variance, seen.parameters)
        history, variance, parameters = (f"{value:.3g} times the golden run's" for value in values)
        gap = f"the loss stayed within {seen.loss_gap:.3g} of the golden one's"
        all_three = f"optimizer history reached {history}, running variance {variance} and parameters {parameters}"
        after = f"in the faulty step and {self.steps} updates after it"
        match rule:
            case Rule.AT_ONCE:
                return f"in the faulty step {all_three} (at most {self.usual:g}, and {self.at_once:g} of the others)"
            case Rule.WITHIN:
                return f"{after} {all_three} (at most {self.margin:g}), and {gap} (at most {self.loss:g})"
            case Rule.LOSS_GAP:
                return f"{after} optimizer history reached {history}, but {gap} (at most {self.close_loss:g})"
            case Rule.VARIANCE:
                return (
                    f"{after} running variance reached {variance}, optimizer history {history} (at most "
                    f"{self.margin:g}), and {gap} (at most {self.loss:g}), so that only evaluations can differ"
                )
