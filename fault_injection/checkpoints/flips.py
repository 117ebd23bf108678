"""What was altered in a checkpoint, as bits inverted in the vector of all that a restart reads."""

import pathlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from ..machine.errors import InputError, did_you_mean
from ..models.bits import NewBits, mask_type
from ..seam.checkpoint_faults import saved_leaves
from ..seam.program import Program
from ..seam.stages import CHECKPOINT
from ..seam.state_faults import Placed
from ..seam.workload import Workload
from .checkpoint import Checkpoint, Described
from .log import Mapped, located, read_log

MOST = 100_000  # elements of an alteration


def loader_counts(workload: Workload) -> list[int]:
    """How many may load an altered checkpoint: powers of two, and all."""
    names = [name for name in workload.leaves() if name.startswith(f"{CHECKPOINT}/state/")]
    return sorted({int(name.rpartition("/")[2]) for name in names})


def restart_site(workload: Workload, format: str, loaders: int, path: pathlib.Path) -> str:
    """The name of what a restart from an altered checkpoint strikes; raises InputError where it cannot."""
    target = f"{CHECKPOINT}/state/{format}/{loaders}"
    if workload.find(target) is None:
        wanted = [name for name in workload.leaves() if name.startswith(f"{CHECKPOINT}/state/")]
        raise InputError(f"{target} cannot be struck; expected one of {', '.join(wanted)}", path)
    return target


class AlteredBits(NamedTuple):
    """What was altered.

    Attributes:
      format: name of the number format in which the checkpoint is saved.
      bits: the elements of `saved_leaves`, one after the other, and the bits inverted in that format.
    """

    format: str
    bits: NewBits


def flips_between(program: Program, saved: Mapping[str, np.ndarray], altered: Checkpoint, what: str) -> AlteredBits:
    """Where a checkpoint differs from what was saved, and in which bits.

    Args:
      saved: arrays by the names of the state's leaves, rounded to the format of `altered`.
      what: was saved, for messages.

    Raises:
      InputError: they are no checkpoints of this program, do not differ, or differ in what cannot be struck.
    """
    leaves = saved_leaves(program.state)
    unknown = next((name for name in altered.arrays if name not in saved), None)
    if unknown is not None:
        raise InputError(f"{unknown!r} is no array of {what}{did_you_mean(unknown, saved)}", altered.path)
    for name, described in altered.arrays.items():
        if described.shape != saved[name].shape:
            raise InputError(f"{name} is {described.text}, expected the shape {list(saved[name].shape)}", altered.path)
    formats = {altered.arrays[leaf.leaf.name].dtype for leaf in leaves if leaf.leaf.name in altered.arrays}
    format = _one_of(formats, altered.path)
    word, flips = f"u{format.itemsize}", {}
    for leaf in leaves:
        if (name := leaf.leaf.name) in altered.arrays:
            with np.errstate(over="ignore"):
                one = np.ascontiguousarray(saved[name].astype(format)).reshape(-1).view(word)
            other = altered.array(name).reshape(-1).view(word)
            (places,) = np.nonzero(one != other)
            flips[name] = places, one[places] ^ other[places]
    counted = {leaf.leaf.name for leaf in leaves}
    for name in altered.arrays:
        if name not in counted and not np.array_equal(altered.array(name), saved[name]):
            raise InputError(f"{name} was altered, and is no array that can be struck", altered.path)
    return _counted_through(leaves, format.name, flips, altered.path, f"is {what}: nothing was altered")


def flips_of_log(program: Program, path: pathlib.Path, mapping: Mapping[str, Mapped]) -> AlteredBits:
    """What a log inverts, in a checkpoint of this program; raises InputError where it does not fit."""
    entries, leaves = read_log(path), saved_leaves(program.state)
    kinds = {entry.dtype for entry in entries if entry.dtype is not None} or {leaf.dtype for leaf in leaves}
    format = _one_of(kinds, path)
    arrays = {leaf.leaf.name: Described(leaf.shape, format) for leaf in leaves}
    flips = {name: (one.places, one.masks) for name, one in located(entries, arrays, mapping, path).items()}
    return _counted_through(leaves, format.name, flips, path, "alters nothing")


def _one_of(formats: Collection[np.dtype], path: pathlib.Path) -> np.dtype:
    if len(formats) != 1:
        named = ", ".join(sorted(each.name for each in formats)) or "none"
        raise InputError(f"its arrays have these formats: {named}; expected one", path)
    return next(iter(formats))


def _counted_through(
    leaves: list[Placed],
    format: str,
    flips: Mapping[str, tuple[np.ndarray, np.ndarray]],
    path: pathlib.Path,
    nothing: str,
) -> AlteredBits:
    """Flips of several arrays as those of one vector of all their elements."""
    mask = mask_type(format)
    index, masks, begin = [np.empty(0, np.int64)], [np.empty(0, mask)], 0
    for leaf in leaves:
        if leaf.leaf.name in flips:
            places, inverted = flips[leaf.leaf.name]
            index.append(begin + places)
            masks.append(inverted.astype(mask))
        begin += leaf.size
    found = NewBits.inverted(np.concatenate(index), np.concatenate(masks))
    if not len(found.index):
        raise InputError(nothing, path)
    if len(found.index) > MOST:
        raise InputError(f"{len(found.index):,} elements are altered; at most {MOST:,} can be struck", path)
    return AlteredBits(format, found)
