"""What the trees of arrays of a network are called."""

from typing import Any

import jax
import numpy as np

Shape = tuple[int, ...]
Key = tuple[int, ...] | None  # integers such as the seed; None asks for shapes alone
Initial = dict[str, dict[str, np.ndarray | jax.ShapeDtypeStruct]]
Params = dict[str, dict[str, jax.Array]]
Stats = dict[str, dict[str, jax.Array]]
Cache = Any  # what a layer's forward pass keeps for its own backward pass; nobody else looks into it
