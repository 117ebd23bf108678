"""What came of an experiment."""

import dataclasses
from typing import NamedTuple

HORIZON, END = "horizon", "end"  # what ended an experiment that no observer ended
SETTLED = "settled"  # the reason to end a run that is no further from the golden one than a twin


class Alteration(NamedTuple):
    """An element of a checkpoint that a run restarted from: its array, row-major position, and bits."""

    array: str
    position: int
    before: int
    after: int


class Comparison(NamedTuple):
    """A run that was compared with the golden run's state, see `settled.Settled`.

    Attributes:
      settled_after: steps after the faulty one at which it settled; None where it did not.
      ended: 1 where it was not followed any further, 0 where it was.
      golden_steps: steps of the golden run that were taken beside it.
    """

    settled_after: int | None
    ended: int
    golden_steps: int


class GroupResult(NamedTuple):
    """What a run came to in which several faults struck, each at its own step, to check their early verdicts.

    Attributes:
      name: of the group, see `together.Group`.
      members: numbers of its experiments.
      outcome, rule: its verdict, by the rule of any run.
      epoch, step: of its first fault, with which it begins.
      steps: how many it took, the first faulty one included.
      seconds: of the job.
    """

    name: str
    members: tuple[int, ...]
    outcome: str
    rule: str
    epoch: int
    step: int
    steps: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of an experiment: a row of the store but for its key (docs/campaign.md, Store).

    `alterations` and `comparison` are rows of their own tables.
    """

    number: int
    epoch: int
    step: int
    worker: int
    site: str
    stage: str
    operand: str
    model: str
    value_source: str
    elements: int
    bit: int | None
    first_position: int
    old_bits: int
    new_bits: int
    operand_changed: int
    output_changed: int
    outcome: str
    rule: str
    exit: str
    steps: int
    first_nonfinite: int | None
    nonfinite_leaf: str | None
    nonfinite_leaf_after: int | None
    exactly_masked_after: int | None
    early_rule: str | None
    early_after: int | None
    early_outcome: str | None
    near: int
    history_excess: float
    variance_excess: float
    loss_gap: float
    worse_train: float | None
    worse_test: float | None
    audit_outcome: str | None
    audit_rule: str | None
    audit_steps: int
    seconds: float
    outside_seconds: float
    setup_seconds: float
    curve: bytes
    alterations: tuple[Alteration, ...] = ()
    comparison: Comparison | None = None
