"""What pages, terminal and JSON share: numbers in words, answers, differences, figures."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from campaign_stores import fill, toy_plan
from hypothesis import given
from hypothesis import strategies as st
from strict_html import check_html

from fault_injection.campaign import figures
from fault_injection.campaign.page import ClickedExperiment, Experiments, Section, Shown, Table, page
from fault_injection.campaign.rates import Rate, wilson
from fault_injection.campaign.wording import MINUS, number, percent
from fault_injection.commands.main import main
from fault_injection.questions.outcomes.report.differences import RateDifference, difference, told
from fault_injection.questions.scoreboard.advice import score_box
from fault_injection.questions.scoreboard.board import Board, ScoredExperiment
from fault_injection.questions.scoreboard.tasks import SWEPT
from fault_injection.runs.outcome import IMMEDIATE, MASKED, SLOW


def read(text: str) -> float:
    """A number that was said."""
    return float(text.replace(",", "").replace(MINUS, "-").replace("∞", "inf"))


@given(st.floats(-1e308, 1e308) | st.integers(-(10**12), 10**12))
def test_a_number_that_is_said_is_right_to_three_digits_and_short(x):
    said = number(x)
    assert math.isclose(read(said), x, rel_tol=0.0051) and len(said) <= 12


@given(st.floats(0, 1))
def test_a_share_that_is_said_is_right_and_certainty_is_said_of_it_alone(share):
    said = percent(share)
    assert math.isclose(float(said) / 100, share, rel_tol=0.051, abs_tol=0) and len(said.replace(".", "")) < 400
    assert (said == "0") == (share == 0) and (said != "100" or share > 0.9999)


# ---- The answer ---------------------------------------------------------------------------


def answers(text: str) -> list[tuple[str, str]]:
    """Questions and answers of a page's first box."""
    plain = re.sub(r"&#x27;", "'", text.replace("&lt;", "<"))
    return re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", plain)


