"""What a scoreboard says of each detector in one line, which detectors to switch on, and both as tables."""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...campaign.rates import Rate, at_most, wilson
from ...campaign.wording import number, share
from ...detection.localization import Localized, localized
from ...runs.outcome import DIVERGED, LATENT, MASKED
from .board import MILLION, Board, ScoredExperiment

HARM = (*LATENT, *DIVERGED)
CHEAP = 0.05  # of a step's time
BOUND = 0.95  # confidence of the upper bound of false alarms


@dataclasses.dataclass(frozen=True)
class DetectorStanding:
    """One detector on a scoreboard.

    Attributes:
      detector: its name.
      latent, nonfinite, harmless: the shares of these experiments in which it stops the run; harmless are masked ones.
      models: the share of harmful outcomes that it detects, by fault model or defect profile.
      false_alarms: the share of fault-free steps in which it stops the run.
      bound: with `BOUND` confidence, at most so many false alarms in a million steps; also where there was none.
      steps: from the fault to the alarm: the median and the most, of harmful outcomes; None where it detects none.
      site, layer, worker: the shares of its alarms on harmful outcomes that name where the fault struck.
      recovered: by recovery, the share of the harmful outcomes on whose alarms it acted that are masked then.
      cost: how much slower a step is, a fraction; None where that was not measured.
      memory: how much more memory it needs, a fraction; None likewise.
    """

    detector: str
    latent: Rate
    nonfinite: Rate
    harmless: Rate
    models: Mapping[str, Rate]
    false_alarms: Rate
    bound: float
    steps: tuple[float, int] | None
    site: Rate
    layer: Rate
    worker: Rate
    recovered: Mapping[str, Rate]
    cost: float | None
    memory: float | None

    def as_dict(self) -> dict[str, Any]:
        """For machines to read: what `Board.as_dict` does not say."""
        return {
            "models": {name: rate._asdict() for name, rate in self.models.items()},
            "false_alarms_per_million_at_most": self.bound,
            "localized": {name: getattr(self, name)._asdict() for name in Localized._fields},
            "recovered": {name: rate._asdict() for name, rate in self.recovered.items()},
        }


class CheapestPair(NamedTuple):
    """The detectors to switch on: one, or two together.

    Attributes:
      detectors: their names.
      outcomes: what they were chosen by, `latent outcomes`, or `harmful outcomes` where none is latent.
      covered: the share of these that one of them detects.
      cost: how much slower both make a step at most, a fraction: the sum of the upper ends of their 95 % intervals;
        None where that was not measured of one of them.
      steps: fault-free steps without an alarm of theirs.
      bound: with `BOUND` confidence, at most so many false alarms in a million steps.
    """

    detectors: tuple[str, ...]
    outcomes: str
    covered: Rate
    cost: float | None
    steps: int
    bound: float

    def sentence(self) -> str:
        """What to switch on, and what it costs."""
        who = " and ".join(self.detectors)
        cost = (
            "its cost was not measured"
            if self.cost is None
            else f"a step takes at most {number(100 * self.cost)} % longer"
        )
        return (
            f"Switch on {who}: detected are {self.covered.found} of {self.covered.total} {self.outcomes}, "
            f"{share(self.covered)}; no "
            f"false alarm in {self.steps:,} steps (at most {self.bound:,.0f} in a million); {cost}."
        )


def standings(board: Board) -> list[DetectorStanding]:
    """All detectors of a scoreboard, in its order."""
    return [_standing(board, name) for name in board.detectors]


def _standing(board: Board, name: str) -> DetectorStanding:
    harmful, false = board.of(HARM), board.false_alarms(name)
    steps = board.latencies(name, harmful)
    by_model: dict[str, list[ScoredExperiment]] = {}
    for one in sorted(harmful, key=lambda one: one.model):
        by_model.setdefault(one.model, []).append(one)
    found = [localized(one.tensor(name) or "", one.target) for one in harmful if one.stop(name) is not None]
    points = {part: wilson(sum(getattr(one, part) for one in found), len(found)) for part in Localized._fields}
    acted = {
        recovery: [r for one, r in board.recovered(recovery, name) if one.outcome in HARM]
        for recovery in board.recoveries
    }
    slower = board.slower(name)
    return DetectorStanding(
        detector=name,
        latent=board.detected(name, board.of(LATENT)),
        nonfinite=board.detected(name, board.of(DIVERGED)),
        harmless=board.detected(name, board.of((MASKED,))),
        models={model: board.detected(name, ones) for model, ones in by_model.items()},
        false_alarms=false,
        bound=MILLION * at_most(false.found, false.total, BOUND),
        steps=(statistics.median(steps), steps[-1]) if steps else None,
        recovered={
            recovery: wilson(sum(run["outcome"] == MASKED for run in runs), len(runs))
            for recovery, runs in acted.items()
            if runs
        },
        cost=None if slower is None else slower[0],
        memory=board.larger(name),
        **points,
    )


