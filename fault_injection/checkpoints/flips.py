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
from ..seam.state_faults import Placed, placed_leaves
from ..seam.state_spec import StateSpec
from ..seam.workload import Workload
from .checkpoint import Checkpoint, Described, Raw
from .journal import check_ended
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
    format = saved_format(program.state, altered, {name: array.shape for name, array in saved.items()}, what)
    leaves = saved_leaves(program.state)
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
            raise InputError(f"{name} is not as in {what}, and is no array that can be struck", altered.path)
    for name in altered.raw:
        if b"".join(altered.content(name)) != saved[name].tobytes():
            raise InputError(f"{name} is not as in {what}, and is no array that can be struck", altered.path)
    remedy = f"; it was compared with {what}; --saved names another that it was altered from"
    return _counted_through(leaves, format.name, flips, altered.path, f"is {what}: nothing was altered", remedy)


def saved_arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """What `flips_between` compares another checkpoint with: arrays by name, and the bytes of what is none."""
    others = {
        name: np.frombuffer(b"".join(checkpoint.content(name)), np.uint8)
        for name, raw in checkpoint.raw.items()
        if raw.compared
    }
    return {name: checkpoint.array(name) for name in checkpoint.arrays} | others


def saved_format(state: StateSpec, altered: Checkpoint, shapes: Mapping[str, tuple[int, ...]], what: str) -> np.dtype:
    """The number format in which a checkpoint is saved; nothing of it is compared, so nothing need be trained for this.

    Args:
      shapes: by the names of what was saved.
      what: was saved, for messages.

    Raises:
      InputError: an `alter` of it has not ended, or it has not the arrays of this state.
    """
    check_ended(altered.path)
    for name, found in [*altered.arrays.items(), *altered.raw.items()]:
        if name not in shapes:
            raise InputError(f"{name!r} is no array of {what}{did_you_mean(name, shapes)}", altered.path)
        if isinstance(found, Raw) and not found.compared:
            raise InputError(f"{name} is {found.text}, which cannot be compared with {what}", altered.path)
        if isinstance(found, Described) and found.shape != shapes[name]:
            raise InputError(f"{name} is {found.text}, expected the shape {list(shapes[name])}", altered.path)
    names = [leaf.leaf.name for leaf in saved_leaves(state)]
    return _one_of({altered.arrays[name].dtype for name in names if name in altered.arrays}, altered.path)


def shapes_of(state: StateSpec) -> dict[str, tuple[int, ...]]:
    """The shapes of one worker's copy of a state, by name."""
    return {one.leaf.name: one.shape for one in placed_leaves(state)}


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
    remedy: str = "",
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
        raise InputError(f"{len(found.index):,} elements are altered; at most {MOST:,} can be struck{remedy}", path)
    return AlteredBits(format, found)
