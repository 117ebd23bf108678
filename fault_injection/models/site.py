"""What can be struck, and the fault at one of them.  A description: nothing here is traced or computed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 and its like by it
import numpy as np

from .bits import low_bits, mask_type, unstruck
from .fault import INACTIVE, LARGEST_OPERAND, Fault, Operand, fixed, inactive_fault, padded_size, site_id


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape and type of a tensor.

    >>> TensorSpec.of(np.zeros((2, 3), "bfloat16"))
    TensorSpec(shape=(2, 3), dtype=dtype(bfloat16))
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, tensor: Any) -> Self:
        """That of an array, or of anything else that has a shape and a dtype."""
        return cls(tuple(tensor.shape), np.dtype(tensor.dtype))


@dataclasses.dataclass(frozen=True)
class Site:
    """One operation, or leaf of a state, that can be struck.

    Attributes:
      name: as in an injection file.
      layer: name of the layer that the operation belongs to; of a leaf its own, of a part of a state none.
      stage: `forward` or `backward`; of a leaf of a state, which has one operand, `state`.
      operands: shape and dtype of each operand, for one worker.
      kind: what it is, such as `product`; sites of one kind are counted together.
      owners: number of separate copies of the target, such as one per worker; 0 if it is shared; None where the
        workload's strategy decides.
      conditional: whether a step may leave it out: it stands in a branch, or in a loop that may end before it.
    """

    name: str
    layer: str
    stage: str
    operands: Mapping[Operand, TensorSpec]
    kind: str = "operation"
    owners: int | None = None
    conditional: bool = False

    @property
    def details(self) -> Mapping[str, Any]:
        """What else a listing says of it: JSON values by name."""
        return {}

    def named(self, operand: Operand) -> str:
        """What an operand is called; a leaf of a state, which has one, is called by its name."""
        return self.name if len(self.operands) == 1 else f"the {operand.name.lower()} of {self.name}"

    @property
    def shapes(self) -> dict[Operand, tuple[int, ...]]:
        """The shape of each operand, for one worker."""
        return {operand: tensor.shape for operand, tensor in self.operands.items()}


def make_fault(
    site: Site,
    operand: Operand,
    worker: int,
    index: Sequence[int] | np.ndarray,
    *,
    source: Sequence[int] | np.ndarray | None = None,
    keep: int | np.ndarray = 0,
    flip: int | np.ndarray = 0,
    size: int | None = None,
) -> Fault:
    """A fault of host integers, padded to `padded_size`.  Its arrays are read-only.

    Args:
      site: the operation, from `Workload.sites()`.
      operand: the operand struck.
      worker: global number of the worker struck.
      index: [n] distinct row-major positions in the operand of one worker.
      source: [n] positions read; by default `index`.
      keep, flip: masks, scalar or [n]; of `keep` an operand takes the low bits.
      size: the K to pad to; by default `padded_size(n)`.

    Raises:
      ValueError: a position that repeats or lies outside the operand, a `size` below n, a `keep` of too few bits, or
        an operand that cannot be struck (more than 2³¹ − 1 elements, or elements that `bits.unstruck` names).

    >>> shapes = {Operand.INPUT: (4, 3), Operand.WEIGHT: (3, 10), Operand.OUTPUT: (4, 10)}
    >>> operands = {operand: TensorSpec(shape, np.dtype("float32")) for operand, shape in shapes.items()}
    >>> site = Site("fc", "fc", "forward", operands)
    >>> fault = make_fault(site, Operand.OUTPUT, 2, [39], flip=0x7F800000)
    >>> fault.index, fault.flip
    (array([39], dtype=int32), array([2139095040], dtype=uint32))
    >>> make_fault(site, Operand.OUTPUT, 2, [40])
    Traceback (most recent call last):
    ValueError: position 40 lies outside the output of fc, which is [4, 10]; expected 0 to 39
    """
    struck, name = site.operands[operand], site.named(operand)
    elements, mask, kept = math.prod(struck.shape), mask_type(struck.dtype), np.asarray(keep)
    if elements > LARGEST_OPERAND:
        raise ValueError(f"{name} has {elements} elements; a fault reaches at most {LARGEST_OPERAND}")
    if why := unstruck(struck.dtype):
        raise ValueError(f"{name} is {struck.dtype}, which {why}: a fault cannot strike it")
    index = np.asarray(index, np.int64)
    source = index if source is None else np.asarray(source, np.int64)
    positions = np.concatenate([index, source])
    if (outside := positions[(positions < 0) | (positions >= elements)]).size:
        shape, expected = list(struck.shape), f"expected 0 to {elements - 1}"
        raise ValueError(f"position {outside[0]} lies outside {name}, which is {shape}; {expected}")
    if len(np.unique(index)) != index.size:
        raise ValueError(f"the positions of a fault must be distinct; one in {name} is listed twice")
    size = padded_size(index.size) if size is None else size
    if size < index.size:
        raise ValueError(f"a fault of {index.size} elements does not fit the size {size}")

    if mask is np.uint64 and kept.dtype == np.uint32 and kept.any():  # else its high bits would become 0
        raise ValueError(f"keep is uint32; masks of {name}, which is {struck.dtype}, are uint64")

    def padded(values: int | np.ndarray, fill: int, dtype: type) -> np.ndarray:
        values = np.broadcast_to(np.asarray(values, dtype), index.shape)
        return fixed(np.pad(values, (0, size - index.size), constant_values=fill))

    return Fault(
        site=np.int32(site_id(site.name)),
        operand=np.int32(operand),
        worker=np.int32(worker),
        index=padded(index, INACTIVE, np.int32),
        source=padded(source, 0, np.int32),
        keep=padded(kept.astype(mask), 0, mask),
        flip=padded(np.asarray(flip, mask) & low_bits(struck.dtype), 0, mask),
    )


def ruled_fault(site: Site, operand: Operand, worker: int, rule: np.ndarray) -> Fault:
    """A fault that strikes what fits a rule, see `rule.StrikeRule`.

    Args:
      site: the operation.
      operand: the operand struck, of floating-point numbers.
      worker: global number of the worker struck.
      rule: its words [11], of the type of the operand's masks.

    Raises:
      ValueError: the operand has more elements than positions can count, or the words another type.

    >>> from fault_injection.models.rule import NO_RULE
    >>> operands = dict.fromkeys(Operand, TensorSpec((4, 3), np.dtype("float32")))
    >>> fault = ruled_fault(Site("fc", "fc", "forward", operands), Operand.OUTPUT, 2, NO_RULE.words(np.uint32))
    >>> fault.index, len(fault.rule)
    (array([0], dtype=int32), 11)
    """
    struck = site.operands[operand]
    if (elements := math.prod(struck.shape)) > LARGEST_OPERAND:
        name = site.named(operand)
        raise ValueError(f"{name} has {elements} elements; a fault reaches at most {LARGEST_OPERAND}")
    mask = mask_type(struck.dtype)
    if rule.dtype != mask:
        raise ValueError(f"the rule is {rule.dtype}; masks of {site.named(operand)} are {np.dtype(mask)}")
    return dataclasses.replace(
        inactive_fault(1, np.int32(site_id(site.name)), mask, ruled=True),
        operand=np.int32(operand),
        worker=np.int32(worker),
        index=fixed(np.zeros(1, np.int32)),
        rule=rule,
    )
