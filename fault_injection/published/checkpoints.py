"""Checkpoints of the published artifact: TensorFlow's, turned into states of ours that a golden run can start from.

They are kept in the cache: `upstream/<workload>/checkpoints/0019.npz` is the state before
epoch 19, and `0019.json` says where it comes from.  They come without a fault-free record and
cannot have one, because the record depends on the machine.  A golden run that starts there
makes it (`golden_run.Start`).
"""

import functools
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from ..machine.environment import cache_folder
from ..machine.errors import InputError
from ..machine.files import DamagedFile, write_json
from ..machine.processes import from_leader, say
from ..runs.golden_run import Golden, ImportedState
from ..runs.run_store import RunStore
from ..seam.program import Program
from ..seam.trees import same_bits
from ..workloads.registry import WORKLOADS
from .google_drive import SUMS, check_sums, fetch_folder, sha256
from .tensorflow_format import ITERATIONS, Named, mismatches, name_variables, read_tensorflow, to_state

# Google Drive folders of the artifact: starts of the published examples, and other epochs.
DRIVE = {"examples": "1HVRFWY7NI5xr5qzR8yNeSKCRVnJNnqFf", "epochs": "1B4ptjedCX4e1PbzZWVe5Ydfe48BvSwzt"}

# The workloads whose checkpoints the artifact has.  A state of `resnet18_largedecay` has the names of one of
# `resnet18`; its checkpoints are not published.
SAVED = ("resnet18", "resnet18_nobn", "resnet18_sgd", "effnet", "densenet")


def fitting(named: Named, workloads: Iterable[str] = SAVED) -> list[str]:
    """Those of some workloads whose states have exactly the names of a checkpoint.

    Among the published ones there is more than one only where the optimizer was not saved.
    """
    names = set(named.arrays)
    fits = []
    for workload in workloads:
        expected = set(_program(workload).state.names)
        if not named.has_optimizer:
            expected = {name for name in expected if not name.startswith("opt_state/")}
        if names == expected:
            fits.append(workload)
    return fits


@functools.cache
def _program(workload: str) -> Program:
    return WORKLOADS[workload].program()


def fetch(
    workload: str | None = None,
    *,
    drive: str = "examples",
    only: str = "*",
    place: pathlib.Path | None = None,
    epoch: int | None = None,
    cache: pathlib.Path | None = None,
) -> list[pathlib.Path]:
    """Import the published checkpoints of a workload, from Google Drive or from a place on this machine.

    A checkpoint that belongs to another workload is left out, with a line that says so.

    Args:
      workload: a published name; None imports each checkpoint as the workload whose names it has.
      drive: key of `DRIVE`: the folder to download, where there is no `place`.
      only: pattern of the paths to download.
      place: a folder of TensorFlow checkpoints, or one of them without its `.index`.
      epoch: the epoch that the only checkpoint precedes; None takes it from its iteration.
      cache: folder to keep them in; by default `environment.cache_folder()`.

    Returns:
      The files written.

    Raises:
      InputError: there is no checkpoint of the workload, or one does not match the workload's
        state.  Each array that does not match is named before that.
    """
    cache = cache or cache_folder()
    if place is None:
        place = cache / "upstream" / "drive" / drive
        fetch_folder(DRIVE[drive], place, only)
    prefixes = list(_prefixes(place))
    alone = len(prefixes) == 1
    if epoch is not None and not alone:
        raise InputError(f"--epoch is of one checkpoint, found {len(prefixes)}; name one with --from", place)
    written, failed = [], []
    for prefix in prefixes:
        try:
            named = name_variables(read_tensorflow(prefix))
            fits = fitting(named, SAVED if workload is None else WORKLOADS)
            if workload is None and len(fits) != 1:
                say(f"{prefix}: fits {', '.join(fits) or 'no workload'}; name the workload; left out")
            elif workload is not None and fits and workload not in fits:
                say(f"{prefix}: fits {', '.join(fits)}, not {workload}; left out")
            elif not fits and not alone:
                say(f"{prefix}: fits no workload; to see why, name it with --from; left out")
            else:  # where the only checkpoint fits no workload, the import names its mismatches
                written.append(_import(prefix, named, workload or fits[0], epoch, cache))
        except InputError as error:
            if alone:
                raise
            say(str(error))
            failed.append(error)
    if failed:
        raise InputError(f"{len(failed)} of {len(prefixes)} checkpoints cannot be used, the first: {failed[0]}")
    if not written:
        raise InputError(f"holds no checkpoint of {workload or 'exactly one workload'}, see above", place)
    return written


