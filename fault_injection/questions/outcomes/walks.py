"""Handing out experiments epoch after epoch, each epoch's behind a walk that leaves the states they fork from."""

import collections
import functools
import itertools
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from ...campaign.dispatcher import Dispatcher, Errand
from ...campaign.task import Ready
from ...campaign.terminal import display
from . import jobs
from .sampling import Experiment
from .together import AuditGroup
from .walk import walk_folder


def work_by_epochs(
    dispatcher: Dispatcher,
    golden: Ready,
    experiments: Iterable[Experiment | AuditGroup],
    function: Callable[..., Any],
    keep: Callable[[Any, Any], object],
    lines: Callable[[float], list[str]],
    walked: Callable[[int, int, float], object] = lambda epoch, steps, seconds: None,
    back: int = 0,
) -> None:
    """Do the experiments, or groups of audits, that are left.

    Those that lose their process too often are in `dispatcher.given_up`.

    Args:
      function: of jobs; does one experiment, given the golden run's key and the experiment's number (of a group those
        of its experiments), and its `stratum` where it has one.
      keep: takes in an experiment and what the function returned.
      lines: what the terminal shows, given the seconds so far.
      walked: told the epoch of each walk, the steps that it computed, and seconds.
      back: number of steps before the faulty one at which an experiment may begin at the earliest.
    """
    ordered = sorted(experiments, key=lambda e: (e.epoch, e.step, e.number))
    epochs = {epoch: list(group) for epoch, group in itertools.groupby(ordered, key=lambda e: e.epoch)}
    left = collections.Counter(e.epoch for e in ordered)  # experiments without a verdict
    walks, walking = golden.walks, False
    assert walks is not None  # experiments fork from states

    def walk_ahead() -> bool:
        """One walk at a time, just ahead of its experiments, and before any that wait; whether there will be more."""
        nonlocal walking
        if epochs and not walking and len(dispatcher.ready) < dispatcher.room:
            epoch, group = next(iter(epochs.items()))
            del epochs[epoch]
            steps = {e.step - before for e in group for before in range(back + 1) if e.step >= before}
            arguments, take = (golden.golden_key, epoch, tuple(sorted(steps))), functools.partial(hand_out, group)
            dispatcher.ready.appendleft(Errand(f"the walk through epoch {epoch}", jobs.walk, arguments, take))
            walking = True
        return bool(epochs)

    def hand_out(group: list[Experiment | AuditGroup], value: tuple[int, float]) -> None:
        nonlocal walking
        walking = False
        walked(group[0].epoch, *value)
        for e in group:
            arguments, take = (golden.golden_key, e.number), functools.partial(done, e)
            one = function if e.stratum is None else functools.partial(function, stratum=e.stratum)
            dispatcher.ready.append(Errand(e.title, one, arguments, take, alone=True))

    def done(e: Experiment | AuditGroup, value: Any) -> None:
        keep(e, value)
        left[e.epoch] -= 1
        if not left[e.epoch]:  # nothing forks from these states any more
            shutil.rmtree(walk_folder(walks, e.epoch), ignore_errors=True)

    with display(lines) as show:
        dispatcher.work(walk_ahead, show)
    shutil.rmtree(walks, ignore_errors=True)
