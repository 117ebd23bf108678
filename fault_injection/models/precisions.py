"""The precisions of a training by name; which number formats each of them has."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Precision:
    """The formats of a step, by their names in NumPy and `ml_dtypes`.

    Attributes:
      held: of activations, of their gradients, and of what an operation gives.
      forward, backward: what a product reads, where that is narrower: activations and parameters,
        and gradients.  Each operand is divided by a scale of its own, see `precision.scale`.
      loss_scale: the loss is multiplied by this before the backward pass, and parameter gradients are divided by it
        afterwards.
    """

    held: str
    forward: str | None = None
    backward: str | None = None
    loss_scale: float = 1.0


PRECISIONS = {
    "float32": Precision("float32"),
    "bfloat16": Precision("bfloat16"),
    "float16": Precision("float16", loss_scale=1024.0),
    "float8": Precision("bfloat16", "float8_e4m3fn", "float8_e5m2"),
}
