"""The section of a report that says which runs settled, and whether those that were followed all the same held."""

from ....campaign.page import Cell, Section, Table
from ....campaign.rates import at_most
from ....campaign.wording import level, percent
from .facts import Facts


def settled(facts: Facts) -> Section:
    """How many runs settled, how many of these were followed, and what they came to."""
    plan, title = facts.plan, "Settled runs"
    text = [
        "A run has settled once it cannot be told from a twin: for "
        f"{plan.settled} consecutive steps, no array of its state was further from the golden run's than those of "
        f"{plan.twins} twins are, which are fault-free. It ends there, and counts as Masked. That is a premise and no "
        f"proof, so a random {percent(plan.settled_follow)} % of these runs was chosen beforehand to be followed to "
        "the end all the same. Every rate of this page allows for what these have not seen, apart for runs that "
        "settled without an early verdict and for audits of each kind of early verdicts."
    ]
    found = facts.rows("settled")
    if not found:
        return Section("settled", title, [], without="no run has settled")
    total = sum(row["n"] for row in found)
    ends = [row for row in found if row["verdict"] is not None]
    followed, other = sum(row["n"] for row in ends), sum(row["n"] for row in ends if row["verdict"] != "Masked")
    text.append(
        f"Runs that settled: {total:,}; followed to the end: {followed:,}; not Masked there: {other:,}. So at most "
        f"{percent(at_most(other, followed, plan.confidence))} % of such runs are not Masked (one-sided, "
        f"{level(plan.confidence)})."
    )
    rows: list[dict[str, Cell]] = [
        {
            "early verdict": row["early"] or "none",
            "at the end": row["verdict"] or ("not followed" if row["ended"] else "not known"),
            "experiments": row["n"],
            "settled after, steps": row["after"],
        }
        for row in found
    ]
    tables = [Table("settled", "Runs that settled, and what they came to.", rows)]
    if (unlike := facts.table("unlike", "Runs that settled and were not Masked at the end.")).rows:
        tables.append(unlike)
    return Section("settled", title, text, tables)
