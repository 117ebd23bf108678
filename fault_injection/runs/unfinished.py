"""A replay that was interrupted: what it keeps after each epoch, so that it can go on."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..faults.injection import Injection
from ..machine.files import DamagedFile, read_arrays, write_arrays
from ..machine.processes import from_leader, say
from ..models.fault import Struck
from ..seam.leaves import State
from ..seam.measure import Evaluation
from ..seam.trees import fetched
from .records import Recorder, Run
from .run_store import RunStore
from .steps import Address, Observer
from .strikes import Strike, strikes_of
from .witness import FaultNotApplied, Witness, check_struck, left_out

STRUCK = "struck.npz"  # what each fault did
FIELDS = dataclasses.fields(Struck)
AT = "at"  # the step that reported it


class Unfinished(NamedTuple):
    """What an interrupted replay has left: its whole epochs, and what each fault did and when; None before."""

    run: Run
    struck: tuple[Struck | None, ...]
    at: tuple[Address | None, ...]


class Keeper(Observer):
    """Keeps an unfinished replay on disk after each epoch, so that it can go on when killed."""

    def __init__(self, store: RunStore, recorder: Recorder, witness: Witness):
        self._store, self._recorder, self._witness = store, recorder, witness

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        store, witness, record = self._store, self._witness, self._recorder.run.epochs[-1]
        reached = fetched(state)

        def keep() -> None:
            write_arrays(store.folder / STRUCK, _arrays_of(witness.struck, witness.at))
            store.write_record(epoch, record)
            store.write_checkpoint(epoch + 1, reached)
            store.remove_checkpoint(epoch)

        from_leader(keep)


def read_unfinished(store: RunStore, injection: Injection) -> Unfinished | None:
    """What an interrupted replay has left; None where it left nothing, or not what a replay of this fault leaves."""
    first = injection.epoch
    try:
        struck, at = _read_struck(store.folder / STRUCK, strikes_of(injection))
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
    return Unfinished(Run(first, epochs, len(epochs)), struck, at) if epochs else None


def _told(struck: Struck) -> dict[str, np.ndarray]:
    """What a fault did, by field; without those that only a rule tells, where there is none."""
    return {field: value for field, value in dataclasses.asdict(struck).items() if value is not None}


def _arrays_of(struck: Sequence[Struck | None], at: Sequence[Address | None]) -> dict[str, np.ndarray]:
    """What faults did, and when, as arrays by their names; those of a second fault end in `.2`."""
    each = enumerate(zip(struck, at, strict=True), 1)
    told = {number: {**_told(one), AT: np.array(when)} for number, (one, when) in each if one is not None}
    return {name if number == 1 else f"{name}.{number}": told[number][name] for number in told for name in told[number]}


def _read_struck(
    path: pathlib.Path, strikes: Sequence[Strike]
) -> tuple[tuple[Struck | None, ...], tuple[Address | None, ...]]:
    """What faulty steps reported, and which they were.

    Raises:
      FileNotFoundError, DamagedFile: there is no report, or none of these faults.
    """
    arrays = read_arrays(path)
    found: list[Struck | None] = []
    when: list[Address | None] = []
    for number, (site, fault, *_) in enumerate(strikes, 1):
        fields = [AT, *(field.name for field in FIELDS if field.name != "matched" or fault.rule is not None)]
        named = {field: field if number == 1 else f"{field}.{number}" for field in fields}
        own = {field: arrays.pop(name) for field, name in named.items() if name in arrays}
        if not own and number > 1:  # the first has struck where an epoch has ended
            found.append(None)
            when.append(None)
            continue
        vectors = {"old": np.shape(fault.index), "new": np.shape(fault.index), "matched": (2,), AT: (2,)}
        expected = {field: vectors.get(field, ()) for field in named}
        shapes = {name: array.shape for name, array in own.items()}
        if shapes != expected or any(array.dtype.kind not in "iu" for array in own.values()):
            raise DamagedFile(f"{path} is not what a faulty step reports")
        when.append(Address(*own.pop(AT).tolist()))
        struck = Struck(**{"matched": None, **own})
        try:
            found.append(check_struck(site.name, fault, struck, left_out(site, struck)))
        except FaultNotApplied as error:
            raise DamagedFile(f"{path} is not of this fault ({error})") from None
    if arrays:
        raise DamagedFile(f"{path} is not what a faulty step reports")
    return tuple(found), tuple(when)
