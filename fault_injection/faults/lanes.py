"""A lane of an array of multipliers, as a row `inj_lane` of an injection file writes it: `5/256` is lane 5 of 256.

The lane computes every element whose row-major position is its number modulo the number of lanes.
"""

from collections.abc import Sequence

import numpy as np

from ..machine.reading import Kind
from .element_bits import POSITION, Position, ravel, unravel


def _parse(text: str) -> tuple[int, int]:
    lane, lanes = POSITION.parse(text)
    if lane >= lanes:
        raise ValueError
    return lane, lanes


LANE = Kind(_parse, lambda text: "a lane and the number of lanes, such as 5/256: 0 to 255 of 256")


def positions_of(lane: int, lanes: int, shape: tuple[int, ...]) -> tuple[Position, ...]:
    """The positions that it computes in a tensor; none where that has too few elements.

    >>> positions_of(1, 4, (2, 3))
    ((0, 1), (1, 2))
    """
    return tuple(unravel(np.arange(lane, np.prod(shape, dtype=np.int64), lanes), shape))


def lane_of(positions: Sequence[Position], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The lane that computes these positions and no others; None where there is none, or only one position.

    >>> lane_of(((0, 1), (1, 2)), (2, 3)), lane_of(((0, 1), (1, 1)), (2, 3))
    ((1, 4), (1, 3))
    >>> lane_of(((0, 1), (0, 2)), (2, 3)) is None
    True
    """
    index = ravel(positions, shape)
    steps = np.unique(np.diff(index))
    if len(steps) != 1 or not 0 <= index[0] < steps[0] or index[-1] + steps[0] < np.prod(shape, dtype=np.int64):
        return None
    return int(index[0]), int(steps[0])
