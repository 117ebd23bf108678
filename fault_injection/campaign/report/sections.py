"""The report of a campaign: one HTML file that needs nothing beside it, and its figures as PNG."""

import collections
import functools
import json
import pathlib
from typing import Any

import numpy as np

from ...faults.injection import sites_of
from ...machine.errors import InputError
from ...machine.files import write_atomically, write_text
from ...runs.outcome import MASKED, OUTCOMES, UNDECIDED
from ..experiment import CONDITIONS
from ..rates import Rate, stratified, wilson
from ..store import Store
from . import figures
from .page import Section, Table, page
from .queries import QUERIES

PUBLISHED_EPOCHS = 80  # the schedule that the published procedure ends with

NOT_MODELLED = (
    "A fault is a value overwritten in software: this campaign says what comes of faults that happen as its fault "
    "models say, not how often hardware makes them, nor which. Partial sums inside an operation, normalisation, "
    "activations, dropout, the loss, the optimizer, evaluation, communication between workers, memory at rest, "
    "checkpoints and the input pipeline are not struck; every fault lasts one operation of one worker in one step. "
    "Rates are those of this plan's mix of models, sites and epochs, on this workload at this scale."
)


def write_report(folder: pathlib.Path) -> pathlib.Path:
    """Write `report.html` and `figures/` of the campaign in `folder`; returns the former.

    Raises:
      InputError: there is no campaign, or it cannot be read.
    """
    with Store(folder) as store:
        facts = Facts(store)
        sections = [section(facts) for section in SECTIONS]
    w = facts.plan.workload
    for section in sections:
        for name, _, picture in section.pictures:
            write_atomically(folder / "figures" / f"{name}.png", functools.partial(_put, picture))
    write_text(folder / "report.html", page(f"Campaign: {w.name} on {w.dataset}", sections, QUERIES))
    return folder / "report.html"


def _put(content: bytes, file) -> None:
    file.write(content)


class Facts:
    """What sections draw on: a campaign's store, its plan, and the confidence of intervals."""

    def __init__(self, store: Store):
        self.store = store
        self.about = store.about()
        plan = store.plan()
        if plan is None:
            raise InputError("the campaign has not begun", store.path)
        self.plan, self.confidence, self.steps_per_epoch = plan, plan.confidence, plan.steps_per_epoch

    def rows(self, query: str, **parameters: Any):
        """Rows of a query of `QUERIES`."""
        return self.store.query(QUERIES[query], parameters)

    def by(self, query: str) -> dict[Any, collections.Counter[str]]:
        """Outcomes counted by the first column of a query."""
        found: dict[Any, collections.Counter[str]] = {}
        for group, outcome, n in self.rows(query):
            found.setdefault(group, collections.Counter())[outcome] += n
        return found

    def rate(self, counts: collections.Counter[str]) -> Rate:
        """The share of the decided that was not masked."""
        total = sum(counts.values()) - counts[UNDECIDED]
        return wilson(total - counts[MASKED], total, self.confidence)


def _said(rate: Rate) -> str:
    return f"{rate.share:.2%} [{rate.low:.2%}, {rate.high:.2%}]" if rate.total else "none"


def _outcomes(facts: Facts) -> Section:
    plan = facts.plan
    counts = collections.Counter(dict(facts.rows("outcomes")))
    total = sum(counts.values())
    rows = [
        (outcome, str(counts[outcome]), _said(wilson(counts[outcome], total, facts.confidence))) for outcome in OUTCOMES
    ]
    models = facts.by("models")
    weights = {model.name: model.weight for model in plan.models}
    rates = {name: facts.rate(counts) for name, counts in models.items()}
    whole = stratified([(rate.found, rate.total, weights[name]) for name, rate in rates.items()], facts.confidence)
    w = plan.workload
    text = (
        f"{total} of {plan.experiments} experiments on {w.name} with {w.dataset} (width {w.width}, batch "
        f"{w.batch_size} on {w.workers} workers, {w.epochs} epochs of {facts.steps_per_epoch} steps), exit mode "
        f"'{plan.exit}', seed {plan.seed}. Intervals are Wilson's at {facts.confidence:.0%}; the last line is "
        "stratified by fault model with the plan's weights."
    )
    if total < plan.experiments:
        text += " Experiments run epoch after epoch: so far their rates are not those of the whole plan."
    if plan.horizon is not None:
        text += f" {UNDECIDED} means followed to the horizon and not judged: neither masked nor not, below."
    totals = [("not masked, of the decided", _said(whole))]
    return Section(
        "Outcomes",
        text,
        [Table("outcomes", ("outcome", "experiments", "rate"), rows), Table("models", ("in total", "rate"), totals)],
    )


