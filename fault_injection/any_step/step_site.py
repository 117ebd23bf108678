"""What can be struck in a user's step."""

import dataclasses
from typing import Any

from ..models.fault import Operand
from ..models.site import Site


@dataclasses.dataclass(frozen=True)
class StepSite(Site):
    """A product or convolution of a user's step.

    The operands of a site in loops have a leading axis for each loop: its turns.

    Attributes:
      role: `forward`, `grad_in`, `grad_wt`, `recompute` (a checkpoint makes a forward product again) or `update`
        (a product of gradients, as some optimizers have).
      kind: name of the primitive.
      parameter: the operand that is the parameter; None where neither is.
      iterations: turns of the loops around it, the outermost first.
      axes: mesh axes over which each device runs it with operands of its own.
      workers: how many devices that are; 1 where all share it.
      conditional: whether a step may leave it out: it stands in a branch, or in a loop that may end before it.
      checked: whether it has a checksum (`step_checks`).
      layout: of one turn: the axes of its first operand, its second and its result, as letters; those that are equal
        belong together.  Empty where that is not known.
      line: of the user's code, such as `my_run.py:12`.
    """

    role: str = "forward"
    kind: str = "dot_general"
    parameter: Operand | None = None
    iterations: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    workers: int = 1
    conditional: bool = False
    checked: bool = False
    layout: tuple[str, ...] = ()
    line: str = ""

    @property
    def details(self) -> dict[str, Any]:
        """What a listing says of it besides names and shapes: JSON values by name."""
        return {
            "role": self.role,
            "operation": self.kind,
            "parameter": None if self.parameter is None else self.parameter.name.lower(),
            "iterations": list(self.iterations),
            "mesh_axes": list(self.axes),
            "workers": self.workers,
            "conditional": self.conditional,
            "layout": dict(zip(("input", "weight", "output"), self.layout, strict=False)),
            "line": self.line,
        }
