"""What a trained state says of test data, as a function of its parameters."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..models.fault import Fault

Array = Any  # of JAX, which this room does without


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What is judged where parameters, or operands of the forward pass, are corrupted at inference.

    Attributes:
      parameters: arrays on the host by the names of their leaves, in the order of the forward pass.
      others: what else the function needs, such as running statistics: a tree of arrays.
      inputs: of the test examples, [n,…] on the host, of which some can be looked at alone; None where they cannot.
      targets: of the test examples, [n,…]; None where they are not known.
      of: `(parameters, others, inputs, fault, sites) -> logits [n,…,C]`; or `[1, 1]`, how bad the state is.  A
        fault, if it is not None, strikes operands of these sites, where every worker has one example.
    """

    parameters: Mapping[str, np.ndarray]
    others: Any
    inputs: np.ndarray | None
    targets: np.ndarray | None
    of: Callable[[Mapping[str, Array], Any, Array | None, Fault | None, frozenset[str] | None], Array]
