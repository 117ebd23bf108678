"""`alter`: flip bits in a saved checkpoint, or repeat alterations that a log has."""

import argparse
import dataclasses
import hashlib
import pathlib
import re

import numpy as np

from ..checkpoints.alteration import KINDS, PARTS, Selection, draw_alteration, left_out, numbers, population
from ..checkpoints.checkpoint import Altered, Checkpoint
from ..checkpoints.formats import FORMATS, open_checkpoint
from ..checkpoints.journal import Journal
from ..checkpoints.log import LARGEST, apply, read_log, read_mapping
from ..machine.errors import InputError
from ..machine.files import read_bounded
from ..machine.termination import too_late
from .arguments import aligned, json_option, listed, natural, positive, tell, tell_json

SHOWN = 5  # alterations, and arrays, that are printed
DRAWING = tuple(field.name for field in dataclasses.fields(Selection))


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help=FORMATS)
    sub.add_argument("--out", type=pathlib.Path, metavar="NEW", help="the altered copy")
    sub.add_argument("--in-place", action="store_true", help="replace CHECKPOINT, at once, when the copy is whole")
    sub.add_argument("--log", type=pathlib.Path, metavar="FILE", help="write each alteration there")
    sub.add_argument("--check", action="store_true", help="say what would be altered; write neither NEW nor a log")
    json_option(sub)
    many = sub.add_argument_group("how many elements (default: --count 1)").add_mutually_exclusive_group()
    many.add_argument("--count", type=positive, metavar="N", help="so many")
    many.add_argument("--share", type=_fraction, metavar="F", help="this share of all, from 0 to 1")
    many.add_argument("--probability", type=_fraction, metavar="P", help="each with this probability")
    which = sub.add_argument_group("which")
    which.add_argument(
        "--names",
        action="append",
        default=[],
        metavar="PATTERN",
        help="arrays of such names, as params/fc/*; repeatable",
    )
    which.add_argument("--part", choices=PARTS, help="arrays of the model, or of the optimizer (by their names)")
    which.add_argument(
        "--kinds",
        type=_kinds,
        default="float",
        metavar="KIND,…",
        help=f"of {', '.join(KINDS)}, or all; narrow numbers have 4 bits, scales are E8M0 (default: %(default)s)",
    )
    which.add_argument("--by-tensor", action="store_true", help="draw an array first, each alike; not by its size")
    which.add_argument("--seed", type=natural, default=0, metavar="N", help="of what is drawn (default: %(default)s)")
    becomes = sub.add_argument_group("what becomes of them (default: one bit of any is inverted)")
    bits = becomes.add_mutually_exclusive_group()
    bits.add_argument(
        "--bits", type=bit_range, metavar="LOW-HIGH", help="one of these bits; 0 is the least significant"
    )
    bits.add_argument("--mask", type=_mask, metavar="HEX", help="these bits, by XOR")
    bits.add_argument("--critical", action="store_true", help="the highest bit of the exponent")
    bits.add_argument("--value", type=float, metavar="X", help="set to this number, rounded to the array's format")
    bits.add_argument("--factor", type=float, metavar="X", help="multiplied by this number")
    becomes.add_argument(
        "--burst",
        type=positive,
        default=1,
        metavar="N",
        help="so many distinct bits of one element (default: %(default)s)",
    )
    becomes.add_argument("--keep-sign", action="store_true", help="draw anew what changes the sign")
    becomes.add_argument("--finite", action="store_true", help="draw anew what becomes infinite or NaN")
    becomes.add_argument(
        "--most-significant-first", action="store_true", help="count bits from the sign, as Rojas et al. do"
    )
    again = sub.add_argument_group("again")
    again.add_argument(
        "--replay",
        type=pathlib.Path,
        metavar="LOG",
        help="invert the bits that this log inverted: repeats an alteration, or undoes it",
    )
    again.add_argument(
        "--mapping", type=pathlib.Path, metavar="FILE", help="JSON: names of the log's arrays here, perhaps with axes"
    )


def run(options: argparse.Namespace) -> None:
    _consistent(options)
    checkpoint = open_checkpoint(options.checkpoint)
    out = options.checkpoint.resolve() if options.in_place else options.out  # what a symbolic link leads to is replaced
    if options.in_place and checkpoint.path.is_dir():
        raise InputError("is a folder, which cannot be replaced at once; expected --out", checkpoint.path)
    if out is not None and checkpoint.path.is_dir() and out.resolve().is_relative_to(checkpoint.path.resolve()):
        raise InputError("--out is in the checkpoint; choose a place beside it", out)
    inside = options.log is not None and options.log.resolve().is_relative_to(checkpoint.path.resolve())
    if inside and checkpoint.path.is_dir():
        raise InputError("--log is in the checkpoint, which is never changed; choose a place beside it", options.log)
    wanted = Selection(**{name: getattr(options, name) for name in DRAWING})
    if wanted.count is wanted.share is wanted.probability is None:
        wanted = dataclasses.replace(wanted, count=1)
    if options.check or out is None:
        altered, notes = _drawn(options, checkpoint, wanted)
        _answer(options, checkpoint, altered, notes, None)
        return
    # By content too: another file may have the name when the command is given again.
    given = {name: file for name in ("replay", "mapping") if (file := getattr(options, name)) is not None}
    again = {name: [file.name, _digest(file)] for name, file in given.items()}
    asked = again or dataclasses.asdict(wanted)
    about = {"checkpoint": checkpoint.path.name, "out": out.name, "in_place": options.in_place}
    journal = Journal(out, options.log, {**about, "format": checkpoint.format, "asked": asked})
    done = journal.written(checkpoint)
    if done is None:
        altered, notes = _drawn(options, checkpoint, wanted)
        journal.write(checkpoint, altered)
    else:
        altered, notes = done, {"already": True}
    _answer(options, checkpoint, altered, notes, out)
    too_late()
    journal.forget()


