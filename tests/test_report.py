"""The report of a campaign: a strict page whose sentences and numbers are those of the store, whatever is in it."""

# Above 400 lines: one page, whose sentences are compared with the same small stores.

import dataclasses
import html
import pathlib
import re
import shutil
import sqlite3

import numpy as np
import pytest
from strict_html import NotStrict, check_html

from fault_injection.campaign.box import BoxAnswer
from fault_injection.campaign.page import LONG, Section, Table, element, page
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions
from fault_injection.questions.outcomes.plan import Plan
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.report.facts import Facts
from fault_injection.questions.outcomes.report.queries import QUERIES
from fault_injection.questions.outcomes.report.sections import SECTIONS, write_report
from fault_injection.questions.outcomes.report.summary import summary
from fault_injection.questions.outcomes.result import END, HORIZON, Result
from fault_injection.questions.outcomes.store import NAME, Store
from fault_injection.runs.curves import draw_curves
from fault_injection.runs.exits import EXACT, NONFINITE
from fault_injection.runs.outcome import IMMEDIATE, LOW_TEST, MASKED, OUTCOMES, SHORT_TERM, SLOW, UNDECIDED
from fault_injection.seam.measure import Measure

PLAN = parse_plan("""
workload = "resnet18"
[options]
dataset = "digits"
width = 2
batch_size = 128
epochs = 4
[faults]
experiments = 8
seed = 3
[faults.models]
RD = 2
RBFLIP = 1
""")
MEASURE = dataclasses.asdict(Measure("accuracy", "higher", 0.1, 0.02, (0, 1)))


def result(number: int, **changes: object) -> Result:
    """A masked experiment, but for what is told."""
    known = {
        "number": number,
        "epoch": 1,
        "step": 2,
        "worker": 0,
        "site": "conv1",
        "stage": "forward",
        "operand": "output",
        "model": "RD",
        "value_source": "random_finite",
        "elements": 1,
        "bit": None,
        "first_position": 0,
        "old_bits": 0,
        "new_bits": 1,
        "operand_changed": 1,
        "output_changed": 1,
        "outcome": MASKED,
        "rule": "a rule",
        "exit": CONDITIONS,
        "steps": 3,
        "first_nonfinite": None,
        "nonfinite_leaf": None,
        "nonfinite_leaf_after": None,
        "exactly_masked_after": None,
        "early_rule": "within the envelope",
        "early_after": 2,
        "early_outcome": MASKED,
        "near": 0,
        "history_excess": 1.0,
        "variance_excess": 1.0,
        "loss_gap": 0.0,
        "worse_train": None,
        "worse_test": None,
        "audit_outcome": None,
        "audit_rule": None,
        "audit_steps": 0,
        "seconds": 1.0,
        "outside_seconds": 0.1,
        "setup_seconds": 0.0,
    } | changes
    steps = known["steps"] + known["audit_steps"]
    curve = np.linspace([2.0, 0.1], [1.0, 0.5], steps, dtype="<f4")
    if known["first_nonfinite"] is not None:
        curve[-1] = np.nan
    return Result(**{"curve": curve.tobytes()} | known)


NOT_EARLY = {"early_rule": None, "early_after": None, "early_outcome": None}


def immediate(number: int, **changes: object) -> Result:
    known = {"outcome": IMMEDIATE, "exit": NONFINITE, "steps": 1, "first_nonfinite": 0}
    return result(number, **known | NOT_EARLY | changes)


def slow(number: int, **changes: object) -> Result:
    known = {"outcome": SLOW, "exit": END, "steps": 30, "worse_train": 0.25, "worse_test": 0.5}
    return result(number, **known | NOT_EARLY | changes)


def undecided(number: int, **changes: object) -> Result:
    return result(number, **{"outcome": UNDECIDED, "exit": HORIZON, "steps": 4} | NOT_EARLY | changes)


def fill(folder: pathlib.Path, plan: Plan, results: list[Result], **about: object) -> pathlib.Path:
    """A campaign's folder with these results in its store."""
    with Store(folder, write=True) as store:
        store.begin(
            "a plan's key", plan, conditions=dataclasses.asdict(Conditions()), jobs=1, **{"measure": MEASURE} | about
        )
        store.event("started")
        for one in results:
            store.add(one, {"host": "<here> & there"}, "a plan's key")
    return folder


