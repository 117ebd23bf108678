"""The sections of a report that say how the campaign was made: what it cost, what was checked, where it ran."""

import itertools
import json

from ....campaign.page import Cell, Section, Table
from ....campaign.rates import at_most
from ....campaign.wording import level, percent
from ..plan import Plan
from ..support import ENOUGH, RARE
from .facts import Facts
from .summary import audit, cost

PUBLISHED_EPOCHS = 80  # the schedule that the published procedure ends with

NOT_MODELLED = (
    "A fault is a value that software overwrites. This campaign says what follows from faults as its fault models "
    "describe them. It does not say how often hardware makes such faults, nor which ones.",
    "These are not struck: partial sums inside an operation, normalisation, activations, dropout, the loss, the "
    "optimizer, evaluation, communication between workers, memory at rest, checkpoints and the input pipeline. Every "
    "fault lasts for one operation of one worker in one step.",
    "The rates belong to this plan's mix of fault models, sites and epochs, on this workload at this scale.",
)


def accounting(facts: Facts) -> Section:
    """What the experiments cost, and what the published procedure would have cost."""
    text = [
        "What ended the experiments, and how many steps each took from the faulty one on, the faulty one included. "
        "Audits are counted apart. So are walks: steps of the golden run that lead to the states before the faults, "
        "once for all experiments of an epoch.",
        "The published procedure runs from the start of the fault's epoch to the end of the training or to the first "
        "non-finite loss. In a schedule longer than this one, an experiment that was followed to the end is taken to "
        "be followed to that end.",
        "The time outside training steps is spent on drawing faults, reading states and giving verdicts. A job sets up "
        "once for each number of elements that faults strike.",
    ]
    if not facts.total:
        return Section("accounting", "Accounting", [], without="no experiment is done yet")
    exits = facts.table("exits", "Experiments by what ended them.")
    tables = [exits, _against_published(facts), _all_steps(facts), _time(facts)]
    return Section("accounting", "Accounting", text, tables)


def _against_published(facts: Facts) -> Table:
    rows: list[dict[str, Cell]] = []
    each = facts.total
    for epochs in dict.fromkeys((facts.epochs, max(facts.epochs, PUBLISHED_EPOCHS))):
        (row,) = facts.rows("published", epochs=epochs, steps_per_epoch=facts.plan.steps_per_epoch)
        audits = row["ours"] + row["audits"] + row["together"]
        rows.append(
            {
                "schedule": f"{epochs} epochs",
                "published procedure, steps each": row["steps"] / each,
                "verdicts, steps each": row["ours"] / each,
                "share": _part(row["steps"], row["ours"]),
                "with audits, steps each": audits / each,
                "share with audits": _part(row["steps"], audits),
            }
        )
    return Table("published", "Steps compared with those of the published procedure.", rows)


def _all_steps(facts: Facts) -> Table:
    spent, each = cost(facts), facts.total
    parts = {
        "verdicts": spent.experiments,
        "audits": spent.audits,
        **({} if facts.plan.together is None else {"groups of audits": spent.together}),
        "walks": spent.walks,
        **({} if facts.plan.settled is None else {"golden run, beside runs that may settle": spent.beside}),
        "golden run and twins": spent.golden,
    }
    rows: list[dict[str, Cell]] = [
        {
            "for": name,
            "steps": steps,
            "steps each": steps / each,
            "sum so far, each": so_far / each,
            "sum compared with the published procedure": _part(spent.published, so_far),
        }
        for (name, steps), so_far in zip(parts.items(), itertools.accumulate(parts.values()), strict=True)
    ]
    return Table("steps", "All training steps.", rows)


def _time(facts: Facts) -> Table:
    (time,) = facts.rows("time")
    working = time["seconds"] - time["setup"]
    outside = f"{percent(time['outside'] / working)} %" if working > 0 else "not known"
    amounts = {
        "all": f"{time['seconds']:,.0f} s",
        "of which setting up": f"{time['setup']:,.0f} s",
        "outside training steps, of the rest": outside,
    }
    rows = [{"time": name, "amount": amount} for name, amount in amounts.items()]
    return Table("time", "Time of the jobs.", rows)


def _part(whole: int, part: int) -> str:
    return f"1/{whole / part:.1f}" if part else "none"


def how(plan: Plan) -> str:
    """How audits are followed, where not each by itself."""
    return "" if plan.together is None else "; those whose early verdict is Masked in groups, see Groups of audits"


