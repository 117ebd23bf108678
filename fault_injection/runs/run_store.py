"""A training run on disk: one record an epoch, and checkpoints between them.

`records/0007.npz` is what happened in epoch 7, `checkpoints/0007.npz` the state before it.
Each file is whole or absent and carries a checksum, so a run killed at any moment goes on
from its newest sound checkpoint.  Of several processes the leader alone needs the disk.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from ..machine.files import DamagedFile, only_writer, read_arrays, write_arrays
from ..machine.processes import agree, say, shared
from ..training.explicit import State, StepReport, leaf_names

Epoch = dict[str, np.ndarray]
PER_STEP = ("step", "loss", "accuracy", "digest", "magnitude")
PER_EPOCH = ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy")


def epoch_record(reports: Sequence[StepReport], evaluation: tuple[float, float]) -> Epoch:
    """An epoch as columns: `PER_STEP` with a row a step, `PER_EPOCH` as scalars.

    Args:
      reports: of the epoch's steps from the first on.
      evaluation: loss and accuracy on the test images after it.
    """
    record: Epoch = {"step": np.arange(len(reports), dtype=np.int32)}
    for column in PER_STEP[1:]:
        record[column] = np.stack([np.asarray(getattr(report, column)) for report in reports])
    # The epoch's training figures are means over its steps, its batches being of one size.
    means = [record[column].mean(dtype=np.float64) for column in ("loss", "accuracy")]
    return record | dict(zip(PER_EPOCH, map(np.asarray, [*means, *evaluation]), strict=True))


def cut(record: Epoch, steps: int) -> Epoch:
    """The first steps of an epoch."""
    return {name: column[:steps] if name in PER_STEP else column for name, column in record.items()}


@dataclasses.dataclass(frozen=True)
class RunStore:
    """The files of one run.

    Attributes:
      folder: where they are.
      abstract: shapes and types of the run's state.
    """

    folder: pathlib.Path
    abstract: State

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One run at a time writes here; another waits, and says so."""
        with contextlib.ExitStack() as held:
            agree(lambda: self._enter(held))
            yield

    def _enter(self, held):
        told = functools.partial(say, f"another process is writing to {self.folder}; waiting for it")
        held.enter_context(only_writer(self.folder / "lock", told))

    def record_path(self, epoch: int) -> pathlib.Path:
        """File of an epoch's record."""
        return self.folder / "records" / f"{epoch:04d}.npz"

    def checkpoint_path(self, epoch: int) -> pathlib.Path:
        """File of the state before an epoch."""
        return self.folder / "checkpoints" / f"{epoch:04d}.npz"

    @shared
    def checkpoints(self) -> list[int]:
        """Epochs before which there is a checkpoint, in order."""
        return sorted(int(path.stem) for path in (self.folder / "checkpoints").glob("[0-9]*.npz"))

    @shared
    def records(self, first: int = 0) -> int:
        """Up to, but not including, which epoch all from `first` on have records."""
        epoch = first
        while self.record_path(epoch).exists():
            epoch += 1
        return epoch

    @shared
    def write_record(self, epoch: int, record: Epoch) -> None:
        """Keep an epoch's record."""
        write_arrays(self.record_path(epoch), record)

    @shared
    def read_record(self, epoch: int) -> Epoch:
        """An epoch's record; raises FileNotFoundError or DamagedFile."""
        return read_arrays(self.record_path(epoch))

    @shared
    def write_checkpoint(self, epoch: int, state: State) -> None:
        """Keep the state before an epoch."""
        leaves = jax.tree.leaves(jax.device_get(state))
        write_arrays(self.checkpoint_path(epoch), dict(zip(leaf_names(self.abstract), leaves, strict=True)))

    @shared
    def read_checkpoint(self, epoch: int) -> State:
        """The state before an epoch, on the host; raises FileNotFoundError or DamagedFile."""
        path = self.checkpoint_path(epoch)
        arrays = read_arrays(path)
        leaves, structure = jax.tree.flatten(self.abstract)
        names = leaf_names(self.abstract)
        if arrays.keys() != set(names) or any(
            arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype
            for name, leaf in zip(names, leaves, strict=True)
        ):
            raise DamagedFile(f"{path} is not a state of this workload")
        return jax.tree.unflatten(structure, [arrays[name] for name in names])

    @shared
    def remove_checkpoint(self, epoch: int) -> None:
        """Forget the state before an epoch, if it was kept."""
        self.checkpoint_path(epoch).unlink(missing_ok=True)
