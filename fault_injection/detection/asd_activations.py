"""`asd_activations`: the decision of `asd`, on what Ascend's earlier versions watched: gradients of activations.

Reference: as `asd`; what is watched is that of `asd_v1` and `asd_v3` (docs/detection.md).
"""

import dataclasses
from typing import ClassVar

from .asd import Asd


@dataclasses.dataclass(frozen=True)
class AsdActivations(Asd):
    """As `Asd`, of the gradients at the inputs of norms and of the head, and at the outputs of embeddings.

    >>> AsdActivations().signals
    ('largest/gradients',)
    """

    signals: ClassVar[tuple[str, ...]] = ("largest/gradients",)
