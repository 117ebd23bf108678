"""A replay that was interrupted: what it keeps after each epoch, so that it can go on."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..faults.injection import Injection
from ..machine.files import DamagedFile, read_arrays, write_arrays
from ..machine.processes import from_leader, say
from ..models.fault import Fault, Struck
from ..models.site import Site
from ..seam.leaves import State
from ..seam.measure import Evaluation
from ..seam.trees import fetched
from .records import Recorder, Run
from .run_store import RunStore
from .steps import Observer
from .witness import FaultNotApplied, Witness, check_struck, left_out

STRUCK = "struck.npz"  # what the fault did


class Unfinished(NamedTuple):
    """What an interrupted replay has left: its whole epochs, and what the fault did."""

    run: Run
    struck: Struck


class Keeper(Observer):
    """Keeps an unfinished replay on disk after each epoch, so that it can go on when killed."""

    def __init__(self, store: RunStore, recorder: Recorder, witness: Witness):
        self._store, self._recorder, self._witness = store, recorder, witness

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        store, struck, record = self._store, self._witness.struck, self._recorder.run.epochs[-1]
        assert struck is not None  # an epoch that ended holds the faulty step, or comes after it
        reached = fetched(state)

        def keep() -> None:
            write_arrays(store.folder / STRUCK, dataclasses.asdict(struck))
            store.write_record(epoch, record)
            store.write_checkpoint(epoch + 1, reached)
            store.remove_checkpoint(epoch)

        from_leader(keep)


def read_unfinished(store: RunStore, injection: Injection) -> Unfinished | None:
    """What an interrupted replay has left; None where it left nothing, or not what a replay of this fault leaves."""
    first = injection.epoch
    try:
        struck = _read_struck(store.folder / STRUCK, injection.site, injection.fault())
        epoch = store.checkpoints()[-1]
        store.read_checkpoint(epoch)
        epochs = tuple(store.read_record(e) for e in range(first, epoch))
    except (FileNotFoundError, IndexError):
        return None
    except DamagedFile as error:
        say(f"replay: {error}; it begins again")
        for path in store.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        return None
    return Unfinished(Run(first, epochs, len(epochs)), struck) if epochs else None


def _read_struck(path: pathlib.Path, site: Site, fault: Fault) -> Struck:
    """What the faulty step reported; raises FileNotFoundError, or DamagedFile where it is no report of this fault."""
    arrays = read_arrays(path)
    listed = np.shape(fault.index)
    expected = {field.name: listed if field.name in ("old", "new") else () for field in dataclasses.fields(Struck)}
    found = {name: array.shape for name, array in arrays.items()}
    if found != expected or any(array.dtype.kind not in "iu" for array in arrays.values()):
        raise DamagedFile(f"{path} is not what a faulty step reports")
    try:
        struck = Struck(**arrays)
        return check_struck(site.name, fault, struck, left_out(site, struck))
    except FaultNotApplied as error:
        raise DamagedFile(f"{path} is not of this fault ({error})") from None
