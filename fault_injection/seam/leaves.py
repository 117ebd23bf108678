"""What the arrays of a state are to a training run."""

import enum
from typing import Any, NamedTuple

State = Any  # any pytree of arrays
Batch = Any  # any pytree of arrays


class Role(enum.StrEnum):
    """What a leaf of a state, or a tensor that a step looks at, is to a training run."""

    GRADIENT = "gradients"
    PARAMETER = "parameters"
    STATISTIC = "statistics"  # running statistics but for variances
    VARIANCE = "running_variance"
    HISTORY = "history"  # what an optimizer keeps of past gradients
    KEPT = "kept"  # what a step keeps of other leaves, to report it; no fault strikes it
    OTHER = "other"


# Moments of known meaning, as Keras and Optax call them: means of gradients, sums of them, means of their squares.
MEANS, SUMS, SQUARES = ("m", "mu"), ("trace",), ("v", "nu")


class Leaf(NamedTuple):
    """A named array of a state, or a gradient.

    Attributes:
      name: unique, such as `params/conv1/kernel`.
      role: what it is to the run.
      moment: of a leaf of the optimizer's history, which moment it belongs to, such as `m`.
      parameter: of the same, the name of the parameter that it is kept for; empty where that is not known.
    """

    name: str
    role: Role = Role.OTHER
    moment: str = ""
    parameter: str = ""

    @property
    def kind(self) -> str:
        """The moment without its place in a chain of optimizers: `mu` of `0.mu`."""
        return self.moment.rpartition(".")[2]


def part_of(name: str) -> str:
    """The part of the state that holds a leaf: its name without layer and parameter.

    A name of one or two parts is its own part.

    >>> part_of("opt_state/v/conv1/kernel"), part_of("params/fc/bias"), part_of("slopes")
    ('opt_state/v', 'params', 'slopes')
    """
    return "/".join(name.split("/")[:-2]) or name
