"""Strategies of distributed training: who has a copy of the state, what becomes of gradients, and how a run starts.

A strategy is a value.  Its fields are the rules that programs read; nothing else asks for its name.  What each rule
is taken from, and what a corrupted copy does under it, is told in docs/strategies.md.
"""

import dataclasses
import enum
from collections.abc import Callable

from ..machine.reading import Kind, whole


class Sum(enum.Enum):
    """What becomes of the workers' gradients."""

    AT_ONCE = "summed in the order of the device's collective"
    RING = "summed piece by piece around a ring of the workers"
    NONE = "each worker follows its own"


class StartRule(enum.Enum):
    """What a part of the state is at the start, of what several loaders have read."""

    OWN = "each worker has its own"
    FIRST = "all have that of worker 0"
    SHARE = "worker r gives the r-th share of each array"
    STAGE = "the process of a stage gives the arrays of its layers"


@dataclasses.dataclass(frozen=True)
class Strategy:
    """How the workers of a training share their work; `str` gives the text of the option.

    >>> str(parse_strategy("local 4")), parse_strategy("local 4").every
    ('local 4', 4)
    >>> parse_strategy("ddp").copies, parse_strategy("zero").copies
    (True, False)

    Attributes:
      text: of the option.
      copies: whether each worker has its own copy of the state.
      gradients: what becomes of the workers' gradients.
      params, stats, opt_state: what these parts of the state are at the start.
      sharded: parts of the state of which each device holds a piece.
      buffers: whether all have worker 0's running statistics after each step, and not their mean.
      every: number of steps after which the copies are averaged; 0 for never.
      stages: into which the layers are split; 0 where each worker has all of them.
    """

    text: str
    copies: bool = False
    gradients: Sum = Sum.AT_ONCE
    params: StartRule = StartRule.FIRST
    stats: StartRule = StartRule.FIRST
    opt_state: StartRule = StartRule.FIRST
    sharded: frozenset[str] = frozenset()
    buffers: bool = False
    every: int = 0
    stages: int = 0

    def __str__(self) -> str:
        return self.text

    def loaders(self, workers: int) -> int:
        """How many workers, or stages, load a checkpoint each.

        >>> [parse_strategy(text).loaders(8) for text in ("replicated", "ddp", "pipeline 2")]
        [1, 8, 2]
        """
        if self.stages:
            return self.stages
        return workers if self.copies or self.sharded else 1

    @property
    def diverges(self) -> bool:
        """Whether the workers' copies differ without a fault."""
        return self.gradients is Sum.NONE

    def at_start(self, part: str) -> StartRule:
        """What a part of the state, such as `params`, is at the start; what a step keeps of others is worker 0's."""
        rule: StartRule = getattr(self, part, StartRule.FIRST)
        return rule


REPLICATED = Strategy("replicated")
DDP = Strategy("ddp", copies=True, opt_state=StartRule.OWN)
DDP_BUFFERS = Strategy("ddp buffers", copies=True, opt_state=StartRule.OWN, buffers=True)
HOROVOD = Strategy(
    "horovod", copies=True, gradients=Sum.RING, params=StartRule.OWN, stats=StartRule.OWN, opt_state=StartRule.OWN
)
HOROVOD_BROADCAST = Strategy("horovod broadcast", copies=True, gradients=Sum.RING)
ZERO = Strategy("zero", opt_state=StartRule.SHARE, sharded=frozenset({"opt_state"}))
ZERO_PARAMETERS = Strategy(
    "zero parameters", params=StartRule.SHARE, opt_state=StartRule.SHARE, sharded=frozenset({"params", "opt_state"})
)
NAMED = {str(each): each for each in (REPLICATED, DDP, HOROVOD, HOROVOD_BROADCAST, ZERO, ZERO_PARAMETERS, DDP_BUFFERS)}


def local(every: int) -> Strategy:
    """Each worker takes its own steps; the copies are averaged after so many."""
    own = StartRule.OWN
    return Strategy(
        f"local {every}", copies=True, gradients=Sum.NONE, params=own, stats=own, opt_state=own, every=every
    )


def pipeline(stages: int) -> Strategy:
    """The layers are split into so many stages, through which each worker's batch passes."""
    of = StartRule.STAGE
    return Strategy(f"pipeline {stages}", params=of, stats=of, opt_state=of, stages=stages)


# With a number, and how the number is read.
NUMBERED: dict[str, tuple[Callable[[int], Strategy], Kind[int]]] = {
    "local": (local, whole(1)),
    "pipeline": (pipeline, whole(2, 4096)),
}
EXPECTED = f"{', '.join(NAMED)}, local N (from 1) or pipeline S (from 2)"


def parse_strategy(text: str) -> Strategy:
    """The strategy of an option's text.

    Raises:
      ValueError: there is no such strategy.

    >>> parse_strategy("local 0")
    Traceback (most recent call last):
    ValueError: strategy 'local 0'; expected replicated, ddp, horovod, horovod broadcast, zero, zero parameters, \
ddp buffers, local N (from 1) or pipeline S (from 2)
    """
    if text in NAMED:
        return NAMED[text]
    name, _, number = text.partition(" ")
    try:
        make, kind = NUMBERED[name]
        return make(kind.parse(number))
    except (KeyError, ValueError):
        raise ValueError(f"strategy {KIND.wrong(text)}") from None


# The option keeps its text: a workload is written to files as JSON, and read from them.
KIND: Kind[str] = Kind(lambda text: str(parse_strategy(text)), lambda text: EXPECTED)
