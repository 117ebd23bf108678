"""The leaderboard: one file per record, and the page that a program makes of all of them."""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...campaign.rates import Rate, wilson
from ...machine.errors import InputError
from ...machine.files import read_text
from ...machine.reading import SHOWN
from .board import MILLION, Board
from .comparison import DetectorStanding, markdown, percent, standings

NUMBERS = ("latent", "nonfinite", "harmless", "false_alarms")
KEYS = {
    *("set", "detector", "command", "commit", "version", "machine", "made", *NUMBERS, "bound", "steps"),
    *("models", "localized", "recovered", "cost", "memory", "code"),
}
MACHINE = ("processor", "device_kind", "threads", "jax", "system")  # of an environment
RULES = """\
- A detector sees the values of steps, and nothing of the golden run beside a faulty one, of outcomes, or of what was
  struck. By values it sees each exported run by itself, and decides on a row by that row and those above.
- Thresholds are fixed before a detector sees the set.
- A record is a file of `results/leaderboard/`, written by `score SET … --record results/leaderboard`, with the exact
  command, the commit and the machine. The detector's own file, if it has one, is in the same change.
- A set never changes. A better one has another name.
"""


def record(
    board: Board,
    name: str,
    of_set: str,
    command: str,
    environment: Mapping[str, Any],
    made: str,
    code: str | None = None,
) -> dict[str, Any]:
    """A record of one detector.

    Args:
      name: of the detector on the board.
      of_set: name of the frozen set.
      command: with which the board was made.
      environment: of its experiments, as a store says it.
      made: the day, as 2026-11-28.
      code: hash of a user's file, or of the alarms that were read.
    """
    one: DetectorStanding = {standing.detector: standing for standing in standings(board)}[name]
    return {
        "set": of_set,
        "detector": name,
        "command": command,
        "commit": environment.get("commit"),
        "version": environment.get("version"),
        "machine": {key: environment.get(key) for key in MACHINE},
        "made": made,
        "code": code,
        **{key: _pair(getattr(one, key)) for key in NUMBERS},
        "bound": round(one.bound, 1),
        "steps": one.steps,
        "cost": one.cost if one.cost is None else round(one.cost, 5),
        "memory": one.memory if one.memory is None else round(one.memory, 5),
        "models": {model: _pair(rate) for model, rate in one.models.items()},
        "localized": {part: _pair(getattr(one, part)) for part in ("site", "layer", "worker")},
        "recovered": {recovery: _pair(rate) for recovery, rate in one.recovered.items()},
    }


def _pair(rate: Rate) -> list[int]:
    return [rate.found, rate.total]


def file_name(found: Mapping[str, Any]) -> str:
    """The file of a record.

    >>> file_name({"set": "SDC-1", "detector": "mine.py:detector"})
    'SDC-1-mine.py_detector.json'
    """
    return f"{found['set']}-{re.sub(r'[^A-Za-z0-9._-]', '_', found['detector'])}.json"


def read_records(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a folder.

    Raises:
      InputError: a file is no record, or two are of one detector and set.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            one = json.loads(read_text(path))
        except ValueError as error:
            raise InputError(f"no JSON: {str(error)[:SHOWN]}", path) from None
        if not isinstance(one, dict) or one.keys() != KEYS:
            differ = sorted(KEYS ^ one.keys()) if isinstance(one, dict) else "a record is an object"
            raise InputError(f"is no record: {str(differ)[:SHOWN]}; `score SET --record DIR` writes one", path)
        if file_name(one) != path.name:
            raise InputError(f"is the record {file_name(one)}; give the file that name", path)
        found[one["set"], one["detector"]] = one
    return list(found.values())


def leaderboard(records: Sequence[Mapping[str, Any]], sets: Mapping[str, str]) -> str:
    """The page of all records.

    Args:
      sets: of each frozen set, by name, one sentence.
    """
    parts = [
        "# Leaderboard of detectors",
        "Who notices? Each set is a campaign whose outcomes are known. A detector that watches it gets one row:\n"
        "how many of its latent outcomes it stops (bad endings with a finite loss), how many that are not finite, and\n"
        "how often it stops a run for nothing. Shares are in percent with 95 % intervals.",
        "`python results/leaderboard.py` writes this page from the records in `results/leaderboard/`. [How to enter a\n"
        "detector](docs/scoreboard.md#enter-a-detector) takes ten minutes.",
        "## Rules\n\n" + RULES.rstrip("\n"),
    ]
    for name, sentence in sets.items():
        ones = sorted((one for one in records if one["set"] == name), key=_rank)
        parts.append(f"## {name}\n\n{sentence}")
        if not ones:
            parts.append("No record.")
            continue
        held = ones[0]
        counts = (
            f"{held['latent'][1]} latent outcomes, {held['nonfinite'][1]} that are not finite, {held['harmless'][1]}"
        )
        steps = max(one["false_alarms"][1] for one in ones)
        models = f"{len(held['models'])} fault model(s) with harmful outcomes"
        parts.append(f"The boards of these records hold {counts} masked, {models}, and {steps:,} fault-free steps.")
        of_workers = any(one["localized"] and one["localized"]["worker"][0] for one in ones)
        parts.append(markdown([_row(one, of_workers) for one in ones]).rstrip("\n"))
        parts.append("\n".join(_made(some) for some in _by_command(ones)))
    return "\n\n".join(parts) + "\n"


def _rank(one: Mapping[str, Any]) -> tuple[float, float, float, str]:
    """What detects more harm comes first; then what raises fewer false alarms, and costs less."""
    harm = one["latent"][0] + one["nonfinite"][0]
    return -harm, one["false_alarms"][0], one["cost"] if one["cost"] is not None else 1e9, one["detector"]


def _row(one: Mapping[str, Any], of_workers: bool) -> dict[str, str]:
    false, steps = one["false_alarms"], one["steps"]
    known = one["localized"]
    named = ["layer", *(["worker"] if of_workers else [])]
    return {
        "detector": f"`{one['detector']}`",
        "latent": _percent(one["latent"]),
        "not finite": _percent(one["nonfinite"]),
        "harmless": _percent(one["harmless"]),
        "false alarms in a million": f"{MILLION * false[0] / max(1, false[1]):,.0f} (≤ {one['bound']:,.0f})",
        "steps to the alarm": "" if steps is None else f"{steps[0]:g} ({steps[1]})",
        **{f"names the {what}": "not known" if known is None else _percent(known[what]) for what in named},
        "time": "not measured" if one["cost"] is None else f"{100 * one['cost']:+.2f} %",
    }


def _percent(pair: Sequence[int]) -> str:
    return percent(wilson(*pair))


def _by_command(ones: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in ones:
        found.setdefault(json.dumps([one[key] for key in ("command", "commit", "machine", "made")]), []).append(one)
    return list(found.values())


def _made(ones: Sequence[Mapping[str, Any]]) -> str:
    """Where records of one board come from."""
    first, names = ones[0], ", ".join(f"`{one['detector']}`" for one in ones)
    machine = first["machine"]
    where = f"{machine['processor']}, {machine['threads']} thread(s) a job, JAX {machine['jax']}"
    return f"- {names}: `{first['command']}`, commit {str(first['commit'])[:12]}, {where}, {first['made']}"
