"""`challenge`: does a command notice an altered checkpoint, or an altered log."""

import argparse
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Callable

from ..campaign.rates import Rate, wilson
from ..checkpoints.alteration import PARTS, Selection, chosen
from ..checkpoints.challenge import NOTICED, TIMED_OUT, Attempt, Challenge, attempts
from ..checkpoints.formats import FORMATS, open_checkpoint
from ..checkpoints.log_numbers import LogNumbers
from ..machine.errors import InputError, printable
from .alter import bit_range
from .arguments import aligned, json_option, listed, natural, positive, tell, tell_json
from .out_folder import OUT

SHOWN = 20  # arrays in the table, those of which most went unnoticed


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help=FORMATS)
    sub.add_argument(
        "--log",
        action="store_true",
        help="it is the log of a training, as detect reads it: a number in its text is flipped, taken as float32",
    )
    sub.add_argument(
        "--command",
        required=True,
        metavar="'CMD {}'",
        help="run on each altered copy, whose path takes the place of {}; no shell runs it",
    )
    sub.add_argument("--count", type=positive, default=200, metavar="N", help="attempts (default: %(default)s)")
    sub.add_argument(
        "--noticed",
        type=_pattern,
        metavar="REGEX",
        help="a line of the output that fits it says that the command has noticed, as an exit code other than 0 does",
    )
    sub.add_argument(
        "--limit", type=_seconds, default=600.0, metavar="SECONDS", help="for each run (default: %(default)s)"
    )
    sub.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help=f"of attempts and copies (default: {OUT}/NAME_challenge)"
    )
    which = sub.add_argument_group("which bits are flipped (default: any bit of any floating-point number)")
    which.add_argument(
        "--names", action="append", default=[], metavar="PATTERN", help="arrays, as in alter; of a log, tensors"
    )
    which.add_argument("--part", choices=PARTS, help="arrays of the model, or of the optimizer (by their names)")
    which.add_argument("--by-tensor", action="store_true", help="draw an array first, each alike; not by its size")
    which.add_argument(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="of the first attempt; the next has N + 1 (default: %(default)s)",
    )
    bits = which.add_mutually_exclusive_group()
    bits.add_argument(
        "--bits", type=bit_range, metavar="LOW-HIGH", help="one of these bits; 0 is the least significant"
    )
    bits.add_argument("--critical", action="store_true", help="the highest bit of the exponent")
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    if options.log and options.part:
        raise InputError("--part is for checkpoints; expected --names with patterns of the log's tensors")
    checkpoint = LogNumbers(options.checkpoint) if options.log else open_checkpoint(options.checkpoint)
    drawing = {name: getattr(options, name) for name in ("part", "by_tensor", "seed", "bits", "critical")}
    if options.log and checkpoint.raw:
        print(printable(f"left out: {listed([*checkpoint.raw])}: numbers not found in the text"), file=sys.stderr)
    wanted = Selection(count=1, names=tuple(options.names), **drawing)
    chosen(dict(checkpoint.arrays), wanted, checkpoint.path)  # what is wrong is said before anything is written
    out = options.out or OUT / f"{checkpoint.path.stem}_challenge"
    if out.exists() and not out.is_dir():
        raise InputError("--out is a file, expected a folder", out)
    asked = Challenge(options.command, wanted, options.noticed, options.limit)
    done = list(attempts(checkpoint, asked, out, options.count))
    if options.json:
        known = {"attempts": [one._asdict() for one in done], "noticed": _rate(done)._asdict()}
        tell_json(
            {**known, "by_bit": _by(done, lambda one: str(one.bit)), "by_array": _by(done, lambda one: one.array)}
        )
        return
    again = "" if options.log else "; alter --count 1 --seed N draws it again"  # alter reads no logs
    for line in [*_sentences(done, options.command), f"each attempt is in {out}{again}"]:
        tell(line)


def _rate(done: list[Attempt]) -> Rate:
    return wilson(sum(one.verdict == NOTICED for one in done), len(done))


def _by(done: list[Attempt], key: Callable[[Attempt], str]) -> dict[str, dict[str, object]]:
    """The rate of each bit, or array."""
    return {one: _rate([each for each in done if key(each) == one])._asdict() for one in sorted(set(map(key, done)))}


def _sentences(done: list[Attempt], command: str) -> list[str]:
    """What was noticed, as text: by bit, by array, and of all."""
    bits = sorted({one.bit for one in done}, reverse=True)
    rows = [_row(f"{bit}", [one for one in done if one.bit == bit]) for bit in bits]
    head = ("attempts", "noticed", "95 % interval", "timed out")
    lines = aligned([("bit", *head), *rows])
    missed = Counter(one.array for one in done if one.verdict != NOTICED)
    arrays = sorted({one.array for one in done}, key=lambda name: (-missed[name], name))
    table = [_row(name, [one for one in done if one.array == name]) for name in arrays[:SHOWN]]
    lines += ["", *aligned([("array", *head), *table])]
    if len(arrays) > SHOWN:
        lines.append(f"… and {len(arrays) - SHOWN} more arrays, of which no more went unnoticed")
    rate, late = _rate(done), sum(one.verdict == TIMED_OUT for one in done)
    said = f"{rate.found} of {rate.total} flips noticed: {_percent(rate)}"
    return [*lines, "", f"{command}: {said}" + (f"; {late} timed out, which is not counted as noticed" if late else "")]


def _row(name: str, found: list[Attempt]) -> tuple[str, ...]:
    rate, late = _rate(found), sum(one.verdict == TIMED_OUT for one in found)
    return name, f"{rate.total}", f"{rate.found}", f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %", f"{late}"


def _percent(rate: Rate) -> str:
    return f"{100 * rate.share:.1f} % (95 %: {100 * rate.low:.1f} to {100 * rate.high:.1f} %)"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no regular expression: {error}") from None
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}; expected seconds above 0, at most 1000000 (default 600)")
    return value