def sentences(folder: pathlib.Path) -> list[str]:
    with Store(folder) as store:
        return [one.sentence for one in summary(Facts(store))]


STORES = {
    "no experiment": (PLAN, []),
    "one masked": (PLAN, [result(0)]),
    "one not finite": (PLAN, [immediate(0)]),
    "one degraded": (PLAN, [slow(0)]),
    "one undecided": (dataclasses.replace(PLAN, horizon=3), [undecided(0, model="RBFLIP", bit=3)]),
    "one of each": (
        dataclasses.replace(PLAN, horizon=3),
        [
            result(0, model="RBFLIP", bit=30),
            immediate(1, model="RBFLIP", bit=30),
            slow(2, site="fc_grad_in", stage="backward", worse_test=None),
            undecided(3, worse_train=0.1),
            result(4, audit_outcome=SHORT_TERM, audit_rule="late <NaN>", audit_steps=5, first_nonfinite=7),
            result(
                5, exit=EXACT, exactly_masked_after=0, steps=1, history_excess=0.0, variance_excess=0.0, **NOT_EARLY
            ),
            result(6, history_excess=np.inf, variance_excess=0.0),
            immediate(7, outcome=SHORT_TERM, first_nonfinite=4, steps=5, worse_train=np.inf),
        ],
    ),
    "followed to the end": (
        dataclasses.replace(PLAN, exit="full"),
        [
            slow(0, early_rule="loss gap", early_after=2, early_outcome=MASKED, near=1),
            slow(1, outcome=LOW_TEST, early_rule="variance alone", early_after=2, early_outcome=LOW_TEST),
            slow(2),
            result(3, exit=END),
            immediate(4),
        ],
    ),
}


@pytest.fixture(params=list(STORES))
def folder(request, tmp_path):
    plan, results = STORES[request.param]
    return fill(tmp_path, plan, results)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory, results):
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copy(results / "campaign" / NAME, folder)
    return write_report(folder)


def check_page(path: pathlib.Path) -> str:
    """The page, found strict, self-contained, and with one link per table and figure."""
    text = path.read_text()
    elements = check_html(text)
    assert not re.search(r"(src|href)=\"(?!#)|url\((?!#)|https?://(?!www.w3.org)", text)
    parts = elements.count("table") + elements.count("figure")
    assert text.count('href="#query-') == parts
    shown = [key for key in re.findall(r'<section id="([^"]*)">', text) if key != "queries"]
    assert elements.count("a") == parts + len(shown) + 1
    for name, sql in QUERIES.items():
        assert f'<h3 id="query-{name}">' in text and html.escape(sql) in text
    pictures = sorted(figure.stem for figure in path.parent.glob("figures/*.svg"))
    assert len(pictures) == elements.count("figure") and set(pictures) <= set(shown)
    for section in shown:  # a section is here with content, or it is named as left out
        assert f'<a href="#{section}">' in text
    return text


def test_the_page_is_strict_and_complete_whatever_the_store_holds(folder):
    text = check_page(write_report(folder))
    assert "What is not modelled" in text
    assert "nan" not in re.sub(r"NaN|<script.*?</script>|finance|aria-", "", text, flags=re.DOTALL)


def test_the_page_of_the_shipped_campaign(shipped):
    text = check_page(shipped)
    with sqlite3.connect(shipped.parent / NAME) as connection:
        counts = dict(connection.execute("SELECT outcome, count(*) FROM experiments GROUP BY outcome"))
        worst = connection.execute("SELECT number FROM experiments ORDER BY worse_train DESC").fetchone()
    connection.close()
    for outcome in OUTCOMES:
        row = f'>{outcome}</th><td class="number">{counts.get(outcome, 0):,}</td>'
        assert row in text.replace("<wbr>", "")
    assert f"python -m fault_injection replay {shipped.parent} --id {worst[0]}\n" in text
    assert {path.stem for path in shipped.parent.glob("figures/*.svg")} == {
        *("worst", "models", "stages", "kinds", "operands", "epochs", "depth", "bits", "latency", "necessary")
    }