def _by(query: str, title: str, text: str):
    def section(facts: Facts) -> Section:
        found = dict(sorted(facts.by(query).items()))
        seen = [outcome for outcome in OUTCOMES if any(counts[outcome] for counts in found.values())]
        rows = [
            (str(group), str(sum(counts.values())), *(str(counts[o]) for o in seen), _said(facts.rate(counts)))
            for group, counts in found.items()
        ]
        named = {str(group): counts for group, counts in found.items()}
        picture = figures.draw(figures.bars, named, height=1.0 + 0.22 * len(named))
        table = Table(query, (query.removesuffix("s"), "experiments", *seen, "not masked"), rows)
        return Section(title, text, [table], [(query, f"Outcomes by {query.removesuffix('s')}", picture)])

    return section


def _depth(facts: Facts) -> Section:
    found = facts.by("sites")
    layers: dict[str, dict[str, collections.Counter[str]]] = {}
    for name in sites_of(facts.plan.workload):
        layer = name.removesuffix("_grad_in").removesuffix("_grad_wt")
        of = layers.setdefault(layer, {})
        stage = "forward" if name == layer else "backward"
        of[stage] = of.get(stage, collections.Counter()) + found.get(name, collections.Counter())
    rows: list[tuple[str, ...]] = []
    series: dict[str, dict[int, Rate]] = {"forward": {}, "backward": {}}
    for depth, (layer, of) in enumerate(layers.items()):
        both = sum(of.values(), collections.Counter())
        if not both:
            continue
        rates = {stage: facts.rate(of.get(stage, collections.Counter())) for stage in series}
        rows.append((layer, str(depth), str(sum(both.values())), *map(_said, rates.values())))
        for stage, rate in rates.items():
            if rate.total:
                series[stage][depth] = rate
    picture = figures.draw(figures.rates, series, "depth: layers from the images on")
    table = Table("sites", ("layer", "depth", "experiments", "not masked, forward", "not masked, backward"), rows)
    text = "Layers in the order of the forward pass. The three operations of a layer are one forward and two backward."
    return Section("Depth", text, [table], [("sites", "Share not masked by depth", picture)])


def _bits(facts: Facts) -> Section:
    found = dict(sorted(facts.by("bits").items()))
    text = (
        "Experiments that inverted one bit of one element of a float32: 31 is the sign, 30 to 23 are the exponent, "
        "22 to 0 the fraction."
    )
    if not found:
        return Section("Bits", text + " There are none in this campaign.")
    rates = {bit: facts.rate(counts) for bit, counts in found.items()}
    rows = [(str(bit), str(rate.total), _said(rate)) for bit, rate in rates.items()]
    picture = figures.draw(figures.rates, {"all": rates}, "bit inverted, 0 the lowest")
    table = Table("bits", ("bit", "experiments", "not masked"), rows)
    return Section("Bits", text, [table], [("bits", "Share not masked by the bit inverted", picture)])


def _latency(facts: Facts) -> Section:
    found = facts.rows("latency")
    text = "Steps from the faulty one to the first non-finite value, of the experiments that met one."
    if not found:
        return Section("Latency", text + " There are none.")
    last = [np.frombuffer(row["curve"], "<f4")[-2] for row in facts.rows("nonfinite")]
    finite = int(np.isfinite(last).sum())
    text += (
        " Where the loss of that step was finite still, what was not was a gradient, a parameter, a moment of the "
        "optimizer (Adam's second one is a square, and overflows from 1.8e19 on), a running statistic or the test "
        "loss: a procedure that looks at losses only would have gone on."
    )
    rows = [(str(steps), str(n)) for steps, n in found]
    picture = figures.draw(figures.latencies, [row["steps"] for row in found], [row["n"] for row in found])
    return Section(
        "Latency",
        text,
        [
            Table("latency", ("steps", "experiments"), rows),
            Table("nonfinite", ("loss", "experiments"), [("finite", str(finite)), ("not", str(len(last) - finite))]),
        ],
        [("latency", "Steps to the first non-finite value", picture)],
    )


