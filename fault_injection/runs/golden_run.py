"""The golden run: fault-free training, its checkpoints, its record, and its twins."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from ..machine.environment import cache_folder
from ..machine.errors import InputError, Untrustworthy
from ..machine.files import DamagedFile, write_json
from ..machine.processes import leading, say, shared
from ..training.explicit import Array, State, leaf_names
from ..training.session import Session
from .run_store import Epoch, RunStore, epoch_record

CHECKPOINTS = ("own", "upstream")  # where a golden run may start: initial weights, or a published checkpoint
KEEP_ALL_BELOW = 2**30  # bytes of checkpoints that a replay keeps without being asked


class NotRepeated(Untrustworthy):
    """A step did not reproduce the golden record."""


@dataclasses.dataclass(frozen=True)
class Start:
    """A state, made elsewhere, that a golden run starts from in place of initial weights.

    Attributes:
      epoch: the epoch that it precedes, the first of the run and of its record.
      state: on the host.
      origin: where it comes from, for people to read.
    """

    epoch: int
    state: State
    origin: dict[str, Any]

    @functools.cached_property
    def sha256(self) -> str:
        """Of the state's bytes."""
        leaves = zip(leaf_names(self.state), jax.tree.leaves(self.state), strict=True)
        return hashlib.sha256(b"".join(f"{name} ".encode() + leaf.tobytes() for name, leaf in leaves)).hexdigest()


