"""`gradient_norm`: the norm of the whole gradient is far above what it was."""

import dataclasses
from typing import ClassVar

from .spike import Spike


@dataclasses.dataclass(frozen=True)
class GradientNorm(Spike):
    """See `Spike`."""

    signals: ClassVar[tuple[str, ...]] = ("gradient_norm",)
