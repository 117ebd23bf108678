"""The run with the fault: from the start of the fault's epoch to where it is settled."""

import dataclasses
import itertools
import shutil

import jax
import numpy as np
from tqdm import tqdm

from models.fault import Fault, Struck, inactive_fault

from ..faults.injection import Injection, format_injection
from ..machine.errors import Untrustworthy
from ..machine.files import DamagedFile, read_arrays, write_arrays
from ..machine.processes import leading, say, shared
from ..training.explicit import State, StepReport
from ..training.session import Session
from .golden_run import Golden, content_hash
from .records import Run
from .run_store import PER_STEP, RunStore, cut, epoch_record


class FaultNotApplied(Untrustworthy):
    """The step did not do what the fault says: a defect of this program or of the machine."""


class FaultyRun:
    """The faulty run, held step by step against the golden one, and kept on disk so that it can go on when killed.

    Args:
      injection: the fault and where it strikes.
      session: its workload, ready to run.
      golden: its golden run, made at least as far as `last`.
      last: number, over all epochs, of the last step to run.

    Attributes:
      run: what was recorded.
      struck: what the fault did.
      first_nonfinite: steps from the faulty one to the first non-finite value, or None.
      exactly_masked_after: steps from the faulty one until the state was the golden one, or None.
    """

    def __init__(self, injection: Injection, session: Session, golden: Golden, last: int):
        self.injection, self.session, self.golden, self.last = injection, session, golden, last
        key = content_hash([golden.key, format_injection(injection)])
        self.store = RunStore(golden.folder.parent.parent / "replays" / key, session.program.abstract)
        self.run = Run(injection.epoch, [], 0)
        self.struck: Struck
        self.first_nonfinite: int | None = None
        self.exactly_masked_after: int | None = None

    def forget(self) -> None:
        """Remove what was kept for going on."""
        shared(shutil.rmtree)(self.store.folder, ignore_errors=True)

    def go(self) -> None:
        """Run until `last`, the first non-finite value, or a proof of masking.

        Raises:
          NotRepeated: a step before the fault, or the control, differs from the golden run.
          FaultNotApplied: the step's observations contradict the fault.
        """
        steps = self.session.steps_per_epoch
        epoch, state = self._resume()
        total = self.last + 1 - epoch * steps
        with tqdm(total=total, desc="replay", unit="step", mininterval=0.5, disable=not leading()) as bar:
            while epoch * steps <= self.last and not self._settled():
                state = self._epoch(epoch, state, bar)
                epoch += 1

    def _settled(self) -> bool:
        return self.first_nonfinite is not None or self.exactly_masked_after is not None

    def _resume(self) -> tuple[int, State]:
        """Where to start: the fault's epoch, or after the epochs that an interrupted replay has finished."""
        injection, store = self.injection, self.store
        try:
            kept = shared(read_arrays)(store.folder / "struck.npz")
            epoch = store.checkpoints()[-1]
            state = store.read_checkpoint(epoch)
            epochs = [store.read_record(e) for e in range(injection.epoch, epoch)]
        except (FileNotFoundError, IndexError, DamagedFile):
            return injection.epoch, self.golden.state_before(injection.epoch)
        say(f"going on with an interrupted replay after epoch {epoch - 1}")
        self.run = Run(injection.epoch, epochs, len(epochs))
        self.struck = Struck(**{name: np.asarray(value) for name, value in kept.items()})
        return epoch, self.session.program.replicate(state)

    def _epoch(self, epoch: int, state: State, bar: tqdm) -> State:
        """One epoch, or as much of it as is wanted."""
        injection, session = self.injection, self.session
        record = self.golden.record(epoch)
        first, end = 0, min(session.steps_per_epoch, self.last + 1 - epoch * session.steps_per_epoch)
        reports: list[StepReport] = []
        if epoch == injection.epoch:
            for step, state, report in session.steps(state, epoch, 0, injection.step):
                self.golden.compare(record, epoch, step, report.digest)
                reports.append(report)
                bar.update()
            state, report, masked = self._strike(state, epoch, record)
            reports.append(report)
            self._show(bar, epoch, record, injection.step, report)
            if not finite(report):
                self.first_nonfinite = 0
            elif masked:
                self.exactly_masked_after = 0
            first = injection.step + 1
        if not self._settled():
            for step, state, report in session.steps(state, epoch, first, end):
                reports.append(report)
                self._show(bar, epoch, record, step, report)
                if not finite(report):
                    self.first_nonfinite = self._since(epoch, step)
                elif (report.digest == record["digest"][step]).all() and self._is_golden(state, epoch, step):
                    self.exactly_masked_after = self._since(epoch, step)
                if self._settled():
                    break
        self._file(epoch, state, reports)
        return state

    def _since(self, epoch, step) -> int:
        """Steps since the faulty one."""
        return (epoch - self.injection.epoch) * self.session.steps_per_epoch + step - self.injection.step

    def _show(self, bar, epoch, record, step, report):
        bar.update()
        golden = f"golden {record['loss'][step]:.3f}, {record['accuracy'][step]:.3f}"
        bar.set_postfix_str(
            f"epoch {epoch}, loss {report.loss:.3f}, accuracy {report.accuracy:.3f} ({golden})", refresh=False
        )

    def _strike(self, state, epoch, record) -> tuple[State, StepReport, bool]:
        """The faulty step and its control: the same executable on the same state, the fault inactive.

        Returns:
          The faulty state, its report, and whether the state is bit-identical to the control's.
        """
        injection, fault = self.injection, self.injection.fault()
        nothing = inactive_fault(len(fault.index))
        control, control_report = self.session.faulty_step(state, epoch, injection.step, nothing)
        self.golden.compare(record, epoch, injection.step, control_report.digest)
        state, report = self.session.faulty_step(state, epoch, injection.step, fault)
        self.struck = check_struck(injection.layer, fault, report.struck)
        return state, report, same_bits(state, control)

    def _is_golden(self, state: State, epoch: int, step: int) -> bool:
        """Confirm on every bit what equal digests suggest: that this is the golden state after the step."""
        golden = self.golden.state_before(epoch)
        for _, golden, _ in self.session.steps(golden, epoch, 0, step + 1):
            pass
        return same_bits(state, golden)

    def _file(self, epoch: int, state: State, reports: list[StepReport]) -> None:
        """Add an epoch to the run; where it is whole and the run goes on, keep it on disk."""
        if self.exactly_masked_after is not None:
            self._continue_as_golden(epoch, reports)
            return
        whole = len(reports) == self.session.steps_per_epoch and self.first_nonfinite is None
        record = epoch_record(reports, self.session.evaluate(state) if whole else (np.nan, np.nan))
        self.run = Run(self.run.first, [*self.run.epochs, record], self.run.ended + whole)
        if whole and not np.isfinite(record["valid_loss"]):  # it sees what the next step would have seen
            self.first_nonfinite = self._since(epoch, len(reports))
        elif whole:
            shared(write_arrays)(self.store.folder / "struck.npz", dataclasses.asdict(self.struck))
            self.store.write_record(epoch, record)
            self.store.write_checkpoint(epoch + 1, state)
            self.store.remove_checkpoint(epoch)

    def _continue_as_golden(self, epoch: int, reports: list[StepReport]) -> None:
        """From a bit-identical state on, the golden run's record is this run's."""
        steps = self.session.steps_per_epoch
        epochs, ended = list(self.run.epochs), self.run.ended
        for later in itertools.count(epoch):
            end = min(steps, self.last + 1 - later * steps)
            if end <= 0:
                break
            record = cut(self.golden.record(later), end)
            if later == epoch:
                own = epoch_record(reports, (float(record["valid_loss"]), float(record["valid_accuracy"])))
                record |= {name: np.concatenate([own[name], record[name][len(reports) :]]) for name in PER_STEP}
                record |= {f"train_{name}": record[name].mean(dtype=np.float64) for name in ("loss", "accuracy")}
            epochs.append(record)
            ended += end == steps
        self.run = Run(self.run.first, epochs, ended)


