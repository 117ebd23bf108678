"""Going on from an altered checkpoint: the alteration as an injection, and states kept on the way."""

import pathlib
from collections.abc import Callable, Collection

import jax
import numpy as np

from ..faults.injection import ALL, Injection
from ..machine.files import write_arrays
from ..machine.processes import from_leader
from ..runs.golden_run import Golden
from ..runs.steps import Observer
from ..seam.leaves import State
from ..seam.measure import Evaluation
from ..seam.program import Program
from ..seam.trees import fetched
from .flips import AlteredBits, flips_between, restart_site, saved_arrays
from .loaded import restart_checkpoint


def named_arrays(program: Program, state: State, worker: int = 0) -> dict[str, np.ndarray]:
    """One worker's copy of a state as arrays on the host, by the names of its leaves."""
    own = program.state.single(fetched(state), worker)
    return {
        leaf.name: np.asarray(array) for leaf, array in zip(program.state.leaves, jax.tree.leaves(own), strict=True)
    }


def alteration(
    golden: Golden,
    epoch: int,
    path: pathlib.Path,
    worker: int,
    loaders: int,
    horizon: int | None,
    saved: pathlib.Path | None = None,
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
      saved: what it was altered from; None where that is the golden state.  The bits inverted are then inverted in the
        golden state.

    Raises:
      InputError: it is no checkpoint of this run, differs in nothing or in too much, or in what is no
        floating-point number.
    """
    program = golden.program
    if saved is None:
        own = named_arrays(program, golden.fetch_state_before(epoch), worker)
        what = f"the golden checkpoint before epoch {epoch}"
        flips = from_leader(lambda: flips_between(program, own, restart_checkpoint(program, path), what))
    else:
        flips = flips_since(program, saved, path)
    target = restart_site(golden.workload, flips.format, loaders, path)
    return Injection.drawn(
        workload=golden.workload,
        site=golden.workload.target(target),
        fmodel="",
        worker=ALL if program.state.loaders == 1 else worker,
        epoch=epoch,
        step=0,
        bits=flips.bits,
        horizon=horizon,
    )


def flips_since(program: Program, saved: pathlib.Path, path: pathlib.Path) -> AlteredBits:
    """What was altered in a checkpoint since it was saved; of several processes the leader reads both."""

    def found() -> AlteredBits:
        before = saved_arrays(restart_checkpoint(program, saved))
        return flips_between(program, before, restart_checkpoint(program, path), str(saved))

    return from_leader(found)


class StateKeeper(Observer):
    """Keeps the state of worker 0 after some epochs, each in a file that `diff` reads.

    Args:
      folder: of the files `state_after_0011.npz`.
      epochs: after which a state is kept.
    """

    def __init__(self, program: Program, folder: pathlib.Path, epochs: Collection[int]):
        self._program, self._folder, self._epochs = program, folder, epochs

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        if epoch in self._epochs:
            arrays = named_arrays(self._program, state)
            from_leader(lambda: write_arrays(self._folder / f"state_after_{epoch:04d}.npz", arrays))
