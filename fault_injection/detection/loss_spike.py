"""`loss_spike`: the loss is far above what it was."""

import dataclasses
from typing import ClassVar

from .spike import Spike


@dataclasses.dataclass(frozen=True)
class LossSpike(Spike):
    """See `Spike`."""

    signals: ClassVar[tuple[str, ...]] = ("loss",)
