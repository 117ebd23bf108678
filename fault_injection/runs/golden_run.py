"""The golden run: fault-free training, its checkpoints, its record, and its twins."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import time
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np

from ..machine.environment import arithmetic, cache_folder
from ..machine.errors import InputError, Untrustworthy
from ..machine.files import DamagedFile, read_bounded, read_sealed, write_sealed
from ..machine.processes import from_leader, say
from ..seam.leaves import Role, State
from ..seam.measure import Evaluation
from ..seam.program import Program
from ..seam.report import StepReport
from ..seam.trees import Array, fetched, leaf_names
from ..seam.workload import Workload
from .dependencies import content_hash, source_of_bits
from .follow import follow
from .golden_checks import Comparable
from .progress import Pace, Progress
from .records import Epoch, Recorder, Run, abstract_record
from .run_store import RunStore
from .steps import Address, Observer, addresses

DESCRIBED = "golden.json"  # what determines the run, and how far its steps are from a user's own
TIMING = "timing.json"  # how long the run took when it was last made
SHOWN = 60  # characters of what another run's description says
KEEP_ALL_BELOW = 2**30  # bytes of checkpoints that are kept without being asked for


class NotRepeated(Untrustworthy):
    """A step did not reproduce the golden record."""


@dataclasses.dataclass(frozen=True)
class ImportedState:
    """A state, made elsewhere, that a golden run starts from instead of initial weights.

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