def _digest(path: pathlib.Path) -> str:
    try:
        return hashlib.sha256(read_bounded(path, LARGEST)).hexdigest()
    except OSError as error:
        raise InputError(error.strerror or str(error), path) from None


def _drawn(
    options: argparse.Namespace, checkpoint: Checkpoint, wanted: Selection
) -> tuple[dict[str, Altered], dict[str, object]]:
    """What is to be altered, and what is to be told of it."""
    if options.replay is None:
        return draw_alteration(checkpoint, wanted), _population(checkpoint, wanted)
    mapping = read_mapping(options.mapping) if options.mapping else {}
    applied = apply(read_log(options.replay), checkpoint, mapping)
    return applied.altered, {"as_before": applied.before, "undone": applied.after}


def _consistent(options: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    if options.out is not None and options.in_place:
        raise InputError("--out and --in-place exclude each other")
    if options.out is None and not options.in_place and not options.check:
        raise InputError("expected --out NEW, --in-place or --check")
    if options.log is not None and options.out is not None:
        log, out = options.log.resolve(), options.out.resolve()
        if log.is_relative_to(out):
            raise InputError(f"--log and --out are the same {'file' if log == out else 'folder'}", options.log)
    if options.mapping is not None and options.replay is None:
        raise InputError("--mapping belongs to --replay")
    if options.replay is not None:
        defaults = Selection()
        for name in DRAWING:
            if getattr(options, name) not in (getattr(defaults, name), []):
                raise InputError(f"--{name.replace('_', '-')} does not go with --replay, which draws nothing")
    options.names = tuple(options.names)
    fixed = options.mask is not None or options.critical or options.value is not None or options.factor is not None
    if options.burst > 1 and fixed:
        raise InputError("--burst belongs to bits that are drawn")
    if options.most_significant_first and options.bits is None and options.mask is None:
        raise InputError("--most-significant-first says how --bits or --mask are counted")


def _population(checkpoint: Checkpoint, wanted: Selection) -> dict[str, object]:
    arrays, counted = population(checkpoint, wanted)
    return {"arrays": len(arrays), "elements": sum(array.size for array in arrays.values()) - len(counted)}


def _answer(
    options: argparse.Namespace,
    checkpoint: Checkpoint,
    altered: dict[str, Altered],
    notes: dict[str, object],
    out: pathlib.Path | None,
) -> None:
    """Say what was altered, or would be."""
    count = sum(len(one.places) for one in altered.values())
    left, shared = left_out(checkpoint, options.kinds), dict(checkpoint.sharing(altered))
    if options.json:
        known = {
            "format": checkpoint.format,
            "altered": count,
            "by_array": {n: len(a.places) for n, a in altered.items()},
        }
        if shared:
            known["shared"] = shared
        tell_json({**known, **notes, "left_out": left, "out": None if options.check or out is None else str(out)})
        return
    would = "would be altered" if options.check else "were altered" if notes.get("already") else "altered"
    among = f" of {notes['elements']:,} in {notes['arrays']} arrays" if "elements" in notes else ""
    tell(f"{checkpoint.path} ({checkpoint.format}): {count:,} elements{among} {would}")
    if notes.get("as_before") or notes.get("undone"):
        tell(f"{notes['as_before']:,} had the log's bits before the alteration, {notes['undone']:,} those after it")
    if left:
        names = listed([f"{name} ({text})" for name, text in left.items()])
        tell(f"left out, since only arrays of {numbers(options.kinds)} are altered: {len(left)}: {names}")
    for name, others in [*shared.items()][:SHOWN]:
        tell(f"shared: what was struck in {name} changes in {listed(others)}, too")
    rows: list[tuple[str, ...]] = []
    for name, one in altered.items():
        array = checkpoint.arrays[name]
        before, after = (words.view(array.dtype) for words in (one.before, one.after))
        for k in range(min(SHOWN - len(rows), len(one.places))):
            place = "/".join(map(str, np.unravel_index(one.places[k], array.shape))) if array.shape else "-"
            digits = -(-array.width // 4)
            bits = f"{one.before[k]:0{digits}x} -> {one.after[k]:0{digits}x}"
            rows.append((name, place, bits, f"{float(before[k]):.6g} -> {float(after[k]):.6g}"))
    if rows:
        for line in aligned([("array", "element", "bits", "value"), *rows]):
            tell(line)
    if count > len(rows):
        tell(f"… and {count - len(rows):,} more")
    if not options.check:
        when = "was written already, by the same command," if notes.get("already") else "written"
        tell(f"{when} to {out}" + (f"; each alteration is in {options.log}" if options.log else ""))


def _kinds(text: str) -> tuple[str, ...]:
    found = KINDS if text == "all" else tuple(dict.fromkeys(text.split(",")))
    if not set(found) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected some of {', '.join(KINDS)}, or all")
    return found


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected a number above 0, at most 1 (one percent is 0.01)")
    return value


def bit_range(text: str) -> tuple[int, int]:
    """The lowest and the highest of some bits, from a text such as `0-22` or `30`."""
    found = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", text, re.ASCII)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not low <= high < 64:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected bits such as 0-22, or one bit such as 30")
    return low, high


def _mask(text: str) -> int:
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,16}", text) or not int(text, 16):
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected bits in hexadecimal, such as 40000000")
    return int(text, 16)