def test_the_summary_of_the_shipped_campaign(shipped):
    rate, sure, factors, latency, cost = sentences(shipped.parent)
    assert "has made all 2,400 planned experiments on resnet18 on digits (width 8, batches of 128" in sure
    # 324 of 2400 are not masked; weighted by fault model they are a little fewer.
    # The 34 audits of the 1,675 early verdicts that are not near a threshold leave room for many more.
    assert re.match(r"13.3 % \[12.5, 20.\d\] of the faults were not masked", rate)
    assert "the commonest bad outcome is Short-term INFs/NaNs, with 181 of 324 that are known" in rate
    assert "1,746 verdicts came early, audits ran 105 of these to the end, and none changed; 2 are of" in sure
    assert sure.endswith("the interval allows for 1,641 early verdicts that nobody followed.")
    assert factors.startswith("The fault model matters most")
    assert "to 98.4 % [94.2, 99.98] (N16_RD); by operand from 0.31 % [0.038, 25." in factors
    assert "(bit 30), which may be chance" in factors  # 9 of 20, of which 6 are early verdicts without an audit
    assert latency.startswith("Of the 324 bad outcomes, 29.0 %") and "221 showed one later, and 9 ended" in latency
    assert cost.startswith("An experiment took 25.3 training steps on average")


@pytest.mark.parametrize(
    ("changes", "results", "expected"),
    [
        ({}, [], ["This campaign of 8 experiments on resnet18 on digits", "has no result yet."]),
        (
            {},
            [result(0)],
            [
                "1 of 8 planned",
                "they run epoch after epoch",
                "No fault is known that was not masked; the rate of those that are not is at most 100 %",
            ],
        ),
        ({"epochs": (1,)}, [result(0)], ["1 of 8 planned experiments on resnet18 on digits (width 2, batches of"]),
        (
            {"experiments": 1},
            [result(0)],
            ["its one planned experiment on", "1 verdict came early and no audit has"],
        ),
        ({}, [result(0)], ["Without a bad outcome no fault model", "nothing is known of how soon a bad one shows"]),
        (
            {},
            [undecided(0), undecided(1, bit=3)],
            ["Every experiment was cut at the horizon, undecided, so no rate is known."],
        ),
        (
            {"exit": "full"},
            [result(0, exit=END)],
            ["Every fault was masked; the rate of those that are not is at most 79.3 %"],
        ),
        ({}, [immediate(0), undecided(1)], ["with 1 of 1.", "; 1 undecided at the horizon is left out;"]),
        ({}, [immediate(0)], ["one model and strike one kind of operand, so there is nothing to compare"]),
        (
            {},
            [immediate(0), result(1, model="RBFLIP")],
            ["No difference is certain: by fault model the rate goes from 0 %", "(RD), which may be chance."],
        ),
        (
            {},
            [slow(0), immediate(1), immediate(2, first_nonfinite=3)],
            ["1 showed one later, and 1 ended with a worse accuracy without one"],
        ),
        ({}, [immediate(0)], ["none showed one later, and none ended", "no verdict came early."]),
        ({"exit": "full"}, [slow(0)], ["; every run was followed to a non-finite value or to the end."]),
        ({"exit": "exact"}, [slow(0)], ["; no verdict came early without a proof."]),
        (
            {},
            [result(0, audit_outcome=SLOW, audit_steps=9), *(result(i, audit_outcome=MASKED) for i in (1, 2, 3))],
            [
                "4 verdicts came early, audits ran 4 of these to the end, and 1 changed.",
                "25.0 % [",
                "commonest bad outcome is SlowDegrade, with 1 of 1.",
            ],
        ),
        (
            {},
            [*(result(i, near=1, audit_outcome=MASKED) for i in range(3)), result(3, audit_outcome=MASKED), result(4)],
            ["5 verdicts came early, audits ran 4 of these to the end, and none changed;"],
        ),
        (
            {},
            [result(0, audit_outcome=MASKED), result(1, outcome=LOW_TEST, early_outcome=LOW_TEST)],
            [
                "and none changed; 1 is of a kind that no audit has looked at;",
                "allows for 1 early verdict that nobody",
            ],
        ),
    ],
)
def test_the_summary_says_what_is_so(tmp_path, changes, results, expected):
    said = " ".join(sentences(fill(tmp_path, dataclasses.replace(PLAN, **changes), results)))
    for part in expected:
        assert part in said


