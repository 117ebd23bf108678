"""What a campaign's terminal shows: how far it is, and what has come of it so far."""

import sys
import time

from ..runs.outcome import OUTCOMES
from .plan import Plan
from .rates import wilson
from .report.queries import QUERIES
from .store import Store

EVERY = {True: 2.0, False: 60.0}  # seconds between two pictures, on a terminal and in a log
UP, CLEAR = "\x1b[{}A", "\x1b[J"


class Table:
    """A table on standard error, redrawn in place on a terminal."""

    def __init__(self, store: Store, plan: Plan):
        self.store, self.plan = store, plan
        self._before = len(store.done())
        self._begun = time.monotonic()
        self._shown = 0.0
        self._lines = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
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
        counts = {row["outcome"]: row["n"] for row in self.store.query(QUERIES["outcomes"])}
        total = sum(counts.values())
        done = total - self._before
        speed = f"{done / seconds * 3600:.0f} an hour, " if done else ""
        left = f"{_clock((self.plan.experiments - total) * seconds / done)} left" if done else "starting"
        lines = [f"{total} of {self.plan.experiments} experiments, {speed}{left}"]
        if 0 < total < self.plan.experiments and len(self.plan.epochs) > 1:
            lines.append("  (epoch after epoch: rates so far are not those of the whole plan)")
        for outcome in OUTCOMES:
            if outcome in counts:
                rate = wilson(counts[outcome], total, self.plan.confidence)
                lines.append(f"  {outcome:22s} {rate.found:7d}  {rate.share:7.2%}  [{rate.low:.2%}, {rate.high:.2%}]")
        return lines


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
