"""What a fault is, and what a step reports of it: values without JAX (how one enters a tensor: `models.overwrite`).

A fault is data, not code.  Inside a step its site, operand, worker, positions and bits are traced integers, so one
executable serves all of them.  Only the number of elements K is a shape, and the width of masks a type.
"""

import dataclasses
import enum
import zlib
from typing import Any, TypeVar

import numpy as np

from .bits import NewBits
from .rule import NO_RULE

INACTIVE = -1
LARGEST_OPERAND = 2**31 - 1  # elements: positions are int32


class Operand(enum.IntEnum):
    """The three tensors of an operation that a fault can strike.

    >>> Operand.WEIGHT.name.lower()
    'weight'
    """

    INPUT = 0
    WEIGHT = 1
    OUTPUT = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault(NewBits):
    """New bits of one operand of one site of one worker.

    An element whose `index` or `source` lies outside the operand is not written.

    Attributes:
      site: int32 scalar, `site_id` of the operation; `INACTIVE` strikes nowhere.
      operand: int32 scalar, an `Operand`.
      worker: int32 scalar, the global number of the data-parallel worker.
      index: int32 [K], distinct row-major positions in the operand of that worker; `INACTIVE` pads.
      source: int32 [K], positions whose bits are read.
      keep, flip: uint32 [K], masks, of an operand of 64 bits uint64; one of narrower elements takes their low bits.
      rule: [11], of the type of the masks: which elements are struck, and what they become, see `rule.StrikeRule`: it
        says so in place of the four above, of which there is one each; `index` is 0, or `INACTIVE` for nothing.
        None where those say it.

    >>> fault = inactive_fault(2)
    >>> fault.index.shape, int(fault.site) == INACTIVE
    ((2,), True)
    """

    site: Any
    operand: Any
    worker: Any
    rule: Any = None


@dataclasses.dataclass(frozen=True)
class Struck:
    """What a fault did, as the step that it struck reports it.

    Attributes:
      hits: int32, number of operations struck: 1, or 0 for an inactive fault, and for a rule that no element fits.
      old, new: [K], bits of the listed elements before and after, of the type of the fault's masks; of a rule, those of
        the first element that it strikes.
      operand_changed: int32, number of elements of the whole operand whose bits changed.
      output_changed: int32, number of elements of the operation's result (of that worker) whose
        bits differ from the clean result.
      matched: int32 [2], of a rule: how many elements it struck, changed or not, and the position of the first of them;
        None of listed elements.
    """

    hits: Any
    old: Any
    new: Any
    operand_changed: Any
    output_changed: Any
    matched: Any


Faults = Fault | tuple[Fault, ...]  # of one step: one, or several, each at an operation or a leaf of its own
AllStruck = Struck | tuple[Struck, ...]  # what each of them did
Each = TypeVar("Each")


def each_of(one_or_several: Each | tuple[Each, ...] | None) -> tuple[Each, ...]:
    """Each of the faults of a step, or of what they did; none without a fault."""
    if one_or_several is None:
        return ()
    return one_or_several if isinstance(one_or_several, tuple) else (one_or_several,)


def as_one(each: tuple[Each, ...]) -> Each | tuple[Each, ...]:
    """What a step takes or tells of these: one of them stands alone, so that a step compiles as if there were no more.

    >>> one = inactive_fault()
    >>> as_one((one,)) is one, each_of(as_one((one, one))) == (one, one)
    (True, True)
    """
    return each[0] if len(each) == 1 else each


def site_id(site: str) -> int:
    """The integer by which compiled code knows a site: a hash of its name, so no registry is needed.

    >>> site_id("conv1"), site_id("conv1_grad_in")
    (285681077, 1258974021)
    """
    return zlib.crc32(site.encode()) & 0x7FFFFFFF


def padded_size(count: int) -> int:
    """The K compiled for `count` elements: 1, 64, 4096, 262144, …, so that few executables serve all faults.

    >>> padded_size(1), padded_size(2), padded_size(65)
    (1, 64, 4096)
    """
    size = 1
    while size < count:
        size *= 64
    return size


def inactive_fault(size: int = 1, site: Any = None, mask: Any = np.uint32, ruled: bool = False) -> Fault:
    """A fault of K = `size` elements that strikes nowhere, or no element of the site that it names.

    Args:
      mask: the type of its masks, see `bits.mask_type`.
      ruled: whether it has a rule; of one element then.

    >>> inactive_fault(2).index
    array([-1, -1], dtype=int32)
    """
    none, zero, keep = (fixed(np.full(size, *each)) for each in ((INACTIVE, np.int32), (0, np.int32), (0, mask)))
    site = np.int32(INACTIVE) if site is None else site
    where = {"site": site, "operand": np.int32(0), "worker": np.int32(INACTIVE)}
    rule = NO_RULE.words(np.dtype(mask).type) if ruled else None
    return Fault(index=none, source=zero, keep=keep, flip=keep, rule=rule, **where)


def is_fixed(fault: Fault) -> bool:
    """Whether nobody can change a fault of host integers in place: those of `make_fault` are read-only.

    >>> is_fixed(inactive_fault()), is_fixed(dataclasses.replace(inactive_fault(), flip=np.zeros(1, np.uint32)))
    (True, False)
    """
    return not any(leaf is not None and leaf.flags.writeable for leaf in vars(fault).values())


def fixed(array: np.ndarray) -> np.ndarray:
    """The array, read-only from now on."""
    array.flags.writeable = False
    return array


def nothing_struck(fault: Fault) -> Struck:
    """The report of an operation that was not struck: all zero, of the fault's K."""
    zero, none = np.int32(0), np.zeros(fault.index.shape, fault.keep.dtype)
    return Struck(zero, none, none, zero, zero, None if fault.rule is None else np.zeros(2, np.int32))