@dataclasses.dataclass(frozen=True)
class Golden:
    """The golden run of a workload, on disk, made as far as it is asked for.

    It is filed under a hash of what determines its bits: the workload, the data, the code,
    the libraries, the machine's arithmetic.  How many epochs were asked for is not part of
    it: a longer run continues a shorter one, unless the workload says otherwise (`identity`).
    Of several processes only the leader reads and writes; methods named `fetch_…` and `make`
    are for all of them to call at once.

    Attributes:
      workload, program: what is trained.
      cache: folder of the cache; None for `environment.cache_folder()`.
      keep: epochs whose checkpoints are kept besides the newest; None keeps all.
      start: the run begins there, and its record with it; None begins at initial weights.
      twin: 0, or the number of a twin: a run whose start differs by one unit in the last place.
    """

    workload: Workload
    program: Program
    cache: pathlib.Path | None = None
    keep: frozenset[int] | None = None
    start: ImportedState | None = None
    twin: int = 0

    @property
    def first(self) -> int:
        """Its first epoch."""
        return self.start.epoch if self.start else 0

    @functools.cached_property
    def determined_by(self) -> dict[str, Any]:
        """What determines the run's bits, readable."""
        workload = self.workload.identity()
        machine = arithmetic(self.program.devices)
        source = source_of_bits(self.workload)
        known = {
            "workload": workload,
            "twin": self.twin,
            "arithmetic": {**machine, "source": source, "data_sha256": self.program.data()},
        }
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
        runs = (self.cache or cache_folder()) / "golden"
        names = self.program.state.names
        folder = runs / f"{self.workload.label}-{self.key}"
        return RunStore(folder, self.program.state.abstract, names, abstract_record(self.program))

    @property
    def folder(self) -> pathlib.Path:
        """Where its files are."""
        return self.store.folder

    def twin_run(self, number: int) -> "Golden":
        """Its twin; only the record of it is kept."""
        return dataclasses.replace(self, twin=number, keep=frozenset())

    def elsewhere(self) -> list[tuple[pathlib.Path, str]]:
        """Golden runs in this cache that the same code made of the same workload elsewhere, and what differs there."""
        found = []
        known = json.loads(json.dumps(self.determined_by))  # as it is read
        ours = known["arithmetic"]
        for path in sorted({*self.folder.parent.glob(f"*/{DESCRIBED}")} - {self.folder / DESCRIBED}):
            other = _described(path)
            theirs = other.get("arithmetic")
            # What does not describe a golden run is of no interest here: all files of one are made with it.
            if not (isinstance(theirs, dict) and ours.keys() <= theirs.keys()):
                continue
            differs = [
                f"{name} {str(theirs[name])[:SHOWN]}, here {ours[name]}" for name in ours if theirs[name] != ours[name]
            ]
            same_run = all(other.get(part) == known.get(part) for part in ("workload", "twin", "start"))
            if same_run and theirs["source"] == ours["source"] and differs:
                found.append((path.parent, "; ".join(differs)))
        return found

    def disk_bytes(self, epochs: int) -> int:
        """The most disk that the run takes up to `epochs`: checkpoints and record."""
        made = range(self.first, epochs)
        # Besides those kept there are the newest and, while it is written, the one before it.
        kept = len(made) + 1 if self.keep is None else min(len(self.keep & set(made)) + 2, len(made) + 1)
        row = 4 * (len(self.program.state.leaves) + len(self.program.state.watched) + 3)
        return kept * self.program.state.bytes + len(made) * self.program.steps_per_epoch * row

    def recorded(self) -> int:
        """Up to, but not including, which epoch the run has been made."""
        store = self.store  # its name needs the data, which all processes read here, and compare
        return from_leader(lambda: store.recorded(self.first))

    def make(self, epochs: int, shown: Observer | None = None) -> None:
        """Make the run from its first epoch up to, but not including, `epochs`, going on where it stopped.

        Args:
          shown: shows its steps, in place of a bar and sentences of its own.

        Raises:
          NotRepeated: an epoch that had to be run again did not repeat its record.
        """
        tell = say if shown is None else _unsaid
        if self._made(epochs):
            if self.own_step().get("alarm"):
                tell(self.own_step()["sentence"])
            return
        with self.store.alone():
            if self._made(epochs):  # another process has made it meanwhile
                return
            imported = {"imported": self.start.origin} if self.start else {}
            if apart := self.program.extras.own_step():
                tell(apart["sentence"])
            known = {**self.determined_by, **imported, **({"own_step": apart} if apart else {})}
            from_leader(lambda: write_sealed(self.folder / DESCRIBED, known))
            if self.recorded() >= epochs:  # only its description was damaged
                return
            begun, pace = time.monotonic(), Pace()
            first, state = self._newest(min(self.recorded(), epochs - 1))
            self._train(state, first, epochs, pace, shown=shown)
            if pace.seconds_per_step is not None:
                from_leader(lambda: write_sealed(self.folder / TIMING, {"seconds_per_step": pace.seconds_per_step}))
            tell(f"golden run: epochs {first} to {epochs - 1} made in {time.monotonic() - begun:.0f} s")

    def _made(self, epochs: int) -> bool:
        """Whether the run has been made so far, and is described."""
        return self.recorded() >= epochs and from_leader(lambda: bool(_sealed(self.folder / DESCRIBED)))

    def own_step(self) -> dict[str, Any]:
        """How far its steps were from the user's own when it was made; empty where the user wrote these."""
        apart = _sealed(self.folder / DESCRIBED).get("own_step")
        return apart if isinstance(apart, dict) else {}

    def seconds_per_step(self) -> float | None:
        """What a step took when the run was last made, evaluations included; None if it was not."""
        seconds = _sealed(self.folder / TIMING).get("seconds_per_step")
        return seconds if isinstance(seconds, float) and 0 < seconds < math.inf else None

    def fetch_state_before(self, epoch: int) -> State:
        """The state before an epoch that has been made, on the devices.

        It comes from its checkpoint.  Where that was not kept or is damaged, the epochs from the
        newest sound one before it are run again, and compared with the record.

        Raises:
          NotRepeated: an epoch run again did not repeat its record.
        """
        first, state = self._newest(epoch)
        if first < epoch:
            say(f"golden run: no checkpoint before epoch {epoch}; running again from epoch {first}")
            with self.store.alone():
                state = self._train(state, first, epoch)
        return state

    def fetch_state_after(self, at: Address) -> State:
        """The state after a step of an epoch that has been made, on the devices.

        Raises:
          NotRepeated: a step run again did not repeat its record.
        """
        steps = addresses(Address(at.epoch, 0), at, self.program.steps_per_epoch)
        return follow(self.program, self.fetch_state_before(at.epoch), steps, observers=[Repeats(self)]).state

    def fetch_record(self, epoch: int) -> Epoch:
        """The record of an epoch that has been made.

        Raises:
          InputError: it is damaged, or nothing can be compared with it, see `Comparable`.
        """
        try:
            record = from_leader(lambda: self.store.read_record(epoch))
        except DamagedFile as error:
            raise InputError(f"{error}; delete it, and it is made again") from None
        self._comparable().recorded(epoch, record)
        return record

    def fetch_run(self, epochs: int) -> Run:
        """The records up to, but not including, `epochs`."""
        records = tuple(self.fetch_record(epoch) for epoch in range(self.first, epochs))
        return Run(self.first, records, len(records))

    def check(self, record: Epoch, at: Address, digest: Array) -> None:
        """Compare a state's digest after a step with the record.

        Raises:
          NotRepeated: they differ; the message names the leaves and what to do.
        """
        differs = record["digest"][at.step] != digest
        if differs.any():
            leaves = [leaf.name for leaf, d in zip(self.program.state.leaves, differs, strict=True) if d]
            raise NotRepeated(
                f"epoch {at.epoch}, step {at.step} does not repeat the golden run in {self.folder}: "
                f"{len(leaves)} of {len(differs)} arrays of the state differ, {leaves[0]} the first. Either this "
                "machine computes differently than when it was made, or it computes wrongly; "
                "to make it anew, delete that folder"
            )

    def _newest(self, epoch: int) -> tuple[int, State]:
        """The newest sound checkpoint that is not after `epoch`; damaged ones are named and removed."""
        for candidate in reversed(from_leader(self.store.checkpoints)):
            if candidate > epoch:
                continue
            try:
                state = from_leader(functools.partial(self.store.read_checkpoint, candidate))
            except DamagedFile as error:
                say(f"golden run: {error}; it is not used, and removed")
                from_leader(functools.partial(self.store.remove_checkpoint, candidate))
                continue
            return candidate, self.program.place(state)
        state = self.start.state if self.start else nudged(self.program, self.twin)
        return self.first, self.program.place(state)

    def _comparable(self) -> Comparable:
        return Comparable(f"twin {self.twin}" if self.twin else "golden run", self.program.measure())

    def _train(self, state: State, first: int, until: int, *more: Observer, shown: Observer | None = None) -> State:
        """Run epochs first … until−1 from the state before the first, filing records and checkpoints."""
        if first == self.first:
            begun = fetched(state)
            from_leader(lambda: self.store.write_checkpoint(first, begun))
        steps = addresses(Address(first, 0), Address(until, -1), self.program.steps_per_epoch)
        name = f"twin {self.twin}" if self.twin else "golden"
        recorder = Recorder(Run(first, (), 0))
        total = (until - first) * self.program.steps_per_epoch
        with contextlib.nullcontext(shown) if shown else Progress(name, total) as progress:
            observers = [progress, self._comparable(), recorder, _Filing(self, recorder), *more]
            return follow(self.program, state, steps, observers=observers).state


