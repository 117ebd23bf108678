"""Going on from an altered checkpoint: the alteration as an injection, and states kept on the way."""

import pathlib
from collections.abc import Callable, Collection

import jax
import numpy as np

from models.fault import Operand

from ..faults.injection import ALL, Injection
from ..faults.new_bits import NewBits, unravel
from ..machine.errors import InputError, did_you_mean
from ..machine.files import write_arrays
from ..machine.processes import from_leader
from ..runs.follow import Observer
from ..runs.golden_run import Golden
from ..training.checkpoint_faults import CHECKPOINT, PARTS
from ..training.program import Evaluation, Program, State, fetched
from ..training.state_faults import placed_leaves
from .checkpoint import Checkpoint
from .formats import open_checkpoint

MOST = 100_000  # elements of an alteration


def named_arrays(program: Program, state: State, worker: int = 0) -> dict[str, np.ndarray]:
    """One worker's copy of a state as arrays on the host, by the names of its leaves."""
    own = program.single(fetched(state), worker)
    return {leaf.name: np.asarray(array) for leaf, array in zip(program.leaves, jax.tree.leaves(own), strict=True)}


def alteration(
    golden: Golden, epoch: int, path: pathlib.Path, worker: int, loaders: int, horizon: int | None
) -> Injection:
    """What was altered in a checkpoint of a golden run, as the injection of a run that restarts from it.

    The checkpoint may be saved in a narrower number format.  Then the golden state is rounded to it before they
    are compared, and a run restarts from the golden state but for the elements that differ.

    Args:
      golden: made at least up to the epoch.
      epoch: the one that the checkpoint precedes.
      path: of the checkpoint, which has arrays of one worker's state by their names; others are as they were.  Of
        several processes the leader reads it.
      worker: the first that loads it.
      loaders: how many load it.

    Raises:
      InputError: it is no checkpoint of this run, differs in nothing or in too much, or in what is no
        floating-point number.
    """
    program = golden.program
    saved = named_arrays(program, golden.fetch_state_before(epoch), worker)
    format, places, masks = from_leader(lambda: _compared(golden, saved, open_checkpoint(path)))
    if not len(places):
        raise InputError(f"is the golden checkpoint before epoch {epoch}: nothing was altered", path)
    if len(places) > MOST:
        raise InputError(f"differs in {len(places):,} elements; at most {MOST:,} can be struck", path)
    target = f"{CHECKPOINT}/state/{format}/{loaders}"
    if golden.workload.find(target) is None:
        wanted = [name for name in golden.workload.leaves() if name.startswith(f"{CHECKPOINT}/state/")]
        raise InputError(f"{target} cannot be struck; expected one of {', '.join(wanted)}", path)
    shape = golden.workload.target(target).shapes[Operand.INPUT]
    return Injection(
        workload=golden.workload,
        stage=CHECKPOINT,
        fmodel="",
        worker=ALL if program.loaders == 1 else worker,
        layer=target,
        epoch=epoch,
        step=0,
        positions=tuple(unravel(places, shape)),
        bits=tuple(NewBits.inverted(int(mask)) for mask in masks),
        horizon=horizon,
    )


def _compared(golden: Golden, saved: dict[str, np.ndarray], altered: Checkpoint) -> tuple[str, np.ndarray, np.ndarray]:
    """The format of a checkpoint, where it differs from what was saved, and in which bits of that format."""
    leaves = [leaf for leaf in placed_leaves(golden.program) if leaf.leaf.role in PARTS["state"]]
    unknown = next((name for name in altered.arrays if name not in saved), None)
    if unknown is not None:
        hint = did_you_mean(unknown, saved)
        raise InputError(f"{unknown!r} is no array of {golden.workload.name}{hint}", altered.path)
    for name, described in altered.arrays.items():
        if described.shape != saved[name].shape:
            raise InputError(f"{name} is {described.text}, expected the shape {list(saved[name].shape)}", altered.path)
    formats = {altered.arrays[leaf.leaf.name].dtype for leaf in leaves if leaf.leaf.name in altered.arrays}
    if len(formats) != 1:
        found = ", ".join(sorted(each.name for each in formats)) or "none"
        raise InputError(f"its arrays have these formats: {found}; expected one", altered.path)
    (format,) = formats
    word = f"u{format.itemsize}"
    index, flips, begin = [np.empty(0, np.int64)], [np.empty(0, word)], 0
    for leaf in leaves:
        if leaf.leaf.name in altered.arrays:
            with np.errstate(over="ignore"):
                one = np.ascontiguousarray(saved[leaf.leaf.name].astype(format)).reshape(-1).view(word)
            other = altered.array(leaf.leaf.name).reshape(-1).view(word)
            (places,) = np.nonzero(one != other)
            index.append(begin + places)
            flips.append(one[places] ^ other[places])
        begin += leaf.size
    counted = {leaf.leaf.name for leaf in leaves}
    for name in altered.arrays:
        if name not in counted and not np.array_equal(altered.array(name), saved[name]):
            raise InputError(f"{name} was altered, and is no array that can be struck", altered.path)
    return format.name, np.concatenate(index), np.concatenate(flips)


class StateKeeper(Observer):
    """Keeps the state of worker 0 after some epochs, each in a file that `diff` reads.

    Args:
      folder: of the files `state_after_0011.npz`.
      epochs: after which a state is kept.
    """

    def __init__(self, program: Program, folder: pathlib.Path, epochs: Collection[int]):
        self._program, self._folder, self._epochs = program, folder, epochs

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        """Keep the state."""
        if epoch in self._epochs:
            arrays = named_arrays(self._program, state)
            from_leader(lambda: write_arrays(self._folder / f"state_after_{epoch:04d}.npz", arrays))
