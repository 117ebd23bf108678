"""`formats`: the same logical fault in several number formats, each replayed."""

import argparse
import pathlib
from typing import Any

from ..faults.element_bits import format_new_bits
from ..faults.injection import Injection
from ..faults.injection_file import read_injection, write_injection
from ..faults.number_formats import format_of
from ..faults.translation import translations
from ..machine.errors import InputError, did_you_mean
from ..machine.files import write_json
from ..machine.processes import from_leader
from ..models.bits import ALL_ONES
from ..models.precisions import PRECISIONS
from ..runs.records import run_columns
from ..runs.replay_files import struck_values, write_replay
from ..runs.replay_run import Replay, golden_for, replay
from .arguments import aligned, json_option, machine_options, tell, tell_json
from .out_folder import DEFAULT, check_out, default_out

COLUMNS = ("format", "operand", "new bits", "from", "to", "outcome", "worse train", "worse test")


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", type=pathlib.Path, metavar="FILE", help="injection file")
    sub.add_argument(
        "--formats",
        default=",".join(PRECISIONS),
        metavar="NAME,…",
        help="values of the option 'precision' (default: %(default)s)",
    )
    sub.add_argument("--out", type=pathlib.Path, help=f"folder of the results (default: {DEFAULT}_formats)")
    sub.add_argument("--check", action="store_true", help="say what the fault is in each format, and run nothing")
    json_option(sub)
    machine_options(sub)


def run(options: argparse.Namespace) -> None:
    names = tuple(dict.fromkeys(options.formats.split(",")))
    for name in names:
        if name not in PRECISIONS:
            raise InputError(f"--formats {name[:60]!r} is unknown{did_you_mean(name, PRECISIONS)}")
    injection = from_leader(lambda: read_injection(options.file))
    if injection.also:
        what = f"the file has {len(injection.every)} faults, and formats compares what becomes of one"
        raise InputError(f"{what}; write a file of the one that is to be compared", options.file)
    out = options.out or default_out(options.file, "_formats")
    found = translations(injection, names)
    check_out(out)
    for name, moved in found.items():
        if isinstance(moved, Injection) and not options.check:
            check_out(out / name, moved)
    rows: list[dict[str, Any]] = []
    replays: dict[str, Replay] = {}
    for name, moved in found.items():
        if isinstance(moved, str):
            rows.append({"format": name, "outcome": moved})
            continue
        row: dict[str, Any] = {"format": name, "operand": moved.tensor.dtype.name, "new bits": _new_bits(moved)}
        rows.append(row)
        if not options.check:
            replays[name] = _replay(moved, f"{options.file.stem}_{name}", out / name, options)
            row |= _found(replays[name])
    if replays:
        from_leader(lambda: _write(out, injection, rows, replays))
    if options.json:
        tell_json({"formats": rows, "folder": str(out) if replays else None})
        return
    for line in _table(rows):
        tell(line)
    if replays:
        tell(f"written to {out}/")


def _replay(injection: Injection, name: str, folder: pathlib.Path, options: argparse.Namespace) -> Replay:
    """Replay one of the files, and write it and what comes of it."""
    golden = golden_for(injection, options.cache, options.data_dir)
    file = folder / f"{name}.csv"
    from_leader(lambda: write_injection(file, injection))
    command = ["python", "reproduce_injections.py", "--file", str(file)]
    return replay(injection, golden, lambda result: write_replay(result, name, folder, command))


def _found(result: Replay) -> dict[str, Any]:
    """What the fault did to its first element, and to the training."""
    old, new = (float(struck_values(result.injection, bits)[0]) for bits in (result.struck.old, result.struck.new))
    worse = result.outcome.worse or {}
    return {"from": old, "to": new, "outcome": result.outcome.outcome} | {f"worse {k}": v for k, v in worse.items()}


def _new_bits(injection: Injection) -> str:
    """What the first element gets, in the format of its operand."""
    format = format_of(injection.tensor.dtype)
    if injection.values:
        return f"{int(format.bits(injection.values[:1])[0]):0{format.width // 4}x}"
    if injection.profile is not None:
        return injection.profile.error.sentence()
    first = injection.bits[0]
    inverted = first.flip if first.keep == ALL_ONES else 0
    roles = [format.role(bit) for bit in range(format.width - 1, -1, -1) if inverted >> bit & 1]
    return format_new_bits(first, format.dtype) + (f" ({', '.join(roles)})" if len(roles) == 1 else "")


def _write(out: pathlib.Path, injection: Injection, rows: list[dict[str, Any]], replays: dict[str, Replay]) -> None:
    from ..runs.curves import draw_panels  # Matplotlib is slow to import

    write_json(out / "formats.json", {"fault": injection.sentence(), "formats": rows})
    panels = {}
    for name, result in replays.items():
        program = result.source.program
        measure = program.measure()
        tables = [run_columns(run, program, measure.name) for run in (result.golden, result.faulty)]
        panels[f"{name}: {result.outcome.outcome}"] = (tables[0], tables[1])
    at = injection.epoch + injection.step / injection.steps_per_epoch
    title = f"{injection.workload.title}: one fault in {len(panels)} number formats"
    draw_panels(out / "formats.png", title, panels, at, injection.steps_per_epoch, measure)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as text, in columns; a row without a fault has its reason instead."""

    def shown(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)

    used = [name for name in COLUMNS if any(name in row for row in rows)]
    cells = [used, *([shown(row.get(name)) for name in used] for row in rows)]
    return aligned(cells)