def test_a_full_campaign_says_which_latent_outcomes_early_verdicts_miss(tmp_path):
    text = re.sub(r"\s+", " ", write_report(fill(tmp_path, *STORES["followed to the end"])).read_text())
    assert "Latent outcomes, which are bad without a non-finite loss: 3; missed by the early verdicts: 1." in text
    assert "at most 86.5 % of the latent outcomes" in text  # with such a share, 0 or 1 of 3 has a probability of 5 %
    assert "Early verdicts that say Masked, near a threshold: 1; followed to the end: 1; different there: 1." in text
    assert "Early verdicts that say Masked: 1; followed to the end: 1; different there: 0." in text
    assert "Early verdicts that say not Masked: 1; followed to the end: 1; different there: 0." in text


def test_a_campaign_of_one_epoch_is_no_less_representative_while_it_runs(tmp_path):
    assert "epoch after epoch" not in sentences(fill(tmp_path, dataclasses.replace(PLAN, epochs=(1,)), [result(0)]))[1]


def test_the_rate_weighs_fault_models_as_the_plan_does(tmp_path):
    results = [immediate(i) for i in range(4)] + [result(4 + i, model="RBFLIP") for i in range(4)]
    assert sentences(fill(tmp_path, PLAN, results))[0].startswith("66.7 % [")  # RD has twice the weight of RBFLIP


def test_what_surely_matters_is_said_to(tmp_path):
    plan = dataclasses.replace(PLAN, experiments=80)
    known = {"exit": EXACT, "exactly_masked_after": 0} | NOT_EARLY
    results = {
        name: [immediate(i) for i in range(40)] + [result(40 + i, model="RBFLIP", **how) for i in range(40)]
        for name, how in {"proved": known, "guessed": {}}.items()
    }
    told = {name: sentences(fill(tmp_path / name, plan, rows))[2] for name, rows in results.items()}
    begun = "by fault model the rate goes from 0 % [0"
    assert told["proved"].startswith(f"The fault model matters most: {begun}, 8.8]")
    assert told["guessed"].startswith(f"No difference is certain: {begun}, 100]")  # nobody has looked


def test_the_worst_come_first_and_masked_ones_never(tmp_path):
    results = [result(0, worse_train=0.9), slow(1), slow(2, worse_train=0.3), immediate(3), undecided(4)]
    text = write_report(fill(tmp_path, PLAN, results)).read_text()
    assert re.findall(r"--id (\d+)", text) == ["2", "1", "3"]


def test_a_workload_may_measure_its_loss_alone(tmp_path):
    plan = dataclasses.replace(PLAN, horizon=3)
    folder = fill(tmp_path, plan, [slow(0)], measure=MEASURE | {"name": "loss", "better": "lower"})
    text = check_page(write_report(folder))
    assert "ended with a worse loss" in text and "Training loss of these experiments" in text
    assert "accuracy" not in text


def test_text_of_the_store_is_escaped(tmp_path):
    text = write_report(fill(tmp_path, PLAN, [result(0)])).read_text()
    assert "&lt;here&gt; &amp; there" in text and "<here>" not in text
    assert element("p", "<&", title='"') == '<p title="&quot;">&lt;&amp;</p>'


def test_a_report_needs_a_campaign_that_has_begun(tmp_path):
    with pytest.raises(InputError, match="no campaign here"):
        write_report(tmp_path)
    with Store(tmp_path, write=True):
        pass
    with pytest.raises(InputError, match="the campaign has not begun"):
        write_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_every_query_runs_and_every_one_is_shown(shipped):
    with Store(shipped.parent) as store:
        facts = Facts(store)
        shown = {part.query for section in SECTIONS for part in section(facts).parts if hasattr(part, "query")}
        for name in QUERIES:
            facts.rows(name, epochs=20, steps_per_epoch=11)
    # No audited verdict of this campaign changed, latent outcomes are counted where every run is followed, its faults
    # are those that the rules of early verdicts speak of, and its audits were followed each by itself.
    without = {"disagreeing", "grouped", "groups", "hidden", "latent", "settled", "support", "unlike"}
    assert shown == set(QUERIES) - without


BOX = [BoxAnswer("Which", "One < two.")]


def test_long_tables_are_folded():
    for length, folded in ((LONG, False), (LONG + 1, True)):
        table = Table("q", "a table", [{"name": str(i), "n": i} for i in range(length)])
        text = page("title", BOX, [Section("key", "title", [], [table])], {"q": "SELECT 1"})
        assert ("details" in check_html(text)) == folded


