"""The engine: one function that moves a run forward, and asks its observers after each step."""

import collections
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..machine.termination import heed
from ..models.fault import Fault, Faults, Struck, as_one, each_of
from ..models.isolation import nonfinite_allowed
from ..seam.beside import faulty_step, load_site_ids, loaded, with_struck
from ..seam.leaves import Batch, State
from ..seam.measure import Evaluation
from ..seam.program import Program
from ..seam.report import StepReport
from .steps import Address, Back, Observer


class Followed(NamedTuple):
    """Where a run was left.

    Attributes:
      state: the state there.
      ended: the reason that an observer gave; None where all steps were done.
      seconds: time spent in steps and evaluations.
    """

    state: State
    ended: str | None
    seconds: float


@nonfinite_allowed()
def follow(
    program: Program,
    state: State,
    steps: Iterable[Address],
    faults: Mapping[Address, Faults] | None = None,
    observers: Sequence[Observer] = (),
    keep: int = 0,
    undo: Callable[[State, StepReport], State] | None = None,
    lasting: Mapping[Address, Faults] | None = None,
) -> Followed:
    """Move a run forward until its steps are done, or an observer gives a reason to end it.

    Golden runs, replays, controls and experiments of a campaign are all made by this function.
    Observers are asked in their order; the first reason ends the run, and no later one is asked.

    Args:
      state: the state before the first step, on the devices.  A step without a fault consumes its
        buffers; after a first step with a fault it can still be used.
      steps: addresses in the order of the training.
      faults: what strikes at which step, one fault or a tuple.  A fault that lasts stands at several.
      lasting: what of it strikes again at a step that is taken again.  What was transient is over.
      observers: see `Observer`.
      keep: how many steps can be undone, back to the first or to the last load of a checkpoint.  The states before
        them are copied, because a step consumes the buffers of its state.
      undo: gives the state before a step from the one after it and its report.  No state is copied then.
    """
    spent, ended, fresh = 0.0, None, True
    loads = load_site_ids(program.state) if faults else frozenset()
    standing, lasts = _by_step(faults or {}), _by_step(lasting or {}, loads)
    kept: collections.deque[tuple[Address, State, StepReport]] = collections.deque(maxlen=keep)
    upcoming = iter(steps)
    at = next(upcoming, None)
    batch = None if at is None else program.batch(*at)
    while at is not None and ended is None:
        heed()
        begun = time.perf_counter()
        every, told = standing.get(at, ()), {}
        for number, fault in enumerate(every):
            if int(fault.site) in loads:  # a job begins: what was before is another's
                state, told[number] = loaded(program, state, fault)
                kept.clear()
                fresh = True
        for observer in observers if fresh else ():
            observer.starts(at, state, functools.partial(again, program, lasts))
        copy = jax.tree.map(jnp.copy, state) if keep and undo is None else None
        state, report = _step(program, state, batch, at, every, told)
        here, at, fresh = at, next(upcoming, None), False
        batch = None if at is None else program.batch(*at)  # prepared while the device computes
        report = jax.device_get(report)
        kept.append((here, copy, report))
        spent += time.perf_counter() - begun
        asked = _first(observer.after_step(here, state, report) for observer in observers)
        ended = asked if isinstance(asked, str) else None
        if isinstance(asked, Back):
            undone, fresh = [kept.pop() for _ in range(min(asked.steps, len(kept)))], True
            for first, before, reported in undone:  # the newest first
                state = before if undo is None else undo(state, reported)
                standing[first] = lasts.get(first, ())
            if asked.again:
                for observer in observers:
                    observer.undone(first)
                upcoming = itertools.chain([a for a, *_ in reversed(undone)], [] if at is None else [at], upcoming)
                at = next(upcoming)
                batch = program.batch(*at)
                continue
        if ended is None and here.step == program.steps_per_epoch - 1:
            evaluate = _Timed(functools.partial(program.evaluate, state))
            ended = _first(observer.after_epoch(here.epoch, state, evaluate) for observer in observers)
            spent += evaluate.seconds
    return Followed(state, ended, spent)


def _by_step(faults: Mapping[Address, Faults], but: frozenset[int] = frozenset()) -> dict[Address, tuple[Fault, ...]]:
    """The faults of each step, but for those at sites of these ids."""
    return {at: tuple(one for one in each_of(here) if int(one.site) not in but) for at, here in faults.items()}


def _step(
    program: Program, state: State, batch: Batch, at: Address, faults: tuple[Fault, ...], told: Mapping[int, Struck]
) -> tuple[State, StepReport]:
    """A step with faults, or without; `told` is what those did, by their numbers, that the loaded state has already."""
    if inside := tuple(fault for number, fault in enumerate(faults) if number not in told):
        state, report = faulty_step(program, state, batch, *at, as_one(inside))
    else:
        state, report = program.step(state, batch, *at)
    return state, with_struck(report, told)


def again(program: Program, lasting: Mapping[Address, tuple[Fault, ...]], at: Address, state: State) -> StepReport:
    """What a step says when it is taken again, with what lasts."""
    report: StepReport = jax.device_get(_step(program, state, program.batch(*at), at, lasting.get(at, ()), {})[1])
    return report


Reason = TypeVar("Reason")


class _Timed:
    """A function of no arguments, called once when it is first asked for, with the time that took."""

    def __init__(self, function: Callable[[], Evaluation]):
        self._function = function
        self._value: Evaluation | None = None
        self.seconds = 0.0

    def __call__(self) -> Evaluation:
        if self._value is None:
            begun = time.perf_counter()
            self._value = self._function()
            self.seconds = time.perf_counter() - begun
        return self._value


def _first(reasons: "Iterable[Reason | None]") -> "Reason | None":
    """The first reason given; what follows it is not asked for."""
    return next((reason for reason in reasons if reason is not None), None)