def finite(report: StepReport) -> bool:
    """Whether the step saw finite values only: loss, gradients and the whole state."""
    return bool(np.isfinite(report.loss) and np.isfinite(report.magnitude).all())


def same_bits(one: State, other: State) -> bool:
    """Whether two states are equal bit by bit; as numbers, −0 equals 0 and NaN nothing."""
    pairs = zip(*map(jax.tree.leaves, jax.device_get((one, other))), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def check_struck(site: str, fault: Fault, struck: Struck | None) -> Struck:
    """Hold the step's observations against the fault: exactly the listed elements changed, to the bits asked for.

    Of elements that are copies of others the new bits cannot be told beforehand, and are not looked at.

    Raises:
      FaultNotApplied: they contradict it.
    """
    if struck is None:
        raise FaultNotApplied(f"{site}: the step has no fault support")
    listed = fault.index >= 0
    known = listed & ((fault.keep == 0) | (fault.source == fault.index))
    wanted = (struck.old & fault.keep) ^ fault.flip
    changed = int(np.sum((struck.old != struck.new)[listed]))
    found = {
        "operations struck": (int(struck.hits), 1),
        "listed elements with the listed bits": (int(np.sum((struck.new == wanted)[known])), int(np.sum(known))),
        "elements of the operand changed": (int(struck.operand_changed), changed),
    }
    for what, (observed, expected) in found.items():
        if observed != expected:
            raise FaultNotApplied(f"{site}: {what}: {observed}, expected {expected}")
    return struck
