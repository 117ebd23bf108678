"""The sections of a report that say how the campaign was made: what it cost, what was checked, where it ran."""

import json

from .facts import Facts
from .page import Cell, Section, Table
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
        return Section("accounting", "Accounting", [*text, "No experiment is done yet."])
    spent = cost(facts)
    ended: list[dict[str, Cell]] = [
        {"ended by": row["exit"], "experiments": row["n"], "steps": row["steps"], "steps each": row["steps"] / row["n"]}
        for row in facts.rows("exits")
    ]
    ended.append(
        {
            "ended by": "all",
            "experiments": facts.total,
            "steps": spent.experiments,
            "steps each": spent.experiments / facts.total,
        }
    )
    schedules = []
    for epochs in dict.fromkeys((facts.epochs, max(facts.epochs, PUBLISHED_EPOCHS))):
        (row,) = facts.rows("published", epochs=epochs, steps_per_epoch=facts.plan.steps_per_epoch)
        schedules.append(
            {
                "schedule": f"{epochs} epochs",
                "published procedure, steps each": row["steps"] / facts.total,
                "this campaign, steps each": row["ours"] / facts.total,
                "share": f"1/{row['steps'] / row['ours']:.1f}",
            }
        )
    (walks,), (audits,), (time,) = facts.rows("walks"), facts.rows("audited"), facts.rows("time")
    working = time["seconds"] - time["setup"]
    return Section(
        "accounting",
        "Accounting",
        text,
        [
            Table("exits", "Experiments by what ended them.", ended),
            Table("published", "Steps compared with those of the published procedure.", schedules),
            Table("walks", "Walks through the golden run.", [{"walks": walks["n"], "steps": walks["steps"]}]),
            Table("audited", "Steps run for audits.", [{"audits": audits["n"], "steps": audits["steps"]}]),
            Table(
                "time",
                "Time of the jobs.",
                [
                    {"time": "all", "amount": f"{time['seconds']:,.0f} s"},
                    {"time": "of which setting up", "amount": f"{time['setup']:,.0f} s"},
                    {
                        "time": "outside training steps, of the rest",
                        "amount": f"{time['outside'] / working:.1%}" if working > 0 else "not known",
                    },
                ],
            ),
        ],
    )


def audited(facts: Facts) -> Section:
    """Whether early verdicts hold when their runs are followed to the end."""
    if facts.plan.exit != "conditions":
        why = f"There is nothing to audit: exit mode '{facts.plan.exit}' gives no verdict early without a proof."
        return Section("audit", "Audit", [why])
    found = audit(facts)
    text = (
        f"A run that shows nothing large soon after its fault is judged masked early. A random {facts.plan.audit:.1%} "
        "of these runs go on to the end. The counts above keep the early verdict of each. The share of all experiments "
        "that could have another outcome for this reason is at most the upper end of the share that changed, times "
        "the share of early verdicts."
    )
    rows: list[dict[str, Cell]] = [
        {"early verdict": row["outcome"], "at the end": row["audit_outcome"], "experiments": row["n"]}
        for row in facts.rows("audit")
    ]
    if not rows:
        return Section("audit", "Audit", [text, "No early verdict has been audited yet, so no bound is known."])
    bound = (
        f"Of {found.early:,} early verdicts {found.wrong.total:,} were audited and {found.wrong.found:,} changed: "
        f"{found.wrong.share:.2%} [{found.wrong.low:.2%}, {found.wrong.high:.2%}]. This bounds the wrong outcomes by "
        f"{found.bound:.2%} of all experiments."
    )
    tables = [Table("audit", "Audited experiments.", rows)]
    if changed := facts.rows("disagreeing"):
        listed: list[dict[str, Cell]] = [
            {
                "experiment": str(row["number"]),
                "site": row["site"],
                "fault model": row["model"],
                "at the end": row["audit_outcome"],
                "rule": row["audit_rule"],
            }
            for row in changed
        ]
        tables.append(Table("disagreeing", "Verdicts that changed.", listed))
    return Section("audit", "Audit", [text, bound], tables)


def all_counts(facts: Facts) -> Section:
    """The counts that all rates can be computed from."""
    rows: list[dict[str, Cell]] = [
        {
            "fault model": row["model"],
            "stage": row["stage"],
            "site": row["site"],
            "bit": "" if row["bit"] is None else str(row["bit"]),
            "outcome": row["outcome"],
            "experiments": row["n"],
        }
        for row in facts.rows("cells")
    ]
    text = "The number of experiments for each fault model, stage, site, bit and outcome."
    return Section("counts", "All counts", [text], [Table("cells", "All counts.", rows)] if rows else [])


def environment(facts: Facts) -> Section:
    """Where and by what the results were computed."""
    jobs = facts.about["jobs"]
    text = f"The campaign's key is {facts.about['plan_key']}. It ran in {jobs} {'job' if jobs == 1 else 'jobs'}."
    parts = []
    for row in facts.rows("environments"):
        known = {name: value for name, value in json.loads(row["description"]).items() if value is not None}
        rows: list[dict[str, Cell]] = [{"property": name, "value": str(value)} for name, value in known.items()]
        parts.append(Table("environments", f"Environment of {row['n']:,} experiments.", rows))
    events: list[dict[str, Cell]] = [{"at": row["at"], "event": row["what"]} for row in facts.rows("events")]
    if events:
        parts.append(Table("events", "Events, in UTC.", events))
    return Section("environment", "Environment", [text], parts)


def not_modelled(facts: Facts) -> Section:
    """What no number of the report covers."""
    return Section("not-modelled", "What is not modelled", NOT_MODELLED)
