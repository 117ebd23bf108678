"""The page of a scoreboard: `score.html`, which needs nothing beside it, and its figures."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from ...campaign import figures
from ...campaign.page import Cell, Part, Section, Table, page
from ...campaign.page import percent as shown
from ...machine.files import write_json, write_text
from ...runs.outcome import MASKED, OUTCOMES
from .board import LATENT, MILLION, NONFINITE, Board, ScoredExperiment, read_board
from .comparison import cheapest_pairs, said
from .comparison import percent as short
from .store import NAME
from .table_section import table_section

QUERIES = {
    "experiments": "SELECT name AS number, value FROM rows WHERE kind = 'experiment'",
    "fault_free": "SELECT name AS run, value FROM rows WHERE kind = 'fault_free'",
    "cost": "SELECT value FROM rows WHERE kind = 'cost'",
}
LEAST = 1e-7  # shares of fault-free steps below it are drawn there

# What the authors of a detector say of it; see SCIENCE in docs/detection.md.
PUBLISHED: Sequence[tuple[str, str, str, str]] = (
    ("history_bound", "latent outcomes detected", "all that meet the necessary condition", "He et al., ISCA 2023"),
    ("history_bound", "cost in time", "0.003 to 0.025 %", "He et al., ISCA 2023"),
    ("rewind", "cost of one recovery", "0.12 % of a run of 80 epochs", "He et al., ISCA 2023"),
    ("history_bound", "defective devices that such bounds detect", "less than half", "OSDI 2026"),
    ("asd", "cost in time", "below 2 % on Llama 2 7B", "MindSpore, Ascend"),
    ("dr_dna", "detected", "above 90 % in every case, 95 % in the mean", "Ma et al., ASPLOS 2024"),
    ("dr_dna", "cost", "below 2.5 % in time, below 1 % in memory", "Ma et al., ASPLOS 2024"),
)


def write_scoreboard_page(folder: pathlib.Path) -> pathlib.Path:
    """Write `score.html`, `score.json` and the figures of a scoreboard to its folder.

    Raises:
      As `read_board`.
    """
    board = read_board(folder)
    sections = [
        table_section(board),
        _overview(board),
        _sweep(board),
        _outcomes(board),
        _models(board),
        _false_alarms(board),
        *([_recoveries(board)] if board.recoveries else []),
        _published(board),
    ]
    whole = page(f"Detectors on {board.title}", _summary(board), sections, QUERIES, NAME)
    figures.write(folder / "score_figures", sections)
    write_json(folder / "score.json", said(board))
    write_text(folder / "score.html", whole)
    return folder / "score.html"


def _summary(board: Board) -> list[str]:
    latent, nonfinite = board.of(LATENT), board.of(NONFINITE)
    known = [
        f"{len(board.seen):,} experiments on {board.title} ({board.details}): {len(latent)} latent outcomes, "
        f"{len(nonfinite)} with a loss that is not finite, {len(board.of([MASKED]))} masked. All detectors watched "
        f"the same runs for at most {board.window} step(s) after the fault, and none influenced them.",
        f"False alarms are counted in {len(board.fault_free)} fault-free runs of {board.fault_free_steps:,} steps.",
    ]
    known += [f"{name} does not watch {why}." for name, why in board.cannot_watch]
    if board.guesses:
        known.append(
            f"{board.guesses:,} of the experiments have an early verdict that nobody followed to the end. Detectors "
            "are scored on verdicts as they are; no share here says anything of what these verdicts miss."
        )
    return [*(one.sentence() for one in cheapest_pairs(board)), *known]


def _overview(board: Board) -> Section:
    rows: list[dict[str, Cell]] = []
    costs: list[dict[str, Cell]] = []
    bad = board.of((*LATENT, *NONFINITE))
    kinds = {"latent": board.of(LATENT), "not finite": board.of(NONFINITE), "masked": board.of([MASKED])}
    for name in board.detectors:
        times = board.latencies(name, bad)
        slower, larger, false = board.slower(name), board.larger(name), board.false_alarms(name)
        low, high = (f"{MILLION * share:,.0f}" for share in (false.low, false.high))
        rows.append(
            {
                **_detected(board, name, kinds),
                "steps to alarm": f"{np.median(times):g} ({times[-1]})" if times else "",
                "false alarms": f"{MILLION * false.share:,.0f} [{low}, {high}]" if false.total else "not measured",
            }
        )
        if slower is not None:
            costs.append(
                {
                    "detector": name,
                    "time": f"{slower[0]:+.2%} [{slower[1]:+.2%}, {slower[2]:+.2%}]",
                    "memory": "not known" if larger is None else f"{larger:+.2%}",
                }
            )
    text = [
        "Shares, in percent, of the experiments of an outcome in which a detector raised an alarm that stops, with "
        "95 % intervals. An alarm on a masked fault is right about the fault, and needless for the training. Steps to "
        "alarm: the median and, in brackets, the most. False alarms: per million fault-free steps.",
    ]
    parts: list[Part] = [Table("experiments", "Detectors and what they detect.", rows)]
    if costs:
        text.append(
            "The cost is that of a watched step beside a plain one on one thread, measured in turns. Steps are short "
            "here, so that fixed costs count for more than in a large training."
        )
        parts.append(Table("cost", "What the detectors cost: the median of the rounds, with its 95 % interval.", costs))
    return Section("overview", "Detectors", text, parts)


def _detected(board: Board, name: str, groups: Mapping[str, Sequence[ScoredExperiment]]) -> dict[str, Cell]:
    """A detector, and the shares of groups of experiments that it detects."""
    return {
        "detector": name,
        **{f"{group} ({len(ones)})": short(board.detected(name, ones)) for group, ones in groups.items()},
    }


def _sweep(board: Board) -> Section:
    bad = board.of(LATENT) or board.of((*LATENT, *NONFINITE))
    what = "latent outcomes" if board.of(LATENT) else "outcomes that are not masked"
    curves = {name: board.swept(name, bad) for name in board.detectors}
    own = {name: (board.false_alarms(name).share, board.detected(name, bad).share) for name in board.detectors}
    text = [
        "The threshold of each detector is multiplied by numbers from 0.0001 to 100,000,000. A point is the detector "
        "as it is. Its memory is kept as it is with its own threshold, which makes the curves approximate far from it.",
        f"Fault-free steps without any alarm are drawn at {LEAST:g}. The sample cannot tell shares below "
        f"{1 / max(1, board.fault_free_steps):.1g} apart.",
    ]
    picture = figures.picture(
        "experiments",
        f"Share of {what} detected, and false alarms.",
        "A line per detector: share detected over share of fault-free steps with an alarm.",
        lambda axes: _paint_sweep(axes, curves, own, what),
        4.2,
    )
    return Section("sweep", "Thresholds swept", text, [picture])


def _paint_sweep(
    axes: Axes,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    own: Mapping[str, tuple[float, float]],
    what: str,
) -> None:
    for i, (name, (false, caught)) in enumerate(curves.items()):
        colour = figures.SERIES[i % len(figures.SERIES)]
        style = "-" if i < len(figures.SERIES) else "--"
        axes.plot(np.maximum(false, LEAST), caught, style, color=colour, lw=1.2, label=name, drawstyle="steps-post")
        axes.plot(max(own[name][0], LEAST), own[name][1], "o", color=colour, ms=5)
    axes.set_xscale("log")
    axes.set_xlim(LEAST / 1.5, 1.3)
    axes.set_ylim(-0.02, 1.03)
    axes.set_xlabel("share of fault-free steps with an alarm")
    axes.set_ylabel(f"share of {what} detected")
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _outcomes(board: Board) -> Section:
    present = {outcome: ones for outcome in OUTCOMES if (ones := board.of([outcome]))}
    text = ["Shares detected by outcome, in percent. The number of experiments is in brackets."]
    rows = [_detected(board, name, present) for name in board.detectors]
    parts: list[Part] = [Table("experiments", "Shares detected by outcome.", rows)]
    if large := [one for one in board.of(LATENT) if one.large]:
        met = [_detected(board, name, {"latent with large values": large}) for name in board.detectors]
        caption = "Latent outcomes whose history or running variance was beyond twice the golden run's."
        parts.append(Table("experiments", caption, met))
    missed = [(name, [one for one in board.of(LATENT) if one.stop(name) is None]) for name in board.detectors]
    listed: list[dict[str, Cell]] = [
        {
            "detector": name,
            "missed": len(ones),
            "experiments": ", ".join(f"{one.number} ({one.model}, {one.outcome})" for one in ones[:8])
            + (" …" if len(ones) > 8 else ""),
        }
        for name, ones in missed
        if ones
    ]
    if listed:
        parts.append(Table("experiments", "Latent outcomes that were missed.", listed))
    return Section("outcomes", "By outcome", text, parts)


def _models(board: Board) -> Section:
    bad = board.of((*LATENT, *NONFINITE))
    rows: list[dict[str, Cell]] = []
    for model in sorted({one.model for one in bad}):
        ones = [one for one in bad if one.model == model]
        shares = {name: short(board.detected(name, ones)) for name in board.detectors}
        rows.append({"fault model": f"{model} ({len(ones)})", **shares})
    text = ["Shares detected of the outcomes that are not masked, in percent, by fault model."]
    tables = [Table("experiments", "Shares detected by fault model.", rows)] if rows else []
    return Section("models", "By fault model", text, tables)


def _false_alarms(board: Board) -> Section:
    rows: list[dict[str, Cell]] = []
    for name in board.detectors:
        rate = board.false_alarms(name)
        where = [
            f"{run}: step {alarm['step']}, {alarm['tensor']}"
            for run, found in board.fault_free.items()
            for alarm in found[name]["first"][:1]
        ]
        rows.append(
            {
                "detector": name,
                "steps": rate.total,
                "alarms": rate.found,
                "warnings": sum(run[name]["warn"] for run in board.fault_free.values()),
                "first of some runs": "; ".join(where[:3]),
            }
        )
    text = [
        f"Alarms in {len(board.fault_free)} fault-free runs: the golden run, its twins, and runs with other seeds. "
        "Without an alarm in n steps the rate is below 3/n with 95 % confidence."
    ]
    return Section("false_alarms", "False alarms", text, [Table("fault_free", "Alarms without a fault.", rows)])


def _recoveries(board: Board) -> Section:
    parts: list[Part] = []
    for recovery in board.recoveries:
        rows: list[dict[str, Cell]] = []
        for name in board.detectors:
            runs = board.recovered(recovery, name)
            if not runs:
                continue
            early = [(one, run) for one, run in runs if (one.stop(name) or 0) <= 1]
            rows.append(
                {
                    "detector": name,
                    "runs": len(runs),
                    "detected within one step": len(early),
                    "of these golden again": sum(run["golden_after"] is not None for _, run in early),
                    "outcomes": _counted([run["outcome"] for _, run in runs]),
                    "outcomes without recovery": _counted([one.outcome for one, _ in runs]),
                    "steps executed again": f"{np.mean([run['undone'] for _, run in runs]):.1f}",
                }
            )
        if rows:
            parts.append(Table("experiments", f"{recovery}: what came of the runs in which it acted.", rows))
    text = [
        "Each run is one experiment with one detector, to its own verdict. A step that is executed again is struck "
        "again by a permanent fault alone. Golden again means that the state is bit-identical to the golden run's."
    ]
    return Section("recovery", "Recovery", text, parts)


def _counted(found: Sequence[str]) -> str:
    return ", ".join(f"{n} {outcome}" for outcome in OUTCOMES if (n := found.count(outcome)))


def _published(board: Board) -> Section:
    rows: list[dict[str, Cell]] = [
        {"of": name, "what": what, "published": value, "here": _here(board, name, what), "source": source}
        for name, what, value, source in PUBLISHED
    ]
    text = [
        "What was published, as it was published, beside what was measured here. Where they differ, the set-up does: "
        "workloads, sizes, faults and hardware are others. docs/detection.md says more."
    ]
    table = Table("experiments", "Published figures beside ours.", rows)
    return Section("published", "Published figures", text, [table])


def _here(board: Board, name: str, what: str) -> str:
    if name == "rewind":
        runs = [run for detector in board.detectors for _, run in board.recovered("rewind", detector)]
        return f"{np.mean([run['undone'] for run in runs]):.1f} steps executed again" if runs else "not run"
    if name not in board.detectors:
        return "not run"
    if what.startswith("cost"):
        slower, larger = board.slower(name), board.larger(name)
        told = [] if slower is None else [f"{slower[0]:+.2%} in time"]
        return ", ".join([*told, *([] if larger is None else [f"{larger:+.2%} in memory"])]) or "not measured"
    if what.startswith("defective"):
        return "no defective device here"
    chosen = board.of(LATENT) if "latent" in what else board.of((*LATENT, *NONFINITE))
    return shown(board.detected(name, chosen)) if chosen else "no such outcome"