GOOD = page(
    "A & B",
    BOX,
    [Section("s", "Title", ["Text."], [Table("q", "Caption.", [{"name": "x", "n": 1}])])],
    {"q": "SELECT 1"},
)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("</table>", "", "</div> where <table> is open"),
        ("</td>", "</td></td>", "</td> where <tr> is open"),
        ("<p>Text.</p>", "<p>Text.<p>More.</p></p>", "<p> inside <p>"),
        ("<p>Text.</p>", "<p>&nosuch;</p>", "unknown entity"),
        ("<p>Text.</p>", "<p>this & that</p>", "unknown entity"),
        ("<p>Text.</p>", "<p>a &amp b</p>", "unknown entity"),
        ("<p>Text.</p>", "<p>1 > 0</p>", "bare character"),
        ("<p>Text.</p>", '<p><img src="x"></p>', "without alt"),
        ("<p>Text.</p>", "<svg></svg>", "without aria-label"),
        ("<p>Text.</p>", "<p id=x>Text.</p>", "malformed tag"),
        ("<p>Text.</p>", '<p id="s">Text.</p>', "'s' is given twice"),
        ("<p>Text.</p>", '<p><a href="#nowhere">Text.</a></p>', "links to nowhere: nowhere"),
        ("<p>Text.</p>", '<p><a href="#s">Text <a href="#s">and</a></a></p>', "<a> inside <a>"),
        ("<tbody>", "<tbody>text", "text in <tbody>"),
        ("<thead>", "<td></td><thead>", "<td> in <table>"),
        ("<!doctype html>\n", "", "no <!doctype html>"),
        ("</body></html>", "</body>", "not closed: html"),
        ("</body></html>\n", '</body></html><a href="', "the page ends within"),
    ],
)
def test_the_strict_parser_sees(right, wrong, message):
    check_html(GOOD)
    assert right in GOOD
    with pytest.raises(NotStrict, match=re.escape(message)):
        check_html(GOOD.replace(right, wrong, 1))


def test_the_strict_parser_sees_the_caption_that_swallowed_the_table_after_it(shipped):
    """A formatter had cut the caption off after `<a href="`, at every figure."""
    text = shipped.read_text()
    broken, times = re.subn(r'(<figcaption>[^<]*<a href=)"[^"]*">[^<]*</a>[^<]*</figcaption></figure>', r'\1"', text)
    assert times == 10
    with pytest.raises(NotStrict):
        check_html(broken)
    broken, times = re.subn(r"</a>[^<]*</figcaption></figure>", "", text, count=1)
    assert times == 1
    with pytest.raises(NotStrict):
        check_html(broken)


def run(first: int, epochs: int, measure: str) -> dict[str, np.ndarray]:
    """Columns of a run with four steps per epoch."""
    step = np.arange(4 * epochs)
    steps = {"epoch": first + step // 4, "step": step % 4, "loss": 1 / (1 + step), measure: 1 / (1 + step)}
    ended = {name: np.linspace(0.5, 0.9, epochs) for name in ("valid_loss", f"valid_{measure}")}
    return {f"steps/{k}": v for k, v in steps.items()} | {
        f"epochs/{k}": v for k, v in {"epoch": first + np.arange(epochs), **ended}.items()
    }


@pytest.mark.parametrize("names", [(), ("faulty",), ("one", "two", "three")])
@pytest.mark.parametrize(
    ("measure", "height"),
    [
        (Measure("accuracy", "higher", 0.1, 0.02, (0, 1)), 1000),
        (Measure("loss", "lower", 2.3, 0.1), 600),
        (Measure("error", "lower", 0.9, 0.02, (0, 1)), 1000),
    ],
)
def test_the_golden_run_is_drawn_beside_any_number_of_faulty_ones(tmp_path, names, measure, height):
    faulty = {name: run(1, 2, measure.name) for name in names}
    if names:
        faulty[names[-1]]["steps/loss"][5:] = np.nan
    at = {name: (1.25 + i, 1.5 + i) for i, name in enumerate(names)}
    path = tmp_path / "curves.png"
    draw_curves(path, "title", run(0, 4, measure.name), faulty, at, 4, measure)
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(content[16:20]), int.from_bytes(content[20:24])) == (1280, height)
