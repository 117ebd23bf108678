"""What the processes of a scoreboard do; see `campaign.task`."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ...campaign.task import Task, environment_of
from ...detection.detector import STOP, WARN, AnyDetector, Memory
from ...detection.recovery import RECOVERIES, needed, undoing
from ...detection.registry import telling, watcher
from ...detection.signals import reductions_of
from ...detection.watch import Watcher
from ...models.bits import signed
from ...runs.follow import again, follow
from ...runs.golden_run import Repeats, nudged
from ...runs.steps import Address, Back, Observer, addresses, numbered
from ...seam.leaves import State
from ...seam.program import Program
from ...seam.report import StepReport
from ..outcomes import jobs
from ..outcomes.experiment import Laboratory, copied
from ..outcomes.plan import Plan
from ..outcomes.sampling import Choice, choose, draw_experiment
from .settings import Settings, chosen_detectors

# Numbers that excesses are compared with, where a threshold is swept; 1 is the detector's own.
SWEPT = tuple(float(x) for x in np.logspace(-4, 8, 97))

NOTHING = Settings(())


@dataclasses.dataclass(frozen=True)
class ScoreTask(Task[Plan]):
    """As a campaign's, with what is scored."""

    settings: Settings = NOTHING

    def reductions(self) -> frozenset[str]:
        """What the detectors need to be told."""
        recoveries = (name for name, most in self.settings.recovered if most)
        return _reductions(self).union(*map(needed, recoveries))


@functools.lru_cache(maxsize=1)
def _reductions(task: ScoreTask) -> frozenset[str]:
    program = task.plan.workload.program(frozenset(), devices=1, data_dir=task.data_dir)
    return reductions_of(kind for d in chosen_detectors(task.settings, program).values() for kind in d.signals)


class _Memories(Observer):
    """Keeps the memory of every watcher before each step."""

    def __init__(self, watchers: Mapping[str, Watcher]):
        self._watchers = watchers
        self.before: dict[str, list[Memory]] = {name: [None] for name in watchers}

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        for name, watching in self._watchers.items():
            self.before[name].append(watching.memory)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What a process keeps: detectors, and what they remember before each step of the golden run."""

    lab: Laboratory
    detectors: dict[str, AnyDetector]
    memories: dict[str, list[Memory]]

    def watcher(self, name: str, at: Address, recovery: Back | None = None) -> Watcher:
        """A watcher that has seen the golden run up to a step."""
        program, detector = self.lab.golden.program, self.detectors[name]
        memory = self.memories[name][numbered(at, program.steps_per_epoch)] if detector.remembers else None
        return watcher(program, detector, memory, recovery)


@functools.lru_cache(maxsize=1)
def _bench(task: ScoreTask, golden_key: str) -> Bench:
    lab = jobs.alike(task, golden_key)
    return bench_of(lab, chosen_detectors(task.settings, lab.golden.program))


def bench_of(lab: Laboratory, detectors: dict[str, AnyDetector]) -> Bench:
    """What detectors remember, after they have watched the golden run; the laboratory's program tells them."""
    lab.golden = dataclasses.replace(lab.golden, program=telling(lab.golden.program, detectors.values()))
    golden, program = lab.golden, lab.golden.program
    watching = {name: watcher(program, detector) for name, detector in detectors.items() if detector.remembers}
    memories = _Memories(watching)
    last = Address(lab.plan.golden_epochs - 1, program.steps_per_epoch - 1)
    steps = addresses(Address(0, 0), last, program.steps_per_epoch)
    follow(program, golden.fetch_state_before(0), steps, observers=[Repeats(golden), *watching.values(), memories])
    return Bench(lab, detectors, memories.before)


def program_of(task: Task[Plan], golden: Program, kind: str, number: int) -> Program:
    """The program of a fault-free run, see `fault_free`; of another seed one of its own, else the golden run's."""
    if kind != "seed":
        return golden
    workload = dataclasses.replace(task.plan.workload, seed=number)
    return workload.program(frozenset(), 1, task.data_dir, task.reductions())


