"""The first section of a scoreboard's page: all detectors in one table."""

from ...campaign.page import Commands, Part, Section, Table
from .board import Board
from .comparison import NOTE, latex, markdown, table


def table_section(board: Board) -> Section:
    """The table as it is read, and as text for a paper."""
    rows = table(board)
    parts: list[Part] = [
        Table("experiments", "All detectors.", [dict(row) for row in rows]),
        Commands("The same in Markdown:", markdown(rows).splitlines()),
        Commands("The same in LaTeX, with the package booktabs:", latex(rows).splitlines()),
    ]
    return Section("table", "Detectors", [NOTE], parts)