class Golden:
    """The golden run of a session's workload, on disk, made as far as it is asked for.

    It is filed under a hash of what determines its bits: the workload, the data, the code,
    the libraries, the machine's arithmetic.  How many epochs were asked for is not part of
    it: a longer run continues a shorter one.

    Args:
      session: the workload, ready to run.
      cache: folder of the cache; by default `environment.cache_folder()`.
      keep: epochs whose checkpoints are kept besides the newest; None keeps all.
      start: the run begins there, and its record with it; None begins at initial weights.

    Attributes:
      first: its first epoch.
    """

    def __init__(
        self,
        session: Session,
        cache: pathlib.Path | None = None,
        keep: Collection[int] | None = None,
        start: Start | None = None,
    ):
        self.session = session
        self.keep = keep
        self.cache = cache or cache_folder()
        self.start = start
        self.first = start.epoch if start else 0

    @functools.cached_property
    def determined_by(self) -> dict[str, Any]:
        """What determines the run's bits, readable."""
        workload = dataclasses.asdict(self.session.workload)
        del workload["epochs"]  # a longer run continues a shorter one
        known = {"workload": workload, "arithmetic": self.session.arithmetic}
        if self.start:
            known["start"] = {"epoch": self.start.epoch, "sha256": self.start.sha256}
        return known

    @functools.cached_property
    def key(self) -> str:
        """Hash of `determined_by`."""
        return content_hash(self.determined_by)

    @functools.cached_property
    def store(self) -> RunStore:
        """Its files."""
        workload = self.session.workload
        folder = self.cache / "golden" / f"{workload.name}-{workload.dataset}-{self.key}"
        return RunStore(folder, self.session.program.abstract)

    @property
    def folder(self) -> pathlib.Path:
        """Where its files are."""
        return self.store.folder

    @shared
    def elsewhere(self) -> list[tuple[pathlib.Path, str]]:
        """Golden runs in this cache that the same code made of the same workload elsewhere, and what differs there."""
        found = []
        known = json.loads(json.dumps(self.determined_by))  # as it is read
        ours = known["arithmetic"]
        for path in sorted(self.cache.glob("golden/*/golden.json")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                other = json.loads(path.read_text(encoding="utf-8"))
                theirs = other["arithmetic"]
                differs = [f"{name} {theirs[name]}, here {ours[name]}" for name in ours if theirs[name] != ours[name]]
                same_run = all(other.get(part) == known.get(part) for part in ("workload", "start"))
                if same_run and theirs["source"] == ours["source"] and differs:
                    found.append((path.parent, "; ".join(differs)))
        return found

    def disk_bytes(self, epochs: int) -> int:
        """Disk that the run takes up to `epochs`: kept checkpoints, the newest, and the record."""
        kept = epochs - self.first if self.keep is None else len({e for e in self.keep if e < epochs})
        leaves = jax.tree.leaves(self.session.program.abstract)
        checkpoint = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        names = self.session.names
        step = 4 * (len(names.digest) + len(names.magnitude) + 3)
        return (kept + 1) * checkpoint + (epochs - self.first) * self.session.steps_per_epoch * step

    def ensure(self, epochs: int) -> None:
        """Make the run from its first epoch up to, but not including, `epochs`, going on where it stopped.

        Raises:
          NotRepeated: an epoch that had to be run again did not repeat its record.
        """
        if self.recorded() >= epochs:
            return
        with self.store.alone():
            if self.recorded() >= epochs:  # another process has made it meanwhile
                return
            imported = {"imported": self.start.origin} if self.start else {}
            shared(write_json)(self.folder / "golden.json", {**self.determined_by, **imported})
            begun = time.monotonic()
            first, state = self._newest(min(self.recorded(), epochs - 1))
            self._train(state, first, epochs)
            say(f"golden run: epochs {first} to {epochs - 1} made in {time.monotonic() - begun:.0f} s")

    def recorded(self) -> int:
        """Up to, but not including, which epoch the run has been made."""
        return self.store.records(self.first)

    def state_before(self, epoch: int) -> State:
        """The state before an epoch that has been made, on the devices.

        From its checkpoint; where that was not kept or is damaged, from the newest sound one
        before it, running the epochs between again and holding them against the record.

        Raises:
          NotRepeated: an epoch run again did not repeat its record.
        """
        first, state = self._newest(epoch)
        if first < epoch:
            say(f"golden run: no checkpoint before epoch {epoch}; running again from epoch {first}")
            with self.store.alone():
                state = self._train(state, first, epoch)
        return state

    def record(self, epoch: int) -> Epoch:
        """The record of an epoch that has been made.

        Raises:
          InputError: it is damaged.
        """
        try:
            return self.store.read_record(epoch)
        except DamagedFile as error:
            raise InputError(f"{error}; delete it, and it is made again") from None

    def _newest(self, epoch: int) -> tuple[int, State]:
        """The newest sound checkpoint that is not after `epoch`; damaged ones are named and removed."""
        for candidate in reversed(self.store.checkpoints()):
            if candidate > epoch:
                continue
            try:
                state = self.store.read_checkpoint(candidate)
            except DamagedFile as error:
                say(f"golden run: {error}; it is not used, and removed")
                self.store.remove_checkpoint(candidate)
                continue
            return candidate, self.session.program.replicate(state)
        if self.start:
            return self.first, self.session.program.replicate(self.start.state)
        return 0, self.session.start()

    def _train(self, state: State, first: int, until: int) -> State:
        """Run epochs first … until−1 from the state before the first, filing records and checkpoints."""
        if first == self.first:
            self.store.write_checkpoint(first, state)
        steps = self.session.steps_per_epoch
        label = "golden" if not self.session.workload.twin else f"twin {self.session.workload.twin}"
        total = (until - first) * steps
        with tqdm(total=total, desc=label, unit="step", mininterval=0.5, disable=not leading()) as bar:
            for epoch in range(first, until):
                reports = []
                for _, state, report in self.session.steps(state, epoch):
                    reports.append(report)
                    bar.update()
                    bar.set_postfix_str(f"epoch {epoch}, loss {report.loss:.3f}", refresh=False)
                record = epoch_record(reports, self.session.evaluate(state))
                self._file(epoch, record, state)
        return state

    def _file(self, epoch: int, record: Epoch, state: State) -> None:
        with contextlib.suppress(FileNotFoundError, DamagedFile):
            known = self.store.read_record(epoch)
            for row, step in enumerate(record["step"]):
                self.compare(known, epoch, int(step), record["digest"][row])
        self.store.write_record(epoch, record)
        self.store.write_checkpoint(epoch + 1, state)
        # The checkpoint before the one just written was only needed to resume.
        if self.keep is not None and epoch not in self.keep:
            self.store.remove_checkpoint(epoch)

    def compare(self, record: Epoch, epoch: int, step: int, digest: Array) -> None:
        """Hold a state's digest after a step against the record.

        Raises:
          NotRepeated: they differ; the message names the leaves and what to do.
        """
        differs = record["digest"][step] != digest
        if differs.any():
            leaves = [name for name, d in zip(self.session.names.digest, differs, strict=True) if d]
            raise NotRepeated(
                f"epoch {epoch}, step {step} does not repeat the golden run in {self.folder}: "
                f"{len(leaves)} of {len(differs)} arrays of the state differ, {leaves[0]} the first. Either this "
                "machine computes differently than when it was made, or it computes wrongly; "
                "to make it anew, delete that folder"
            )


def content_hash(value) -> str:
    """Twelve hexadecimal digits of the hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def final_accuracies(records: list[Epoch]) -> tuple[float, float]:
    """Training and test accuracy at the end: means over the records given, the last epochs of a run."""
    train, test = (float(np.mean([r[name] for r in records])) for name in ("train_accuracy", "valid_accuracy"))
    return train, test


def noise_floor(golden: Golden, epochs: int, window: int, twins: int | None = None) -> dict | None:
    """How far the final accuracies of the golden run and its twins spread, where twins were run.

    Args:
      epochs: length of the runs.
      window: the final accuracy is a mean over so many last epochs.
      twins: how many are looked at; None for all that there are.

    Returns:
      None without twins; else their number `twins`, and `train`, `test`: the standard
      deviation of the accuracy at the end over the golden run and its twins.
    """
    finals = []
    last = range(max(0, epochs - window), epochs)
    for run in [golden.folder, *twin_folders(golden)[:twins]]:
        store = RunStore(run, golden.session.program.abstract)
        with contextlib.suppress(FileNotFoundError, DamagedFile):
            finals.append(final_accuracies([store.read_record(epoch) for epoch in last]))
    if len(finals) < 3:
        return None
    train, test = np.std(finals, axis=0, ddof=1)
    return {"twins": len(finals) - 1, "train": float(train), "test": float(test)}


@shared
def twin_folders(golden: Golden) -> list[pathlib.Path]:
    """Folders of the golden run's twins that have been started."""
    found = []
    for twin in range(1, 1000):
        known = golden.determined_by
        key = content_hash({**known, "workload": {**known["workload"], "twin": twin}})
        folder = golden.folder.with_name(golden.folder.name.replace(golden.key, key))
        if not folder.exists():
            break
        found.append(folder)
    return found
