"""`report`: write the pages of a folder, or print their answers."""

import argparse
import pathlib
from typing import Any

from ..campaign.box import Box, box_dict, box_lines
from ..machine.errors import InputError, did_you_mean
from ..questions.outcomes.report.fleet import PUBLISHED_FIT, Detected, Fleet, write_fleet_card
from ..questions.outcomes.standing import standing
from ..questions.outcomes.store import NAME
from ..questions.scoreboard.standing import has_score
from ..questions.vulnerability.files import has_numbers
from ..runs.outcome import LATENT
from .arguments import json_option, tell, tell_json

FLEET = ("devices", "fit", "score", "detector")


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "campaigns", type=pathlib.Path, nargs="+", metavar="DIR", help="folder of `campaign`, `score` or `pvf`"
    )
    sub.add_argument("--out", type=pathlib.Path, help="folder of the comparison of several (default: comparison)")
    sub.add_argument(
        "--fleet",
        metavar="devices=N[,fit=RATE][,score=DIR,detector=NAME]",
        help="write the fleet card instead: expected harm a month on so many devices. RATE is in failures per 1e9 "
        "device hours, one or LOW-HIGH (default: 280-510, published); DIR is the folder of a scoreboard",
    )
    sub.add_argument(
        "--summary", action="store_true", help="print the answer that the page begins with, and write nothing"
    )
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    if len(options.campaigns) == 1 and options.out is not None:
        raise InputError("--out belongs to a comparison; the report of a campaign is written to its folder")
    if options.summary and (options.fleet is not None or options.out is not None):
        raise InputError("--summary writes nothing; leave --fleet and --out away")
    if options.summary:
        _tell_boxes(options)
    elif options.fleet is not None:
        _fleet(options)
    elif len(options.campaigns) > 1:
        from ..questions.outcomes.report.comparison import write_comparison  # Matplotlib is slow to import

        page = write_comparison(options.campaigns, options.out or pathlib.Path("comparison"))
        stated = {"campaigns": [standing(folder).as_dict() for folder in options.campaigns]}
        _written(options, {"report": page}, stated)
    else:
        _one(options)


def _one(options: argparse.Namespace) -> None:
    """Write the pages of a folder: of its campaign, its scoreboard, its trials."""
    (folder,) = options.campaigns
    pages, stated = {}, {}
    if _has_campaign(folder):
        from ..questions.outcomes.report.sections import write_report

        pages["report"] = write_report(folder)
        stated = standing(folder).as_dict()
    if has_score(folder):
        from ..questions.scoreboard.page import write_scoreboard_page

        pages["score"] = write_scoreboard_page(folder)
    if has_numbers(folder):
        from ..questions.vulnerability.page import rewrite_vulnerability_page

        pages["pvf"] = rewrite_vulnerability_page(folder)
    _written(options, pages, stated)


def _has_campaign(folder: pathlib.Path) -> bool:
    """Whether a folder has a campaign; one with nothing is refused as one without it."""
    return (folder / NAME).exists() or not (has_score(folder) or has_numbers(folder))


def _written(options: argparse.Namespace, pages: dict[str, pathlib.Path], stated: dict[str, Any]) -> None:
    if options.json:
        tell_json({**{name: str(page) for name, page in pages.items()}, **stated})
        return
    for page in pages.values():
        tell(f"written to {page}")


def _tell_boxes(options: argparse.Namespace) -> None:
    """Print the first box of each page that would be written."""
    boxes: dict[str, Box] = {}
    if len(options.campaigns) > 1:
        from ..questions.outcomes.report.comparison import compared

        boxes["report"] = compared(options.campaigns)
    else:
        (folder,) = options.campaigns
        if _has_campaign(folder):
            from ..questions.outcomes.report.sections import report_box

            boxes["report"] = report_box(folder)
        if has_score(folder):
            from ..questions.scoreboard.advice import score_box
            from ..questions.scoreboard.board import read_board

            boxes["score"] = score_box(read_board(folder))
        if has_numbers(folder):
            from ..questions.vulnerability.advice import vulnerability_box
            from ..questions.vulnerability.numbers import read_numbers

            boxes["pvf"] = vulnerability_box(read_numbers(folder))
    if options.json:
        tell_json({name: box_dict(box) for name, box in boxes.items()})
        return
    for box in boxes.values():
        for line in box_lines(box):
            tell(line)


def _fleet(options: argparse.Namespace) -> None:
    """Write the fleet card, and say what it says."""
    if len(options.campaigns) > 1:
        raise InputError("--fleet is of one campaign; give one folder")
    given = _pairs(options.fleet)
    fleet = Fleet(_devices(given), _fit(given["fit"]) if "fit" in given else PUBLISHED_FIT)
    page, card = write_fleet_card(options.campaigns[0], fleet, _detected(given))
    if options.json:
        tell_json({"report": str(page), **card.as_dict()})
        return
    for sentence in card.sentences:
        tell(sentence)
    tell(f"written to {page}")


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise InputError(f"--fleet: {pair[:60]!r}; expected such as devices=1024,fit=400")
        if name not in FLEET:
            raise InputError(f"--fleet: {name[:60]!r} is unknown{did_you_mean(name, FLEET)}")
        if name in found:
            raise InputError(f"--fleet: {name} is given twice")
        found[name] = value
    if ("score" in found) != ("detector" in found):
        raise InputError("--fleet: score=DIR and detector=NAME go together")
    return found


def _devices(given: dict[str, str]) -> int:
    text = given.get("devices", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise InputError(f"--fleet: devices {text[:60]!r}; expected a whole number from 1, such as devices=1024")
    return int(text)


def _fit(text: str) -> tuple[float, float]:
    """One rate, or two as LOW-HIGH.

    >>> _fit("400"), _fit("280-510")
    ((400.0, 400.0), (280.0, 510.0))
    """
    low, dash, high = text.partition("-")
    try:
        found = float(low), float(high if dash else low)
    except ValueError:
        found = (0.0, 0.0)
    if not 0 < found[0] <= found[1] < 1e9:
        raise InputError(
            f"--fleet: fit {text[:60]!r}; expected failures per 1e9 device hours, above 0 and below 1e9: 400 or 280-510"
        )
    return found


def _detected(given: dict[str, str]) -> Detected | None:
    if "score" not in given:
        return None
    from ..questions.scoreboard.board import read_board  # JAX is slow to import

    folder, name = pathlib.Path(given["score"]), given["detector"]
    board = read_board(folder)
    if name not in board.detectors:
        raise InputError(f"--fleet: detector {name[:60]!r} has no scores{did_you_mean(name, board.detectors)}", folder)
    after = [one.stop(name) for one in board.of(LATENT)]
    return Detected(name, board.title, board.details, after, board.guesses)
