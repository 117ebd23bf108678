"""Replay one injection: from its fault to a verdict, top to bottom."""

import dataclasses
import functools
import itertools
import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..faults.injection import Injection
from ..faults.injection_file import format_injection
from ..machine.processes import from_leader, say
from ..models.fault import Struck
from ..seam.leaves import State
from ..seam.measure import Evaluation
from ..seam.report import StepReport
from ..seam.stages import BESIDE
from .course import Course
from .dependencies import REPLAY, content_hash, source_of_verdicts
from .exits import EXACT
from .follow import follow
from .golden_run import Golden, ImportedState, Repeats, kept_epochs
from .noise import noise_floor
from .outcome import Outcome
from .progress import Progress
from .records import Epoch, Recorder, Run, cut, epoch_record, rows_of
from .run_store import RunStore
from .steps import Address, Observer, addresses, horizon_or_end, numbered
from .strikes import controls, strikes_of, struck_steps
from .unfinished import Keeper, Unfinished, read_unfinished
from .witness import Witness


@dataclasses.dataclass(frozen=True)
class Replay:
    """What came of an injection.

    Attributes:
      injection: the fault and its workload.
      source: the golden run that it is compared with.
      outcome: the verdict.
      golden: the fault-free run, from its own first epoch on, as far as it has been made: at least as far as the
        faulty one went, at most as far as that was to go.
      faulty: the run with the fault, from the start of the fault's epoch.
      struck_each: what each fault did, as the first step that it struck reported it; None of one that the run had
        ended before.
      struck_at: that step of each.
      seconds: that it took, the golden run included where it had to be made.
    """

    injection: Injection
    source: Golden
    outcome: Outcome
    golden: Run
    faulty: Run
    struck_each: tuple[Struck | None, ...]
    struck_at: tuple[Address | None, ...]
    seconds: float

    @property
    def struck(self) -> Struck:
        """What the first fault did."""
        struck = self.struck_each[0]
        assert struck is not None  # the run begins with it
        return struck


def replay(
    injection: Injection,
    golden: Golden,
    finish: Callable[[Replay], object] = lambda result: None,
    watching: Sequence[Observer] = (),
    keep: int = 0,
    undo: Callable[[State, StepReport], State] | None = None,
) -> Replay:
    """Replay `injection`, and make what is missing of its golden run: up to the fault, then as far as the replay goes.

    Args:
      golden: of the injection's workload, by a program that can strike its site; see `golden_for`.
      finish: called with the result before what was kept for going on is removed, such as to write it.
      watching: further observers of the run, from the start of the fault's epoch on.  With them a
        replay that was interrupted begins again, because nobody keeps what they have seen.
      keep, undo: how many steps they may have undone, and how, see `follow`.

    Raises:
      InputError, OSError: the dataset cannot be read, or a file not written.
      NotRepeated: a step before the fault, or the control, differs from the golden run.
      FaultNotApplied: the step's observations contradict the fault.

    >>> import tempfile
    >>> from fault_injection.workloads.registry import make_workload
    >>> small = {"width": 2, "blocks": (1, 1, 1, 1), "batch_size": 128, "workers": 4, "epochs": 1}
    >>> workload = make_workload("resnet18", dataset="digits", **small)
    >>> place = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "fc", "worker": 1, "epoch": 0, "step": 2}
    >>> injection = Injection(workload, **place, positions=((3, 7),), values=(float("nan"),))
    >>> with tempfile.TemporaryDirectory() as cache:
    ...     result = replay(injection, golden_for(injection, cache=pathlib.Path(cache)))
    >>> int(result.struck.operand_changed), result.outcome.outcome
    (1, 'Immediate INFs/NaNs')
    """
    begun, last = time.monotonic(), last_step(injection)
    complete_golden(golden, injection.epoch + 1, last.epoch + 1)
    watched = ["watched"] if watching else []
    profiles = [one.profile.as_json() for one in injection.every if one.profile is not None]  # whose files may change
    key = content_hash([golden.key, format_injection(injection), source_of_verdicts(REPLAY), *watched, *profiles])
    store = dataclasses.replace(golden.store, folder=golden.folder.parent.parent / "replays" / key)
    _made(golden, last)  # a damaged record is named before anything is computed
    with store.alone():
        outcome, faulty, witness = _faulty_run(injection, golden, store, watching, keep, undo)
        struck, at = tuple(witness.struck), tuple(witness.at)
        seconds = time.monotonic() - begun
        result = Replay(injection, golden, outcome, _made(golden, last), faulty, struck, at, seconds)
        finish(result)
        from_leader(lambda: shutil.rmtree(store.folder, ignore_errors=True))
    return result


