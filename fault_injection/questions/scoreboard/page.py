"""The page of a scoreboard: `score.html`, which needs nothing beside it, and its figures."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from ...campaign import figures
from ...campaign.page import Cell, Part, Section, Table, page
from ...campaign.rates import Rate, wilson
from ...campaign.wording import percent, share
from ...machine.files import write_json, write_text
from ...runs.outcome import DIVERGED, LATENT, OUTCOMES
from .advice import score_box, signed
from .board import Board, ScoredExperiment, read_board
from .comparison import said
from .store import NAME
from .table_section import table_section

QUERIES = {
    "experiments": "SELECT name AS number, value FROM rows WHERE kind = 'experiment'",
    "fault_free": "SELECT name AS run, value FROM rows WHERE kind = 'fault_free'",
    "cost": "SELECT value FROM rows WHERE kind = 'cost'",
}
LEVELS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)  # shares of fault-free steps with an alarm

# What the authors of a detector say of it; see SCIENCE in docs/detection.md.
PUBLISHED: Sequence[tuple[str, str, str, str]] = (
    ("history_bound", "latent outcomes detected", "all that meet the necessary condition", "He et al., ISCA 2023"),
    ("history_bound", "cost in time", "0.003 to 0.025 %", "He et al., ISCA 2023"),
    ("rewind", "cost of one recovery", "0.12 % of a run of 80 epochs", "He et al., ISCA 2023"),
    ("history_bound", "defective devices that such bounds detect", "less than half", "OSDI 2026"),
    ("asd", "cost in time", "below 2 % on Llama 2 7B", "MindSpore, Ascend"),
    ("dr_dna_published", "detected", "above 90 % in every case, 95 % in the mean", "Ma et al., ASPLOS 2024"),
    ("dr_dna_published", "cost", "below 2.5 % in time, below 1 % in memory", "Ma et al., ASPLOS 2024"),
)


def write_scoreboard_page(folder: pathlib.Path) -> pathlib.Path:
    """Write `score.html`, `score.json` and the figures of a scoreboard to its folder.

    Raises:
      As `read_board`.
    """
    board = read_board(folder)
    sections = [
        table_section(board),
        _costs(board),
        _sweep(board),
        _outcomes(board),
        _models(board),
        _false_alarms(board),
        _recoveries(board),
        _published(board),
    ]
    whole = page(f"Detectors on {board.title}", score_box(board), sections, QUERIES, NAME)
    figures.write(folder / "score_figures", sections)
    write_json(folder / "score.json", said(board))
    write_text(folder / "score.html", whole)
    return folder / "score.html"


def _costs(board: Board) -> Section:
    rows: list[dict[str, Cell]] = []
    for name in board.detectors:
        slower, larger = board.slower(name), board.larger(name)
        if slower is not None:
            rows.append(
                {
                    "detector": name,
                    "time": f"{signed(slower[0])} % [{signed(slower[1])}, {signed(slower[2])}]",
                    "memory": "not known" if larger is None else f"{signed(larger)} %",
                }
            )
    if not rows:
        return Section("cost", "Cost", [], without="it was not measured")
    text = [
        "The cost is that of a watched step beside a plain one on one thread, measured in turns. Steps are short here, "
        "so that fixed costs count for more than in a large training."
    ]
    caption = "What the detectors cost: the median of the rounds, with its 95 % interval."
    return Section("cost", "Cost", text, [Table("cost", caption, rows)])


def _detected(board: Board, name: str, groups: Mapping[str, Sequence[ScoredExperiment]]) -> dict[str, Cell]:
    """A detector, and the shares of groups of experiments that it detects."""
    return {
        "detector": name,
        **{f"{group} ({len(ones)})": board.detected(name, ones) for group, ones in groups.items()},
    }


def _sweep(board: Board) -> Section:
    bad = board.of(LATENT) or board.of((*LATENT, *DIVERGED))
    if not bad:
        return Section("sweep", "Thresholds swept", [], without="no outcome that is not masked was watched")
    if not board.fault_free_steps:
        return Section("sweep", "Thresholds swept", [], without="no fault-free run was watched")
    what = "latent outcomes" if board.of(LATENT) else "outcomes that are not masked"
    found: dict[str, dict[str, Rate]] = {"as it is": {name: board.detected(name, bad) for name in board.detectors}}
    for level in LEVELS:
        called = f"≤ {percent(level)} %" if level else "none"
        for name in board.detectors:
            false, caught = board.swept(name, bad)
            most = max(caught[false <= level], default=0.0)
            found.setdefault(called, {})[name] = wilson(round(most * len(bad)), len(bad), board.confidence)
    text = [
        "The threshold of each detector is multiplied by numbers from 0.0001 to 100,000,000. A column has the largest "
        f"share of {what} detected with a threshold that raises alarms in no more than so large a share of fault-free "
        "steps; the first column is the detector as it is. Its memory is kept as it is with its own threshold, which "
        "makes numbers approximate far from it, and the best threshold was chosen on these very experiments. A "
        "detector that confirms its alarms by executing a step again confirms none below its own threshold.",
        f"The sample cannot tell shares of fault-free steps below {percent(1 / board.fault_free_steps)} % apart.",
    ]
    caption = f"Share of {what} detected, in percent, by the share of fault-free steps with an alarm."
    picture = figures.rate_picture("experiments", caption, list(board.detectors), found, "detected")
    rows: list[dict[str, Cell]] = [
        {"detector": name, **{level: rates[name] for level, rates in found.items()}} for name in board.detectors
    ]
    return Section("sweep", "Thresholds swept", text, [picture, Table("experiments", caption, rows)])


def _outcomes(board: Board) -> Section:
    present = {outcome: ones for outcome in OUTCOMES if (ones := board.of([outcome]))}
    if not present:
        return Section("outcomes", "By outcome", [], without="no experiment was watched")
    text = ["Shares detected by outcome. The number of experiments is in brackets."]
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
    bad = board.of((*LATENT, *DIVERGED))
    models = {model: [one for one in bad if one.model == model] for model in sorted({one.model for one in bad})}
    by_model = {f"{model} ({len(ones)})": ones for model, ones in models.items()}
    if not by_model:
        return Section("models", "By fault model", [], without="no outcome that is not masked was watched")
    series = {model: {name: board.detected(name, ones) for name in board.detectors} for model, ones in by_model.items()}
    rows: list[dict[str, Cell]] = [
        {"detector": name, **{model: rates[name] for model, rates in series.items()}} for name in board.detectors
    ]
    text = ["Shares detected of the outcomes that are not masked, by fault model, with the number of experiments."]
    caption = "Share detected by fault model, in percent."
    picture = figures.rate_picture("experiments", caption, list(board.detectors), series, "detected")
    table = Table("experiments", "Shares detected by fault model.", rows)
    return Section("models", "By fault model", text, [picture, table])


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
                    "left out": board.not_recovered(recovery, name),
                }
            )
        if rows:
            parts.append(Table("experiments", f"{recovery}: what came of the runs in which it acted.", rows))
    if not parts:
        return Section("recovery", "Recovery", [], without="no recovery has acted")
    text = [
        "Each run is one experiment with one detector, to its own verdict. A step that is executed again is struck "
        "again by a fault that lasts. Golden again means that the state is bit-identical to the golden run's. Left out "
        "are runs that ended before the recovery could act, and those whose end is open."
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
        told = [] if slower is None else [f"{signed(slower[0])} % in time"]
        return ", ".join([*told, *([] if larger is None else [f"{signed(larger)} % in memory"])]) or "not measured"
    if what.startswith("defective"):
        return "no defective device here"
    chosen = board.of(LATENT) if "latent" in what else board.of((*LATENT, *DIVERGED))
    return share(board.detected(name, chosen)) if chosen else "no such outcome"
