"""What a campaign's terminal shows: how far it is, and what has come of it so far."""

import sys
import time
from typing import Self

from .plan import Plan
from .standing import outcome_lines, outcome_rates
from .store import Store

EVERY = {True: 2.0, False: 60.0}  # seconds between two pictures, on a terminal and in a log
UP, CLEAR = "\x1b[{}A", "\x1b[J"


class Display:
    """A table on standard error, redrawn in place on a terminal; a context that shows it a last time."""

    def __init__(self, store: Store, plan: Plan):
        self._store, self._plan = store, plan
        self._before = len(store.done())
        self._begun = time.monotonic()
        self._shown = 0.0
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.show(last=True)

    def show(self, last: bool = False) -> None:
        """Show it, if it is time."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if not last and now - self._shown < EVERY[terminal]:
            return
        self._shown = now
        lines = self._text(now - self._begun)
        back = UP.format(self._lines) + CLEAR if terminal and self._lines else ""
        print(back + "\n".join(lines), file=sys.stderr, flush=True)
        self._lines = len(lines)

    def _text(self, seconds: float) -> list[str]:
        outcomes = outcome_rates(self._store, self._plan)
        total = next(iter(outcomes.values())).total if outcomes else 0
        done, wanted = total - self._before, self._plan.experiments
        if done:
            pace = f"{done / seconds * 3600:.0f} an hour, {_clock((wanted - total) * seconds / done)} left"
        else:
            pace = "compiling the step that strikes, once per job" if total < wanted else "nothing is left to do"
        lines = [f"{total} of {wanted} experiments, {pace}"]
        if 0 < total < wanted and len(self._plan.epochs) > 1:
            lines.append("  (epoch after epoch: rates so far are not those of the whole plan)")
        return lines + outcome_lines(outcomes)


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