def _faulty_run(
    injection: Injection,
    golden: Golden,
    store: RunStore,
    watching: Sequence[Observer],
    keep: int,
    undo: Callable[[State, StepReport], State] | None,
) -> tuple[Outcome, Run, Witness]:
    """The run with the fault: its verdict, its record, and who saw what each fault did."""
    program, struck_at, last = golden.program, Address(injection.epoch, injection.step), last_step(injection)
    steps_per_epoch = program.steps_per_epoch
    steps = numbered(last, steps_per_epoch) - numbered(Address(injection.epoch, 0), steps_per_epoch) + 1
    missing = max(0, last.epoch + 1 - golden.recorded()) * steps_per_epoch
    record = recorded_beside(golden, lambda: progress.beside("golden run"))
    with Progress("replay", steps + missing, program.measure().name, record) as progress:
        # 1. Up to the fault as the golden run, with its control; or what an interrupted replay has left.
        kept = None if watching else from_leader(lambda: read_unfinished(store, injection))
        if kept is None:
            start = _up_to_the_fault(injection, golden, progress, watching, keep)
        else:
            start = _going_on(injection, golden, store, kept)

        # 2. The fault, and what follows it: to the end, a non-finite value, or the golden state again.
        course = Course(
            golden,
            strikes_of(injection),
            injection.nonfinite,
            record=record,
            golden_after=lambda at: start.control if at == struck_at else golden.fetch_state_after(at),
            noise=lambda window: noise_floor(golden, injection.workload.epochs, window),
            recorder=start.recorder,
            struck=kept.struck if kept else (),
            struck_at=kept.at if kept else (),
        )
        keeper = [] if watching else [Keeper(store, course.recorder, course.witness)]
        course.take(start.state, start.at, last, watching, before=[progress], after=keeper, keep=keep, undo=undo)
    faulty = course.recorder.run
    if course.ended == EXACT:
        faulty = _continued(faulty, _made(golden, last), last, steps_per_epoch)

    # 3. The verdict.
    return course.verdict(finished=last == course.end, run=faulty), faulty, course.witness


class _From(NamedTuple):
    """Where a faulty run begins or goes on.

    Attributes:
      at: its first step.
      state: before that step.
      recorder: has recorded the steps before.
      control: the state after the faulty step with an inactive fault; None where the fault has struck already.
    """

    at: Address
    state: State
    recorder: Recorder
    control: State


def _up_to_the_fault(
    injection: Injection, golden: Golden, progress: Progress, watching: Sequence[Observer], keep: int
) -> _From:
    """Take every step before the fault as in the golden run, and the control: the faulty step without the fault.

    Each executable that strikes later has its control there, too.  The steps that may be undone later wait.

    Raises:
      NotRepeated: a step, or the control, differs from the golden run.
    """
    program, strikes = golden.program, strikes_of(injection)
    first, struck_at = Address(injection.epoch, 0), Address(injection.epoch, injection.step)
    recorder = Recorder(Run(first.epoch, (), 0))
    begin = Address(first.epoch, max(0, injection.step - max(0, keep - 1)))
    before = itertools.takewhile(lambda at: at != begin, addresses(first, begin, program.steps_per_epoch))
    state = golden.fetch_state_before(first.epoch)
    state = follow(program, state, before, observers=[progress, Repeats(golden), recorder, *watching]).state

    progress.compiling("the step with the fault")
    w, after = injection.workload, []
    for nothing in controls(strikes, struck_steps(strikes, w.epochs, program.steps_per_epoch, w.seed)):
        waiting = addresses(begin, struck_at, program.steps_per_epoch)
        alike = jax.tree.map(jnp.copy, state) if begin < struck_at else state
        after.append(follow(program, alike, waiting, {struck_at: nothing}, [Repeats(golden)]).state)
    return _From(begin, state, recorder, after[0])


def _going_on(injection: Injection, golden: Golden, store: RunStore, kept: Unfinished) -> _From:
    """Go on after the epochs that an interrupted replay has finished."""
    at = Address(injection.epoch + kept.run.ended, 0)
    say(f"going on with an interrupted replay after epoch {at.epoch - 1}")
    state = golden.program.place(from_leader(lambda: store.read_checkpoint(at.epoch)))
    return _From(at, state, Recorder(kept.run), None)