def fault_free(task: ScoreTask, golden_key: str, kind: str, number: int) -> dict[str, Any]:
    """What the detectors say of a whole fault-free run.

    Args:
      kind: `golden`, `twin` or `seed`.
      number: of the twin, or the seed.
    """
    bench = _bench(task, golden_key)
    plan, program = task.plan, program_of(task, bench.lab.golden.program, kind, number)
    program = telling(program, bench.detectors.values())
    watching = {name: watcher(program, detector) for name, detector in bench.detectors.items()}
    start = program.place(nudged(program, number if kind == "twin" else 0))
    follow(program, start, addresses(Address(0, 0), plan.end, program.steps_per_epoch), observers=[*watching.values()])
    return _alarms_of(watching)


def _alarms_of(watchers: Mapping[str, Watcher]) -> dict[str, Any]:
    """By detector: steps watched, those with an alarm that stops, with one that warns, and beyond each of `SWEPT`."""
    found = {}
    for name, watching in watchers.items():
        peaks = np.array(watching.peak)
        stop, warn = (len({a.step for a in watching.alarms if a.level == level}) for level in (STOP, WARN))
        beyond = [int(np.sum(peaks > x)) for x in SWEPT]
        first = [a._asdict() for a in watching.alarms if a.level == STOP][:3]
        found[name] = {"steps": len(peaks), "stop": stop, "warn": warn, "beyond": beyond, "first": first}
    return found