def audited(facts: Facts) -> Section:
    """Whether early verdicts hold when their runs are followed to the end."""
    plan, title = facts.plan, "Audit"
    text = [
        "A run need not be followed if its first steps show nothing that could end badly, by one of the rules of the "
        "table. The projected runs (variance alone) have the golden run's losses, and only their evaluations are made."
    ]
    if plan.exit == "conditions":
        near = (
            ""
            if plan.audit_near is None
            else f", and {percent(plan.audit_near)} % of those near a threshold: a value exceeded what is usual "
            "without being large, or a large history came with a loss gap above half of the limit"
        )
        text.append(f"A random {percent(plan.audit)} % of these runs go on to the end all the same{near}{how(plan)}.")
        if plan.wanted is not None:
            text.append("So do all whose early verdict is not Masked.")
        if plan.audits_first:
            text.append(
                "What the faults of this plan strike is beyond the premises of the rules. So these runs were made "
                f"first, and a rule ends others only with at least {ENOUGH} audits of which at most {percent(RARE)} % "
                "found another outcome; but where running statistics alone differ, runs are always projected."
            )
    else:
        text.append(
            f"Exit mode '{plan.exit}' follows these runs all the same. The table compares what they came to with what "
            "exit mode 'conditions' says of them."
        )
    rows: list[dict[str, Cell]] = [
        {
            "rule": row["early_rule"],
            "near a threshold": "yes" if row["near"] else "no",
            "early verdict": row["early_outcome"],
            "at the end": row["verdict"] or "not followed",
            "experiments": row["n"],
        }
        for row in facts.rows("audit")
    ]
    if not rows:
        return Section("audit", title, [], without="no experiment has met a rule of early verdicts")
    text += [
        f"Early verdicts that say {kind.name}: {kind.early:,}; followed to the end: {kind.seen:,}; different there: "
        f"{kind.changed:,}."
        for kind in audit(facts)
    ]
    if plan.exit == "conditions" and plan.wanted is None:
        text.append(
            "Every rate of this page is estimated by the audits of these kinds, within the group that the rate is of, "
            "and its interval contains what the audits have not seen. Of a kind without an audit any share may be "
            "wrong."
        )
    tables = [Table("audit", "Early verdicts, and what their runs came to at the end.", rows)]
    if plan.audits_first:
        tables.append(facts.table("support", "Audits of each rule, as far as their ends are known."))
    if plan.exit != "conditions" and (latent := facts.rows("latent")):
        missed, all_latent = (sum(row[name] for row in latent) for name in ("missed by early verdicts", "experiments"))
        text.append(
            f"Latent outcomes, which are bad without a non-finite loss: {all_latent:,}; missed by the early verdicts: "
            f"{missed:,}."
        )
        if plan.wanted is None:  # of experiments by strata it would be no share of the plan's faults
            text.append(
                f"So early verdicts miss at most {percent(at_most(missed, all_latent, plan.confidence))} % of the "
                f"latent outcomes of such faults (one-sided, {level(plan.confidence)})."
            )
        tables.append(facts.table("latent", "Latent outcomes."))
    if (changed := facts.table("disagreeing", "Verdicts that changed.")).rows:
        tables.append(changed)
    return Section("audit", title, text, tables)


def all_counts(facts: Facts) -> Section:
    """The counts that all rates can be computed from."""
    text = "The number of experiments for each fault model, stage, site, bit and outcome."
    if not facts.total:
        return Section("counts", "All counts", [], without="no experiment is done yet")
    return Section("counts", "All counts", [text], [facts.table("cells", "All counts.")])


def environment(facts: Facts) -> Section:
    """Where and by what the results were computed."""
    jobs = facts.about["jobs"]
    text = f"The campaign's key is {facts.about['plan_key']}. It ran in {jobs} {'job' if jobs == 1 else 'jobs'}."
    parts = []
    for row in facts.rows("environments"):
        known = {name: value for name, value in json.loads(row["description"]).items() if value is not None}
        rows: list[dict[str, Cell]] = [{"property": name, "value": str(value)} for name, value in known.items()]
        parts.append(Table("environments", f"Environment of {row['n']:,} experiments.", rows))
    if (events := facts.table("events", "Events, in UTC.")).rows:
        parts.append(events)
    return Section("environment", "Environment", [text], parts)


def not_modelled(facts: Facts) -> Section:
    """What no number of the report covers."""
    return Section("not-modelled", "What is not modelled", NOT_MODELLED)
