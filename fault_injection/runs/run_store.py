"""A training run on disk: one record per epoch, and checkpoints between them.

`records/0007.npz` is what happened in epoch 7, `checkpoints/0007.npz` the state before it.
Each file is whole or absent and carries a checksum, so a run killed at any moment goes on
from its newest sound checkpoint.  Of several processes only the leader reads and writes.
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from ..machine.files import DamagedFile, discard, only_writer, read_arrays, write_arrays
from ..machine.processes import from_leader, say
from ..seam.leaves import State
from .records import Epoch

EPOCH = "epoch"  # in a record's file: which epoch it is of


@dataclasses.dataclass(frozen=True)
class RunStore:
    """The files of one run.

    Attributes:
      folder: where they are.
      abstract: shapes and dtypes of the run's state.
      names: of the state's leaves, in the order of `jax.tree.leaves`.
      columns: shapes of an epoch's record, see `records.abstract_record`; None reads any.
    """

    folder: pathlib.Path
    abstract: State
    names: tuple[str, ...]
    columns: Mapping[str, tuple[int, ...]] | None = None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One run at a time writes here; another waits, and says so.  All processes of a run call this at once."""
        waiting = functools.partial(say, f"another process is writing to {self.folder}; waiting for it")
        with contextlib.ExitStack() as held:

            def hold() -> None:
                held.enter_context(only_writer(self.folder / "lock", waiting))

            from_leader(hold)
            yield

    def record_path(self, epoch: int) -> pathlib.Path:
        """File of an epoch's record."""
        return self.folder / "records" / f"{epoch:04d}.npz"

    def checkpoint_path(self, number: int) -> pathlib.Path:
        """File of the state before an epoch."""
        return self.folder / "checkpoints" / f"{number:04d}.npz"

    def checkpoints(self) -> list[int]:
        """Epochs before which there is a checkpoint, in order; files of other names are not ours."""
        names = (path.name for path in (self.folder / "checkpoints").glob("*.npz"))
        return sorted(int(name[:-4]) for name in names if re.fullmatch(r"[0-9]{4}|[1-9][0-9]{4,8}", name[:-4]))

    def recorded(self, first: int = 0) -> int:
        """Up to, but not including, which epoch all from `first` on have records."""
        return next(epoch for epoch in itertools.count(first) if not self.record_path(epoch).exists())

    def write_record(self, epoch: int, record: Epoch) -> None:
        """Keep an epoch's record."""
        write_arrays(self.record_path(epoch), {**record, EPOCH: np.array(epoch)})

    def read_record(self, epoch: int) -> Epoch:
        """An epoch's record; raises FileNotFoundError or DamagedFile."""
        path = self.record_path(epoch)
        record = read_arrays(path)
        if not np.array_equal(record.pop(EPOCH, epoch), epoch):  # files of earlier versions do not say
            raise DamagedFile(f"{path} is the record of another epoch")
        if self.columns is not None:
            found = {name: column.shape for name, column in record.items()}
            if found != self.columns or any(column.dtype.kind not in "fiu" for column in record.values()):
                raise DamagedFile(f"{path} is not a record of this workload")
        return record

    def write_checkpoint(self, number: int, state: State) -> None:
        """Keep the state before an epoch."""
        leaves = [np.ascontiguousarray(leaf).reshape(np.shape(leaf)) for leaf in jax.tree.leaves(jax.device_get(state))]
        # NumPy has no name in files for types that are not its own.
        own = [leaf if leaf.dtype.isbuiltin == 1 else leaf.view(f"V{leaf.dtype.itemsize}") for leaf in leaves]
        write_arrays(self.checkpoint_path(number), dict(zip(self.names, own, strict=True)))

    def read_checkpoint(self, number: int) -> State:
        """The state before an epoch, on the host; raises FileNotFoundError or DamagedFile."""
        path = self.checkpoint_path(number)
        arrays = read_arrays(path)
        leaves, structure = jax.tree.flatten(self.abstract)
        expected = {name: (leaf.shape, leaf.dtype) for name, leaf in zip(self.names, leaves, strict=True)}
        arrays |= {
            name: array.view(expected[name][1])
            for name, array in arrays.items()
            if array.dtype.kind == "V" and name in expected and expected[name][1].itemsize == array.dtype.itemsize
        }
        if {name: (array.shape, array.dtype) for name, array in arrays.items()} != expected:
            raise DamagedFile(f"{path} is not a state of this workload")
        return jax.tree.unflatten(structure, [arrays[name] for name in self.names])

    def remove_checkpoint(self, number: int) -> None:
        """Forget the state before an epoch, if it was kept."""
        discard(self.checkpoint_path(number))
