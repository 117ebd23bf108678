"""What can be struck in a user's step."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..models.fault import Operand
from ..models.site import Site

KINDS = {"dot_general": "product", "conv_general_dilated": "convolution", "ragged_dot_general": "ragged product"}


@dataclasses.dataclass(frozen=True)
class StepSite(Site):
    """A product or convolution of a user's step, with what only this room asks of it.

    The operands of a site in loops have a leading axis for each loop: its turns.  Its `owners` are the devices that
    run it with operands of their own; 1 where all share it.

    Attributes:
      role: `forward`, `grad_in`, `grad_wt`, `recompute` (a checkpoint makes a forward product again) or `update`
        (a product of gradients, as some optimizers have).
      primitive: its name.
      parameter: the operand that is the parameter; None where neither is.
      leaf: the path of that parameter, as the state has it; empty where neither operand is one.
      iterations: turns of the loops around it, the outermost first.
      axes: mesh axes over which each device runs it with operands of its own.
      checked: whether it has a checksum (`step_checks`).
      layout: of one turn: the axes of its first operand, its second and its result, as letters; those that are equal
        belong together.  Empty where that is not known.
      line: of the user's code, such as `my_run.py:12`.
    """

    owners: int = 1
    role: str = "forward"
    primitive: str = "dot_general"
    parameter: Operand | None = None
    leaf: str = ""
    iterations: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    checked: bool = False
    layout: tuple[str, ...] = ()
    line: str = ""

    @property
    def details(self) -> Mapping[str, Any]:
        return {
            "role": self.role,
            "operation": self.primitive,
            "parameter": None if self.parameter is None else self.parameter.name.lower(),
            "iterations": list(self.iterations),
            "mesh_axes": list(self.axes),
            "workers": self.owners,
            "conditional": self.conditional,
            "layout": dict(zip(("input", "weight", "output"), self.layout, strict=False)),
            "line": self.line,
        }
