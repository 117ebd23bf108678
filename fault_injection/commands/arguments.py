"""Types of arguments, and groups of options that several commands have."""

import argparse
import pathlib
import re
from collections.abc import Sequence

from ..machine.environment import PRECISIONS, cache_folder


def positive(text: str) -> int:
    """A whole number from 1."""
    return _number(text, 1)


def whole(text: str) -> int:
    """A whole number from 0."""
    return _number(text, 0)


def _number(text, least):
    if not re.fullmatch(r"0|[1-9]\d{0,7}", text, re.ASCII) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from {least}")
    return int(text)


def epoch_list(text: str) -> set[int]:
    """Epochs from a list such as 7,19,30-33."""
    epochs: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not re.fullmatch(r"\d{1,6}(-\d{1,6})?", part, re.ASCII) or int(last or first) < int(first):
            raise argparse.ArgumentTypeError(f"{part!r}; expected epochs such as 7,19,30-33")
        epochs |= set(range(int(first), int(last or first) + 1))
    return epochs


def machine_options(parser: argparse.ArgumentParser) -> None:
    """Where a command computes, and all that `place_options` adds."""
    parser.add_argument("--threads", type=positive, help="CPU threads to compute with (default: all)")
    several = parser.add_argument_group("several processes, one run (the same command in each)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens; `auto` on a cluster")
    several.add_argument("--processes", type=positive, metavar="N", help="how many there are")
    several.add_argument("--process", type=whole, metavar="I", help="number of this one, from 0")
    place_options(parser)


def place_options(parser: argparse.ArgumentParser) -> None:
    """Where things are, and how precisely they are computed."""
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        default="float32",
        help="to what operands of matrix products and convolutions are rounded (default: %(default)s)",
    )
    parser.add_argument("--cache", type=pathlib.Path, help=f"folder of golden runs (default: {cache_folder()})")
    parser.add_argument(
        "--data-dir",
        type=pathlib.Path,
        help="folder of CIFAR-10 (default: $FAULT_INJECTION_DATA, the cache, ~/tensorflow_datasets, a download)",
    )


def workload_options(parser: argparse.ArgumentParser, default: str, names: Sequence[str] = ()) -> None:
    """Options named as rows of an injection file (all that a workload has), read by the same rules."""
    from ..faults.injection import OPTIONAL, OPTIONS, REQUIRED

    names = names or (*OPTIONS, "learning_rate", "seed")
    for name in names:
        read = (OPTIONAL | REQUIRED)[name]
        parser.add_argument(f"--{name.replace('_', '-')}", type=_as_argument(name, read), help=f"default: {default}")
    parser.set_defaults(rows=names)


def given(options: argparse.Namespace) -> dict[str, object]:
    """The options of `workload_options` that were given, by name."""
    return {name: getattr(options, name) for name in options.rows if getattr(options, name) is not None}


def _as_argument(name, read):
    def convert(text):
        try:
            return read(text)
        except LookupError as hint:
            raise argparse.ArgumentTypeError(f"{text!r} is unknown{hint.args[0]}") from None
        except ValueError as expected:
            raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}") from None

    return convert
