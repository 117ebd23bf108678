"""Writes the tables of docs/profiles.md from the stores of this folder: `python results/profiles/write.py`.

A table stands between two comments of HTML that name it; what is between them is replaced.
"""

import collections
import contextlib
import pathlib
import sqlite3
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
PAGE = FOLDER.parents[1] / "docs" / "profiles.md"
sys.path.insert(0, str(FOLDER.parents[1]))

from fault_injection.campaign.rates import Rate, wilson  # noqa: E402
from fault_injection.questions.outcomes.report.queries import GUESSED, UNSTRUCK  # noqa: E402
from fault_injection.runs.outcome import DIVERGED, LATENT, MASKED  # noqa: E402

FORMATS = ("float32", "bfloat16", "float16")
QUERY = "SELECT outcome, elements, first_nonfinite FROM experiments"


def percent(rate: Rate) -> str:
    """A share with its interval, in whole per cents."""
    return f"{rate.share:.0%} [{rate.low:.0%}, {rate.high:.0%}]"


def row(name: str, format: str) -> list[str]:
    """What one campaign says: experiments, those that struck nothing, elements struck, and outcomes."""
    with contextlib.closing(
        sqlite3.connect(f"{(FOLDER / f'{name}_{format}.sqlite').as_uri()}?mode=ro", uri=True)
    ) as store:
        found = store.execute(QUERY).fetchall()
        assert not store.execute(f"SELECT count(*) FROM experiments WHERE {GUESSED}").fetchone()[0]  # all were followed
        (unstruck,) = store.execute(UNSTRUCK).fetchone()
    outcomes = collections.Counter(one[0] for one in found)
    struck = sorted(one[1] for one in found if one[1])
    harmed = len(found) - outcomes.pop(MASKED, 0)
    middle = f"{struck[len(struck) // 2]:,}" if struck else "none"
    each = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "none"
    return [f"{len(found)}", f"{unstruck}", middle, percent(wilson(harmed, len(found), 0.95)), each]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def attention() -> str:
    """What INF, NaN and near-INF in each product of attention come to: a table, and in all."""
    with contextlib.closing(sqlite3.connect(f"{(FOLDER / 'attention.sqlite').as_uri()}?mode=ro", uri=True)) as store:
        found = store.execute("SELECT site, model, outcome FROM experiments").fetchall()
        assert not store.execute(f"SELECT count(*) FROM experiments WHERE {GUESSED}").fetchone()[0]
    counts = collections.Counter((site.partition("_self_attn_")[2], model, outcome) for site, model, outcome in found)
    rows, harmed = [], collections.Counter[str]()
    for operation, told in ATTENTION.items():
        cells = []
        for model in ATTNCHECKER:
            of_kinds = (DIVERGED, LATENT, (MASKED,))
            bad, latent, masked = (sum(counts[operation, model, one] for one in outcomes) for outcomes in of_kinds)
            cells.append(f"{bad}, {latent} of {bad + latent + masked}")
            harmed[model] += bad + latent
        rows.append([told, *cells])
    total = collections.Counter(model for _, model, _ in found)
    each = "; ".join(
        f"{told} {percent(wilson(harmed[model], total[model], 0.95))}" for model, told in ATTNCHECKER.items()
    )
    return table(["struck", *ATTNCHECKER.values()], rows) + f"\n\nHarmful in all: {each}."


ATTNCHECKER = {"infinity": "INF", "not_a_number": "NaN", "near_infinity": "near INF"}
ATTENTION = {
    "q_proj": "queries", "k_proj": "keys", "v_proj": "values", "scores": "scores", "mix": "mix of the values",
    "o_proj": "output",
}  # fmt: skip
HEAD = ["experiments", "nothing struck", "elements struck at first, median", "not masked", "outcomes"]


def tables() -> dict[str, str]:
    """The tables of the page by their names."""
    names = sorted({path.stem.removesuffix("_float32") for path in FOLDER.glob("*_float32.sqlite")})
    return {
        "outcomes": table(["profile", *HEAD], [[f"`{name}`", *row(name, "float32")] for name in names]),
        "attention": attention(),
        "formats": table(["format", *HEAD], [[one, *row("llm_prism", one)] for one in FORMATS]),
    }


def filled(page: str) -> str:
    """The page with its tables as the stores have them."""
    for name, text in tables().items():
        before, rest = page.split(f"<!-- {name} -->\n", 1)
        page = f"{before}<!-- {name} -->\n{text}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
