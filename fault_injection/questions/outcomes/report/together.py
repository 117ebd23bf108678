"""The section of a report that says what groups of audits came to, and whether that held for those followed alone."""

from ....campaign.page import Cell, Section, Table
from ....campaign.rates import at_most
from ....campaign.wording import level, percent, share
from ..grouped_audits import grouped_audits
from .facts import Facts


def together(facts: Facts) -> Section:
    """How many groups there are, how they ended, and what the audits came to that were followed alone besides."""
    plan, title = facts.plan, "Groups of audits"
    text = [
        f"Audits of early verdicts that say Masked are followed up to {plan.together} in one run, in which all their "
        "faults strike, each at its own step. If it ends Masked, each of its faults is guessed to be masked; if not, "
        "each is followed by itself. That takes harm not to hide harm, which is no proof. So a random "
        f"{percent(plan.together_alone)} % of these audits was chosen beforehand to be followed alone besides, and "
        "every rate of this page allows for what these have not seen."
    ]
    found = grouped_audits(facts.store, plan)
    if not found.groups:
        return Section("together", title, [], without="no group of audits has run")
    text.append(
        f"Groups: {found.groups:,}, of {found.audits:,} audits; ended Masked: {found.masked:,}. In these groups, "
        f"followed alone besides: {found.alone:,}; not Masked by themselves: {found.hidden:,}. So at most "
        f"{percent(at_most(found.hidden, found.alone, plan.confidence))} % of the audits in such groups are not Masked "
        f"(one-sided, {level(plan.confidence)})."
    )
    if found.hidden:
        text.append("So groups hide harm here: this campaign is better off without them.")
    if found.believed is not None and facts.decided:
        text.append(
            f"Of all faults {share(facts.whole())} were not masked, whatever groups hide, and {share(found.believed)} "
            "if groups that ended Masked hide nothing, which these audits support as far as said and no further."
        )
    rows: list[dict[str, Cell]] = [
        {
            "its group": row["in the group"],
            "followed alone besides": "yes" if row["alone"] else "no",
            "by itself": row["verdict"] or "not followed",
            "audits": row["n"],
        }
        for row in facts.rows("grouped")
    ]
    tables = [
        Table("grouped", "Audits in groups, and what they came to by themselves.", rows),
        facts.table("groups", "Groups, and what their runs came to."),
    ]
    if (hidden := facts.table("hidden", "Audits that were not Masked by themselves, in groups that were.")).rows:
        tables.append(hidden)
    return Section("together", title, text, tables)