def _prefixes(place: pathlib.Path) -> Iterator[pathlib.Path]:
    """The checkpoints at a place; each of their files is compared with its recorded checksum, if there is one."""
    if place.is_dir():
        indices = sorted(place.rglob("*.index"))
    else:
        indices = [place if place.suffix == ".index" else place.with_name(f"{place.name}.index")]
        if not indices[0].is_file():
            raise InputError("no such folder, and no such checkpoint: there is no .index file", place)
    if not indices:
        packed = [path.name for path in place.rglob("*") if path.suffix in (".zip", ".gz", ".tgz", ".tar", ".h5")]
        hint = f"; unpack {packed[0]}, then give its folder with --from" if packed else ""
        raise InputError(f"holds no TensorFlow checkpoint (no file *.index){hint}", place)
    for index in indices:
        for recorded in (folder for folder in index.parents if (folder / SUMS).is_file()):
            for file in _files(index.with_suffix("")):
                check_sums(recorded, file)
        yield index.with_suffix("")


def _files(prefix: pathlib.Path) -> list[pathlib.Path]:
    """The index of a checkpoint, and its data."""
    shards = [path for path in prefix.parent.iterdir() if path.name.startswith(f"{prefix.name}.data-")]
    return [prefix.with_name(f"{prefix.name}.index"), *sorted(shards)]


def _import(prefix: pathlib.Path, named: Named, workload: str, epoch: int | None, cache: pathlib.Path) -> pathlib.Path:
    """Write one checkpoint as the state before an epoch; returns its file."""
    program = _program(workload)
    abstract = program.state.abstract
    wrong = mismatches(named, abstract)
    for line in wrong:
        say(f"{prefix}: {line}")
    if wrong:
        raise InputError(
            f"{len(wrong)} mismatches with a state of {workload}, named above; the first: {wrong[0]}", prefix
        )
    arrays = named.arrays
    if epoch is None:
        if ITERATIONS not in arrays:
            raise InputError("its iteration was not saved; say with --epoch before which epoch it was taken", prefix)
        epoch, rest = divmod(int(arrays[ITERATIONS]), program.steps_per_epoch)
        if rest:
            found = f"its iteration {arrays[ITERATIONS]} is not at the end of an epoch of {program.steps_per_epoch}"
            raise InputError(f"{found} steps; say with --epoch before which epoch it was taken", prefix)
    if not named.has_optimizer:
        say(f"{prefix}: its optimizer was not saved: moments start at zero, the iteration at epoch {epoch}")
    state = to_state(named, abstract, epoch * program.steps_per_epoch)
    store = _store(cache, workload, program)
    path = store.checkpoint_path(epoch)
    try:
        if not same_bits(store.read_checkpoint(epoch), state):
            raise InputError(
                f"another checkpoint of this epoch was imported before: {path}; remove one of them", prefix
            )
    except (FileNotFoundError, DamagedFile):
        pass  # it is written below
    what = f"published checkpoint of {workload} before epoch {epoch}, imported"
    origin = {
        "what": what,
        "optimizer": "saved" if named.has_optimizer else "not saved: moments zero, iteration that of the epoch",
        "iteration": int(state.opt_state.iterations),
        "optimizer_settings": named.settings,
        "files": {file.name: sha256(file) for file in _files(prefix)},
    }
    write_json(path.with_suffix(".json"), origin)
    store.write_checkpoint(epoch, state)
    say(f"{prefix}: {what} to {path}")
    return path


def _store(cache: pathlib.Path, workload: str, program: Program) -> RunStore:
    return RunStore(cache / "upstream" / workload, program.state.abstract, program.state.names)


def imported_start(golden: Golden, epoch: int, cache: pathlib.Path | None = None) -> ImportedState:
    """The imported checkpoint before an epoch of a golden run's workload, for the run to start from.

    The leader reads it, and every process gets it.

    Raises:
      InputError: there is none, it is damaged, or the workload does not have the published size.
    """
    name = golden.workload.name
    store = _store(cache or cache_folder(), name, golden.program)

    def read() -> ImportedState:
        origin = store.checkpoint_path(epoch).with_suffix(".json")
        state = store.read_checkpoint(epoch)
        try:
            known: dict[str, Any] = json.loads(origin.read_bytes())
        except ValueError:
            raise DamagedFile(f"{origin} is damaged") from None
        return ImportedState(epoch, state, known)

    try:
        return from_leader(read)
    except FileNotFoundError:
        there = ", ".join(map(str, from_leader(store.checkpoints))) or "none"
        raise InputError(
            f"no published checkpoint of {name} before epoch {epoch} was imported (there are: {there}); to get it: "
            f"python -m fault_injection fetch-checkpoints {name}",
            store.folder,
        ) from None
    except DamagedFile as error:
        raise InputError(
            f"{error}; published checkpoints fit a workload of published width, blocks and optimizer; if this is one, "
            "delete that file and fetch it again"
        ) from None