def _conditions(facts: Facts) -> Section:
    found = [row for row in facts.rows("conditions") if row["history_excess"] or row["variance_excess"]]
    c = facts.about["conditions"]
    text = (
        f"A bad outcome that does not show at once is said to need, within {c['steps']} steps of the fault, large "
        "values in the optimizer's history or a large running variance. Here each experiment stands at the largest "
        "of both, in units of the golden run's largest around that epoch; dashed, what counts as large. Experiments "
        "that met a non-finite value, or were the golden run again, in the faulty step itself are not shown."
    )
    if facts.plan.exit == "conditions":
        text += " What is not large is masked here by this very rule, but for the audited: the audit tests the rule."
    if not found:
        return Section("Necessary condition", text)
    history, variance = (np.array([row[name] for row in found]) for name in ("history_excess", "variance_excess"))
    outcomes = [row["outcome"] for row in found]
    picture = figures.draw(figures.necessary, history, variance, outcomes, c["margin"], height=4.2)
    large = np.maximum(history, variance) > c["margin"]
    rows = [
        (outcome, str(len(of)), str(int(of.sum())))
        for outcome in OUTCOMES
        if len(of := large[[name == outcome for name in outcomes]])
    ]
    table = Table("conditions", ("outcome", "experiments shown", "of them large"), rows)
    return Section("Necessary condition", text, [table], [("conditions", "History and variance by outcome", picture)])


def _worst(facts: Facts) -> Section:
    found = facts.rows("worst")
    text = "Those that ended, or were last seen, furthest below the golden run's training accuracy."
    if not found:
        return Section("Worst experiments", text + " There are none.")
    curves = {
        f"{row['number']}: {row['outcome']}": np.frombuffer(row["curve"], "<f4").reshape(-1, 2)[:, 1] for row in found
    }
    rows = [
        (
            str(row["number"]),
            f"epoch {row['epoch']}, step {row['step']}, worker {row['worker']}",
            f"{row['model']}, {row['elements']} of the {row['operand']} of {row['site']}",
            row["outcome"],
            f"{row['worse_train']:.3f}",
        )
        for row in found
    ]
    table = Table("worst", ("number", "when", "what", "outcome", "training accuracy lost"), rows)
    picture = figures.draw(figures.courses, curves)
    return Section("Worst experiments", text, [table], [("worst", "Training accuracy from the fault on", picture)])