def golden_for(
    injection: Injection,
    cache: pathlib.Path | None = None,
    data_dir: pathlib.Path | None = None,
    devices: int | None = None,
    start: Callable[[Golden], ImportedState] | None = None,
    reductions: frozenset[str] = frozenset(),
) -> Golden:
    """The golden run that a replay needs, by a program that can strike the injection's sites; nothing runs yet.

    Args:
      cache: folder of golden runs; by default `environment.cache_folder()`.
      data_dir: where the dataset is; by default where its reader looks.
      devices: how many to use; by default as many as divide the workers.
      start: makes the state that the golden run starts from, of the golden run without one.
      reductions: what the program's steps report, see `Workload.program`.

    >>> from fault_injection.workloads.registry import make_workload
    >>> workload = make_workload("resnet18", dataset="digits", width=2, blocks=(1, 1, 1, 1), batch_size=128, workers=4)
    >>> place = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "fc", "worker": 1, "epoch": 0, "step": 2}
    >>> injection = Injection(workload, **place, positions=((3, 7),), values=(float("nan"),))
    >>> golden_for(injection).workload.name
    'resnet18'
    """
    w = injection.workload
    struck = frozenset(one.layer for one in injection.every if one.stage not in BESIDE)
    program = w.program(struck, devices, data_dir, reductions)
    golden = Golden(w, program, cache, kept_epochs(program, w.epochs, {injection.epoch}))
    return golden if start is None else dataclasses.replace(golden, start=start(golden))


def recorded_beside(golden: Golden, shown: Callable[[], Observer]) -> Callable[[int], Epoch]:
    """The golden record of an epoch, which is made when a faulty run gets there.

    Args:
      shown: gives what shows the steps of the golden run.
    """

    @functools.cache
    def record(epoch: int) -> Epoch:
        golden.make(epoch + 1, shown())
        return golden.fetch_record(epoch)

    return record


def last_step(injection: Injection) -> Address:
    """The last step to run: the horizon's, or the training's."""
    w, fault = injection.workload, Address(injection.epoch, injection.step)
    return horizon_or_end(w.epochs, w.steps_per_epoch, fault, injection.horizon)


def complete_golden(golden: Golden, epochs: int, most: int = 0) -> None:
    """Make the golden run as far as it is missing, and say so first, and why, where that is not plain.

    Args:
      most: up to, but not including, which epoch it may be made later; no further than `epochs` if that is more.
    """
    missing = epochs - golden.recorded()
    if missing <= 0:
        golden.make(epochs)
        return
    for folder, differences in from_leader(golden.elsewhere):
        say(f"the golden run in {folder} was made elsewhere ({differences}): its bits hold there, not here")
    start = f" from the published checkpoint before epoch {golden.first}" if golden.start else ""
    later = f"; up to {most - epochs} more as the faulty run gets there" if most > epochs else ""
    say(
        f"no golden run of {golden.workload.label}{start} with these options and this machine yet, or not all of it: "
        f"making {missing} epochs of {golden.program.steps_per_epoch} steps in {golden.folder}, "
        f"up to {golden.disk_bytes(max(epochs, most)) / 1e6:.0f} MB{later}"
    )
    golden.make(epochs)


def _made(golden: Golden, last: Address) -> Run:
    """The golden run as far as it has been made, but for epochs after the last step of a replay."""
    return golden.fetch_run(min(golden.recorded(), last.epoch + 1))


def _continued(run: Run, golden: Run, last: Address, steps_per_epoch: int) -> Run:
    """A run that ended with the golden state, gone on with as the golden run did, as far as that has been made."""
    *whole, begun = run.epochs  # the last one was not evaluated
    epoch, done = run.first + len(whole), len(begun["step"])
    for number, made in enumerate(golden.epochs[epoch - golden.first :], epoch):
        record = cut(made, steps_per_epoch if number < last.epoch else last.step + 1)
        if number == epoch:
            evaluation = Evaluation(float(record["valid_loss"]), float(record["valid_metric"]))
            rest = rows_of(record, len(record["step"]))[done:]
            record = epoch_record([*rows_of(begun, done), *rest], evaluation)
        whole.append(record)
    ended = [len(record["step"]) == steps_per_epoch for record in whole]
    return Run(run.first, tuple(whole), sum(ended))