def watch_experiment(task: ScoreTask, golden_key: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Watch one experiment with all detectors, and recover it with each that stops it.

    Returns:
      What was found, a row of the store: `old` and `new` bits of the first element struck; `loss` of each step
      watched; `seen`, by detector `stop` and `warn`, the steps from the fault to the first alarm of that level,
      `tensor`, in the first of these steps the one farthest beyond its threshold, and `peaks`, the largest excess of
      each step; `recovered`, by recovery and detector.
      And where it was made.
    """
    bench = _bench(task, golden_key)
    return watched(bench, task.settings, number), environment_of(bench.lab.golden)


def watched(bench: Bench, settings: Settings, number: int) -> dict[str, Any]:
    """What was found of one experiment, see `watch_experiment`."""
    lab, plan = bench.lab, bench.lab.plan
    choice = choose(plan, draw_experiment(plan, number))
    at = choice.at
    watchers = {name: bench.watcher(name, at) for name in bench.detectors}
    course = lab.course(choice, at)
    last = course.later(watched_steps(plan, settings.window, at) - 1)
    course.take(lab.state_before(at.epoch, at.step), at, last, list(watchers.values()), past_nonfinite=True)
    struck_at = numbered(at, plan.steps_per_epoch)
    found: dict[str, Any] = {
        "old": signed(course.struck.old[0]),
        "new": signed(course.struck.new[0]),
        "loss": [float(x) for x in course.recorder.run.column("loss")[at.step :]],
        "seen": {name: _seen(watcher, struck_at) for name, watcher in watchers.items()},
        "recovered": {},
    }
    for recovery, most in settings.recovered:
        if number < most:
            found["recovered"][recovery] = {
                name: _recover(bench, choice, name, recovery)
                for name, seen in found["seen"].items()
                if seen["stop"] is not None and name in settings.recovering
            }
    return found


def watched_steps(plan: Plan, window: int, fault: Address) -> int:
    """How many steps of an experiment are watched, the faulty one included, unless it is exactly masked before."""
    return min(window + 1, plan.followed(*fault))


def _seen(watching: Watcher, struck: int) -> dict[str, Any]:
    stop, warn = (next((a for a in watching.alarms if a.level == level), None) for level in (STOP, WARN))
    alarm = stop or warn
    first = [a for a in watching.alarms if alarm is not None and (a.step, a.level) == (alarm.step, alarm.level)]
    return {
        "stop": None if stop is None else stop.step - struck,
        "warn": None if warn is None else warn.step - struck,
        "tensor": max(first, key=lambda alarm: alarm.rank).tensor if first else None,
        "peaks": [_short(x) for x in watching.peak],
    }


def _short(peak: float) -> float:
    """Four digits of a peak, on the side of 1 where it is.

    >>> _short(1.00003), _short(0.99996), _short(1.0), _short(12.34567)
    (1.0001, 0.9999, 1.0, 12.35)
    """
    found = float(f"{peak:.4g}")
    if found == 1 and peak != 1:
        return 1.0001 if peak > 1 else 0.9999
    return found


def _recover(bench: Bench, choice: Choice, name: str, recovery: str) -> dict[str, Any]:
    """The experiment with one detector and one recovery, to its verdict."""
    lab, at, back = bench.lab, choice.at, RECOVERIES[recovery]
    begun = time.perf_counter()
    begin, last = Address(at.epoch, max(0, at.step - back.steps + 1)), lab.plan.last_step(at)
    watching, course = bench.watcher(name, begin, back), lab.course(choice, begin)
    state = copied(lab.state_before(begin.epoch, begin.step))
    undo = undoing(recovery, lab.golden.program)
    course.take(state, begin, last, [watching], keep=back.steps, undo=undo)
    return {
        "actions": len(watching.actions),
        "undone": sum(course.since(a.step) - course.since(a.first) + 1 for a in watching.actions),
        "golden_after": course.masked.after,
        "outcome": course.verdict(finished=last == course.end).outcome,
        "seconds": round(time.perf_counter() - begun, 3),
    }


def detector_costs(task: ScoreTask, golden_key: str, pairs: int) -> dict[str, Any]:
    """What each detector adds to a step: time in turns with the plain step, and memory.

    Args:
      pairs: rounds.
    """
    bench = _bench(task, golden_key)
    plan = task.plan
    plain = plan.workload.program(frozenset(), devices=1, data_dir=task.data_dir)
    found = {}
    for name, detector in bench.detectors.items():
        if detector.executes_again and not detector.signals:
            continue  # it costs a step each time
        wanted = reductions_of(detector.signals)
        watched = plan.workload.program(frozenset(), 1, task.data_dir, wanted) if wanted else plain
        watched = telling(watched, [detector])
        memories = bench.memories[name] if detector.remembers else [None]
        memory = memories[-1]
        watching = watcher(watched, detector, memory)
        found[name] = {
            "ratios": [round(1 + (x - 1) / detector.reported_every, 5) for x in _in_turns(plain, watching, pairs)],
            "bytes": _bytes(watched),
            "plain_bytes": _bytes(plain),
            "memory": max(map(_bytes_of, memories[-plain.steps_per_epoch :])),  # it may grow within an epoch
        }
    return found


def _in_turns(plain: Program, watching: Watcher, pairs: int, each: int = 5) -> Sequence[float]:
    """Ratios of the time of a watched step and a plain one, a round each; which comes first alternates."""
    watched = watching.program
    states = [program.place(program.init()) for program in (plain, watched)]

    def run(which: int) -> float:
        program = (plain, watched)[which]
        begun = time.perf_counter()
        for number in range(each):
            at = Address(*divmod(number, program.steps_per_epoch))
            states[which], report = program.step(states[which], program.batch(*at), *at)
            report = jax.device_get(report)
            if which:
                watching.after_step(at, states[which], report)
        return time.perf_counter() - begun

    watching.starts(Address(0, 0), states[1], functools.partial(again, watched, {}))
    run(0), run(1)
    ratios = []
    for i in range(pairs):
        times = {which: run(which) for which in ((0, 1) if i % 2 else (1, 0))}
        ratios.append(times[1] / times[0])
    return ratios


def _bytes_of(memory: Memory) -> int:
    return sum(np.asarray(x).nbytes for x in jax.tree.leaves(memory))


def _bytes(program: Program) -> int | None:
    """What a compiled step needs: arguments, results and what is between; None where that is not known."""
    if "step" not in program.extras.lower:
        return None
    analysis = program.extras.lower["step"]().compile().memory_analysis()
    if analysis is None:
        return None
    return int(analysis.temp_size_in_bytes + analysis.argument_size_in_bytes + analysis.output_size_in_bytes)