def test_page_terminal_and_json_give_the_same_answer(tmp_path, capsys):
    folder = fill(tmp_path / "a", toy_plan())
    assert main(["report", str(folder), "--summary"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert list(tmp_path.rglob("*.html")) == []  # nothing is written
    assert main(["report", str(folder), "--summary", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["report"]
    assert main(["report", str(folder)]) == 0
    found = answers((folder / "report.html").read_text())
    assert [f"{question}: {sentence}" for question, sentence in found] == lines
    assert [(one["question"], one["answer"]) for one in known] == found and len(found) == 5
    assert known[0]["facts"]["not_masked"]["total"] == 40


@pytest.mark.parametrize("more", [["--fleet", "devices=8"], ["--out", "x"]])
def test_an_answer_is_not_asked_for_with_what_writes(tmp_path, capsys, more):
    folders = [str(fill(tmp_path / name, toy_plan())) for name in "ab"]
    assert main(["report", *folders, "--summary", *more]) == 2
    assert "--summary writes nothing" in capsys.readouterr().err


def test_what_has_no_content_is_left_out_by_name(tmp_path):
    sections = [Section("a", "Full", ["text"]), *(Section(key, key, [], without="none ran") for key in "bc")]
    text = page("title", [], sections, {})
    check_html(text)
    assert "Left out: b, c (none ran)." in text and 'id="b"' not in text and 'href="#b"' not in text


# ---- Differences --------------------------------------------------------------------------


def test_the_interval_of_a_difference_is_that_of_its_paper():
    """Newcombe 1998, table II, method 10: 56/70 − 48/80 is 0.2 [0.0524, 0.3339]; 9/10 − 3/10 goes from 0.1705 on."""
    for one, two, ends in (((48, 80), (56, 70), (0.0524, 0.3339)), ((3, 10), (9, 10), (0.1705, 0.8090))):
        found = difference("", ("a", "b"), (wilson(*one), wilson(*two)))
        assert (round(found.low, 4), round(found.high, 4)) == ends and found.certain
        back = difference("", ("b", "a"), (wilson(*two), wilson(*one)))
        assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_what_differs_is_told_with_the_largest_that_is_left():
    certain, open_ = RateDifference("", "a", "b", -0.3, -0.4, -0.2), RateDifference("x", "a", "c", 0.1, -0.05, 0.25)
    assert told([open_]) == "No difference larger than 25.0 points."
    said = told([open_, certain])
    assert said == "a 30.0 points [20.0, 40.0] above b; 1 other: no difference larger than 25.0 points."


def test_a_comparison_says_what_differs(tmp_path, capsys):
    worse = {number: {"outcome": IMMEDIATE, "exit": "nan", "steps": 1, "first_nonfinite": 0} for number in range(40)}
    none = {"early_rule": None, "early_after": None, "early_outcome": None, "worse_train": None, "worse_test": None}
    curve = np.full((1, 2), np.nan, "<f4").tobytes()
    changes = {number: one | none | {"curve": curve} for number, one in worse.items()}
    bad = fill(tmp_path / "all_bad", toy_plan(), changes.__getitem__)
    folders = [str(fill(tmp_path / "as_they_are", toy_plan())), str(bad)]
    assert main(["report", *folders, "--summary", "--json"]) == 0
    known = {one["question"]: one for one in json.loads(capsys.readouterr().out)["report"]}
    (one,) = known["What differs"]["facts"]["differences"]
    assert one["second"] == "all_bad" and one["low"] <= one["share"] <= one["high"]
    assert known["How often"]["facts"]["all_bad"]["share"] == 1


# ---- What to switch on --------------------------------------------------------------------


def board(cost: dict[str, float], noisy: set[str], stops: list[tuple[str, dict[str, int | None]]]) -> Board:
    """Detectors with these costs, of which some have false alarms, and after how many steps they stop what."""
    seen = [
        ScoredExperiment(
            n,
            "RD",
            outcome,
            True,
            {"seen": {name: {"stop": after.get(name), "peaks": []} for name in cost}, "recovered": {}},
        )
        for n, (outcome, after) in enumerate(stops)
    ]
    beyond = [0] * len(SWEPT)
    runs = {"golden 0": {name: {"steps": 100, "stop": int(name in noisy), "beyond": beyond} for name in cost}}
    costs = {name: {"ratios": [1 + x] * 9, "bytes": None, "plain_bytes": None} for name, x in cost.items()}
    return Board("x", "y", tuple(cost), seen, 0, runs, costs, 5, 0.95)


def test_what_to_switch_on_is_cheap_quiet_and_stops_most():
    stops = [
        (SLOW, {"noisy": 0, "dear": 0, "first": 1, "second": None}),
        (SLOW, {"noisy": 0, "dear": 0, "first": 2, "second": None}),
        (SLOW, {"noisy": 0, "dear": 0, "first": None, "second": 0}),
        (IMMEDIATE, {"noisy": 0, "dear": 0, "first": None, "second": None}),
        (MASKED, {}),
    ]
    known = board({"noisy": 0.0, "dear": 2.0, "first": 0.02, "second": 0.01}, {"noisy"}, stops)
    said = {one.question: one for one in score_box(known)}
    (pair,) = said["What to switch on"].facts["pairs"]
    assert pair["detectors"] == ("first", "second") and pair["covered"]["found"] == 3
    assert said["What to switch on"].sentence.startswith("Switch on first and second: detected are 3 of 3 latent")
    assert said["What nothing sees"].sentence.startswith("None")


def test_what_no_detector_stops_is_counted_and_named():
    known = board({"a": 0.01}, set(), [(SLOW, {"a": None}), (SLOW, {"a": 1}), (IMMEDIATE, {"a": None})])
    unseen = {one.question: one for one in score_box(known)}["What nothing sees"]
    assert unseen.facts == {"experiments": [0, 2], "of": 3} and "0 (RD), 2 (RD)" in unseen.sentence


def test_a_board_without_outcomes_answers_of_false_alarms_alone():
    known = board({"loud": 0.01, "quiet": 0.01}, {"loud"}, [(MASKED, {})])
    said = {one.question: one.sentence for one in score_box(known)}
    assert "loud 10,000 [" in said["False alarms"] and said["Quiet"].startswith("quiet: none in 100 steps")
    assert "What to switch on" not in said


# ---- Figures ------------------------------------------------------------------------------


def some(n: int) -> dict[str, Rate]:
    return {f"layer_{i}": wilson(i, 2 * n) for i in range(n)}


@pytest.mark.parametrize(("rows", "series"), [(5, 2), (20, 2), (21, 2), (40, 1), (41, 1), (3, 9)])
def test_rates_are_points_or_a_heat_map_and_each_tells_its_interval(rows, series):
    found = {f"series {s}": some(rows) for s in range(series)}
    made = figures.rate_picture("", "caption", list(some(rows)), found, "not masked")
    titles = re.findall(r"<title>([^<]*)</title>", made.svg)
    points = rows * series <= figures.MOST and series <= len(figures.SERIES)
    assert len(titles) == rows * series and len(set(titles)) == len(titles)
    assert ("heat map" in made.alt) != points
    if points:
        colours = set(re.findall(r"stroke: (#[0-9a-f]{6}|currentColor); stroke-width: 0.9", made.svg))
        assert len(colours) >= series
    for name, rate in some(rows).items():
        assert any(name in title and percent(rate.high) in title for title in titles)


def test_figures_of_a_page_share_no_id_and_name_their_experiments():
    made = [figures.rate_picture("", f"caption {n}", list(some(4 + n)), {"": some(4 + n)}, "x") for n in (0, 0, 1)]
    known = Experiments("folder", "loss", {3: ClickedExperiment("<said> & more</script>", [(0, 1.0), (1, None)])})
    sections = [
        *(Section(f"s{n}", "title", [], [one]) for n, one in enumerate(made[1:])),
        Section("t", "title", [], [Table("", "a table", [{"experiment": Shown(3), "x": 2.9e36}])]),
    ]
    text = page("title", [], sections, {}, experiments=known)
    check_html(text)
    assert 'data-experiment="3"' in text and "2.9e36" in text
    data = re.search(r'<script type="application/json" id="experiments">(.*?)</script>', text)
    assert json.loads(data[1])["experiments"]["3"] == ["<said> & more</script>", [[0, 1.0], [1, None]]]
    assert made[0].svg == made[1].svg  # the same figure is the same file


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_points_that_hide_each_other_are_spread(points):
    x, y = np.array(points, np.float64).T
    moved = np.stack(figures.spread(x, y), 1)
    for one, two in itertools.combinations(moved, 2):
        assert np.abs(one - two).max() > 1e-3
    assert np.abs(moved - np.stack([x, y], 1)).max() < 1  # they stay where they belong


# ---- How far it is ------------------------------------------------------------------------


def test_scoreboards_and_trials_have_a_status_and_an_answer(results, capsys):
    for folder, words in {"latent": ("Campaign on", "Scoreboard: 246 of 246"), "pvf/dlrm": ("Trials:",)}.items():
        assert main(["status", str(results / folder)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(words) and all(line.startswith(word) for line, word in zip(lines, words, strict=True))
        assert main(["status", str(results / folder), "--json"]) == 0
        assert json.loads(capsys.readouterr().out).keys() & {"score", "pvf"}
    assert main(["report", str(results / "pvf" / "dlrm"), "--summary"]) == 0
    assert "Which bits: bit 30 13.7 %" in capsys.readouterr().out


def test_numbers_of_another_version_are_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "rates.json").write_text('{"cells": []}')
    for command in (["report"], ["report", "--summary"], ["status"]):
        assert main([command[0], str(tmp_path), *command[1:]]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "it is of another version" in error
    assert [path.name for path in tmp_path.iterdir()] == ["rates.json"]