def _accounting(facts: Facts) -> Section:
    exits, (walks,), (audited,) = facts.rows("exits"), facts.rows("walks"), facts.rows("audited")
    number, steps = sum(row["n"] for row in exits), sum(row["steps"] for row in exits)
    rows = [(row["exit"], str(row["n"]), str(row["steps"]), f"{row['steps'] / row['n']:.1f}") for row in exits]
    rows.append(("all", str(number), str(steps), f"{steps / max(1, number):.1f}"))
    own = facts.plan.workload.epochs
    compared = []
    for epochs in dict.fromkeys((own, max(own, PUBLISHED_EPOCHS))):
        (row,) = facts.rows("published", epochs=epochs, steps_per_epoch=facts.steps_per_epoch)
        published, ours = row["steps"] or 0, row["ours"] or 0
        each = (f"{steps / max(1, number):.1f}" for steps in (published, ours))
        compared.append((f"{epochs} epochs", *each, f"1/{published / ours:.1f}" if ours else ""))
    (time,) = facts.rows("time")
    seconds, setup = time["seconds"] or 1, time["setup"] or 0
    outside = (time["outside"] or 0) / (seconds - setup)
    text = (
        "What ended the experiments, and the steps run from the faulty one on, it included. The published procedure "
        "runs from the start of the fault's epoch to the end of the training, or to the first non-finite loss (here: "
        "non-finite value, so that it is counted short); in a longer schedule than this one, an experiment that was "
        "followed to the end would be to that one's. Audits are counted apart, and so are the steps of the golden run "
        "that were walked through, once for all experiments of an epoch. Time of the jobs outside training steps "
        "is for drawing faults, reading states and verdicts; setting up for a size of fault happens once a job."
    )
    head = ("schedule", "published procedure: steps an experiment", "this campaign: steps an experiment", "share")
    return Section(
        "Accounting",
        text,
        [
            Table("exits", ("ended by", "experiments", "steps", "an experiment"), rows),
            Table("published", head, compared),
            Table("walks", ("walks", "steps"), [("all", f"{walks['n']} walks, {walks['steps']} steps")]),
            Table("audited", ("audits", "steps"), [("all", str(audited["steps"]))]),
            Table(
                "time",
                ("time of the jobs", ""),
                [
                    ("all, seconds", f"{seconds:.0f}"),
                    ("of it setting up, seconds", f"{setup:.0f}"),
                    ("outside training steps, share of the rest", f"{outside:.1%}"),
                ],
            ),
        ],
    )


def _audit(facts: Facts) -> Section:
    found = facts.rows("audit")
    total = sum(row["n"] for row in found)
    wrong = sum(row["n"] for row in found if row["audit_outcome"] != row["outcome"])
    rate = wilson(wrong, total, facts.confidence)
    exits = {row["exit"]: row["n"] for row in facts.rows("exits")}
    early = exits.get(CONDITIONS, 0) / max(1, sum(exits.values()))
    text = (
        f"Of the verdicts that ended early by conditions a random share, {facts.plan.audit:.1%}, was run to the end. "
        "An early verdict stands as it is in all counts above; how many of all experiments could be of another outcome "
        "for that is the disagreement times the share of early verdicts."
    )
    rows = [(row["outcome"], row["audit_outcome"], str(row["n"])) for row in found]
    shares = [("disagree, of the audited", _said(rate)), ("of all experiments, at most", f"{early * rate.high:.2%}")]
    tables = [Table("audit", ("early verdict", "at the end", "experiments"), rows), Table("exits", ("", ""), shares)]
    if wrong:
        listed = [tuple(str(cell) for cell in row) for row in facts.rows("disagreeing")]
        tables.append(Table("disagreeing", ("number", "site", "model", "at the end", "rule"), listed))
    return Section("Audit", text, tables if total else [])


def _cells(facts: Facts) -> Section:
    rows = [tuple("" if cell is None else str(cell) for cell in row) for row in facts.rows("cells")]
    head = ("model", "stage", "site", "bit", "outcome", "experiments")
    return Section(
        "All counts", "Model, stage, site, bit and outcome of every experiment.", [Table("cells", head, rows)]
    )


def _made(facts: Facts) -> Section:
    rows = []
    for description, n in facts.rows("environments"):
        known = json.loads(description)
        rows.append((", ".join(f"{name} {value}" for name, value in known.items() if value is not None), str(n)))
    events = [tuple(row) for row in facts.rows("events")]
    text = f"Plan {facts.about['plan_key']}, {facts.about['jobs']} job(s)."
    return Section(
        "Environment",
        text,
        [Table("environments", ("environment", "experiments"), rows), Table("events", ("at", "what"), events)],
    )


def _missing(facts: Facts) -> Section:
    return Section("What is not modelled", NOT_MODELLED)


SECTIONS = (
    _outcomes,
    _by("models", "Fault models", "As the plan weighs them."),
    _by("stages", "Stages", "The pass in which the operation stands."),
    _by("operands", "Operands", "Which tensor of the operation was struck."),
    _by("epochs", "Epochs", "Of the fault, counted from 0."),
    _depth,
    _bits,
    _latency,
    _conditions,
    _worst,
    _accounting,
    _audit,
    _cells,
    _made,
    _missing,
)