def _unsaid(sentence: str) -> None:
    """Nothing: another run shows how far this one is."""


def _sealed(path: pathlib.Path) -> dict[str, Any]:
    """What a file of the run's own says; nothing where it is missing or damaged, so that it is written again."""
    try:
        return read_sealed(path)
    except (FileNotFoundError, DamagedFile):
        return {}


def _described(path: pathlib.Path) -> dict[str, Any]:
    """What a file of JSON says of another run; nothing where it cannot be read, because nothing depends on it."""
    try:
        known = json.loads(read_bounded(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


class Repeats(Observer):
    """Compares every step with the golden record; raises NotRepeated where one differs."""

    def __init__(self, golden: Golden):
        self._golden = golden
        self._record = functools.lru_cache(maxsize=1)(golden.fetch_record)

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self._golden.check(self._record(at.epoch), at, report.digest)


class _Filing(Observer):
    """Keeps the golden run on disk, epoch by epoch."""

    def __init__(self, golden: Golden, recorder: Recorder):
        self._golden, self._recorder = golden, recorder

    def after_epoch(self, epoch: int, state: State, evaluate: Callable[[], Evaluation]) -> None:
        golden, record, reached = self._golden, self._recorder.run.epochs[-1], fetched(state)

        def file() -> None:
            store = golden.store
            with contextlib.suppress(FileNotFoundError, DamagedFile):
                known = store.read_record(epoch)
                for step, digest in enumerate(record["digest"]):
                    golden.check(known, Address(epoch, step), digest)
            store.write_record(epoch, record)
            store.write_checkpoint(epoch + 1, reached)
            # The checkpoint before the one just written was only needed to resume.
            if golden.keep is not None and epoch not in golden.keep:
                store.remove_checkpoint(epoch)

        from_leader(file)


def kept_epochs(program: Program, epochs: int, wanted: Collection[int]) -> frozenset[int] | None:
    """Which checkpoints a golden run keeps: all where they are small, else those of the epochs wanted."""
    return None if (epochs + 1) * program.state.bytes <= KEEP_ALL_BELOW else frozenset(wanted)


def nudged(program: Program, twin: int) -> State:
    """The state before the first step; a twin's differs in one element, by one unit in the last place."""
    state = program.init()
    return nudge(program, state, twin) if twin else state


def nudge(program: Program, state: State, twin: int = 1) -> State:
    """A state of the host with one element another by one unit in the last place; each twin's is another element."""
    leaves, structure = jax.tree.flatten(state)
    numbers = [i for i, leaf in enumerate(leaves) if leaf.size and jax.numpy.issubdtype(leaf.dtype, np.inexact)]
    if not numbers:
        raise InputError("no leaf of the state has a number that a twin could differ in")
    parameters = [i for i in program.state.places(Role.PARAMETER) if i in numbers]
    largest = max(parameters or numbers, key=lambda i: np.size(leaves[i]))
    changed = np.array(leaves[largest])
    flat = changed.reshape(-1)
    flat = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat  # of a complex number, one of its parts
    element = flat[(twin - 1) % flat.size :][:1]
    element[:] = np.nextafter(element, element.dtype.type(np.inf))
    leaves[largest] = changed
    return jax.tree.unflatten(structure, leaves)