def cheapest_pairs(board: Board) -> list[CheapestPair]:
    """What to switch on: at a cost of at most `CHEAP` if that detects any, and at any cost if that detects more.

    Of all groups of one or two detectors without a false alarm it is the one that detects the most, and the cheapest of
    these; costs are added.  A cost that was not measured comes after every one that was.  Of equally cheap groups the
    smaller comes first, then the one that detects more harmful outcomes.

    Returns:
      Nothing where no fault-free step was watched, no outcome is harmful, or every detector raises a false alarm.
    """
    latent, harmful = board.of(LATENT), board.of(HARM)
    wanted, what = (latent, "latent outcomes") if latent else (harmful, "harmful outcomes")
    quiet = [name for name in board.detectors if (rate := board.false_alarms(name)).total and not rate.found]
    if not wanted or not quiet:
        return []
    caught = {name: {id(one) for one in harmful if one.stop(name) is not None} for name in quiet}
    ids = {id(one) for one in wanted}

    def advised(names: tuple[str, ...]) -> CheapestPair:
        times = [board.slower(name) for name in names]
        cost = None if None in times else sum(max(0.0, known[2]) for known in times if known is not None)
        steps = min(board.false_alarms(name).total for name in names)
        covered = len(set().union(*(caught[name] for name in names)) & ids)
        share = wilson(covered, len(wanted), board.confidence)
        return CheapestPair(names, what, share, cost, steps, MILLION * at_most(0, steps, BOUND))

    def order(one: CheapestPair) -> tuple[int, bool, float, int, int]:
        most = len(set().union(*(caught[name] for name in one.detectors)))
        return -one.covered.found, one.cost is None, one.cost or 0.0, len(one.detectors), -most

    groups = [advised(group) for size in (1, 2) for group in itertools.combinations(quiet, size)]
    cheap = [one for one in groups if one.cost is not None and one.cost <= CHEAP]
    best = [min(some, key=order) for some in (cheap, groups) if some]
    least, most = best[0].covered.found, best[-1].covered.found
    return best[:1] if least == most else best if least else best[-1:]


def said(board: Board) -> dict[str, Any]:
    """A scoreboard for machines to read."""
    known = board.as_dict()
    for one in standings(board):
        known["detectors"][one.detector] |= one.as_dict()
    known["switch_on"] = [{**one._asdict(), "covered": one.covered._asdict()} for one in cheapest_pairs(board)]
    return known


# ---- Tables ----


def table(board: Board) -> list[dict[str, str]]:
    """One row per detector, as a paper shows them: shares in percent with 95 % intervals."""
    found = standings(board)
    counts = {"latent": board.of(LATENT), "not finite": board.of(DIVERGED), "harmless": board.of((MASKED,))}
    latent, nonfinite, harmless = (f"{name} ({len(ones)})" for name, ones in counts.items())
    rows = []
    for one in found:
        false = one.false_alarms
        row = {
            "detector": one.detector,
            latent: percent(one.latent),
            nonfinite: percent(one.nonfinite),
            harmless: percent(one.harmless),
            "false alarms": "not measured" if not false.total else f"{MILLION * false.share:,.0f} (≤ {one.bound:,.0f})",
            "steps": "" if one.steps is None else f"{one.steps[0]:g} ({one.steps[1]})",
            "names the site": percent(one.site),
            "the layer": percent(one.layer),
            **{f"after {name}": percent(one.recovered.get(name, wilson(0, 0))) for name in board.recoveries},
            "time": "not measured" if one.cost is None else f"{100 * one.cost:+.2f}",
        }
        rows.append(row)
    if any(one.worker.found for one in found):
        for one, row in zip(found, rows, strict=True):
            row["the worker"] = percent(one.worker)
    return rows


NOTE = (
    "Shares in percent with 95 % intervals, of the experiments in which a detector stops the run. Harmless faults are "
    "masked ones. False alarms in a million fault-free steps, and with 95 % confidence at most. Steps from the fault "
    "to the alarm: median (most). Names: the share of alarms on harmful outcomes whose tensor is that of the struck "
    "operation or leaf, or of its layer. After a recovery: the share of harmful outcomes that is masked then. Time: by "
    "how many percent a step is slower."
)


def percent(rate: Rate) -> str:
    """A share in percent with its interval; empty where there is none.

    >>> percent(Rate(121, 122, 121 / 122, 0.955, 0.9985))
    '99.2 [95.5, 99.9]'
    """
    if not rate.total:
        return ""
    return f"{100 * rate.share:.3g} [{100 * rate.low:.3g}, {100 * rate.high:.3g}]"


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A table in Markdown.

    >>> print(markdown([{"a": "x|y", "b": "2"}]), end="")
    | a | b |
    |---|---|
    | x\\|y | 2 |
    """
    names = list(rows[0])
    lines = [names, *([row[name] for name in names] for row in rows)]
    shown = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
    return "\n".join([shown[0], f"|{'---|' * len(names)}", *shown[1:]]) + "\n"


ESCAPED = str.maketrans({char: f"\\{char}" for char in "&%$#_{}"} | {"≤": "$\\le$", "\\": "\\textbackslash{}"})


def latex(rows: Sequence[Mapping[str, str]]) -> str:
    """A table in LaTeX, for the package booktabs.

    >>> print(latex([{"a_b": "≤ 2 %"}]), end="")
    \\begin{tabular}{l}
    \\toprule
    a\\_b \\\\
    \\midrule
    $\\le$ 2 \\% \\\\
    \\bottomrule
    \\end{tabular}
    """
    names = list(rows[0])
    lines = [
        " & ".join(cell.translate(ESCAPED) for cell in cells) + r" \\"
        for cells in ([*names], *([row[n] for n in names] for row in rows))
    ]
    begin = rf"\begin{{tabular}}{{{'l' * len(names)}}}"
    return "\n".join([begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


TABLES = {"markdown": markdown, "latex": latex}
