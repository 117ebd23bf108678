"""Writes the tables of docs/profiles.md from the stores of this folder: `python results/profiles/write.py`.

A table stands between two comments of HTML that name it; what is between them is replaced.
"""

import collections
import contextlib
import itertools
import pathlib
import sqlite3
import sys
from collections.abc import Iterator

from scipy.stats import binomtest

FOLDER = pathlib.Path(__file__).resolve().parent
PAGE = FOLDER.parents[1] / "docs" / "profiles.md"
sys.path.insert(0, str(FOLDER.parents[1]))

from fault_injection.campaign.rates import Rate, wilson  # noqa: E402
from fault_injection.questions.outcomes.report.queries import GUESSED, UNSTRUCK  # noqa: E402
from fault_injection.runs.outcome import DIVERGED, LATENT, MASKED  # noqa: E402

FORMATS = ("float32", "bfloat16", "float16", "float8")
QUERY = "SELECT outcome, elements, first_nonfinite FROM experiments"


def percent(rate: Rate) -> str:
    """A share with its interval, in whole per cents."""
    return f"{rate.share:.0%} [{rate.low:.0%}, {rate.high:.0%}]"


@contextlib.contextmanager
def opened(name: str) -> Iterator[sqlite3.Connection]:
    """A store of this folder, all of whose experiments were followed to the end."""
    uri = f"{(FOLDER / f'{name}.sqlite').as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as store:
        assert not store.execute(f"SELECT count(*) FROM experiments WHERE {GUESSED}").fetchone()[0]
        yield store


def row(name: str) -> list[str]:
    """What one campaign says: experiments, those that struck nothing, elements struck, and outcomes."""
    with opened(name) as store:
        found = store.execute(QUERY).fetchall()
        (unstruck,) = store.execute(UNSTRUCK).fetchone()
    outcomes = collections.Counter(one[0] for one in found)
    struck = sorted(one[1] for one in found if one[1])
    harmed = len(found) - outcomes.pop(MASKED, 0)
    middle = f"{struck[len(struck) // 2]:,}" if struck else "none"
    each = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "none"
    return [f"{len(found)}", f"{unstruck}", middle, percent(wilson(harmed, len(found), 0.95)), each]


def classes(name: str, column: str = "NULL") -> dict[str | None, collections.Counter[str]]:
    """How many trainings of a store became not finite, stayed finite and ended worse, and were masked.

    Args:
      column: of the experiments, by whose values they are told apart.
    """
    found: dict[str | None, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with opened(name) as store:
        for value, outcome, count in store.execute(
            f"SELECT {column}, outcome, count(*) FROM experiments GROUP BY {column}, outcome"
        ):
            kind = NOT_FINITE if outcome in DIVERGED else WORSE if outcome in LATENT else MASKED
            assert kind != MASKED or outcome == MASKED  # none is undecided
            found[value][kind] += count
    return found


def of_classes(told: str, counts: collections.Counter[str]) -> list[str]:
    """A row of what came of one kind of fault."""
    total = counts.total()
    rates = [wilson(counts[kind], total, 0.95) for kind in (NOT_FINITE, WORSE)]
    return [told, f"{total}", *(f"{one.found}: {one.share:.1%} [{one.low:.1%}, {one.high:.1%}]" for one in rates)]


def harmful(name: str) -> set[int]:
    """The numbers of the experiments that were not masked."""
    with opened(name) as store:
        return {number for (number,) in store.execute("SELECT number FROM experiments WHERE outcome != ?", (MASKED,))}


def of_pairs() -> str:
    """How many devices do harm in one of two formats alone, with McNemar's exact test."""
    told, harm = [], {name: harmful(f"formats-{name}") for name in FORMATS}
    for one, other in itertools.combinations(sorted(FORMATS, key=lambda name: -len(harm[name])), 2):
        alone, beside = len(harm[one] - harm[other]), len(harm[other] - harm[one])
        p = binomtest(alone, alone + beside).pvalue if alone + beside else 1.0
        told.append(f"{one} {alone}, {other} {beside} (p = {p:.2g})")
    return f"Devices that do harm in one of two formats alone: {'; '.join(told)}."


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def attention() -> str:
    """What INF, NaN and near-INF in each product of attention come to: a table, and in all."""
    with opened("attention") as store:
        found = store.execute("SELECT site, model, outcome FROM experiments").fetchall()
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
STAGES = {
    ("products", "forward"): "products of the forward pass",
    ("products", "backward"): "products of the backward pass",
    ("gradient", "gradient"): "the gradient, before it is clipped",
    ("update", "update"): "the update, after the optimizer",
}
NOT_FINITE, WORSE = "not finite", "finite, and worse at the end"
CLASSES = ["experiments", NOT_FINITE, WORSE]
HEAD = ["experiments", "nothing struck", "elements struck at first, median", "not masked", "outcomes"]


def tables() -> dict[str, str]:
    """The tables of the page by their names."""
    names = sorted({path.stem.removesuffix("_float32") for path in FOLDER.glob("*_float32.sqlite")})
    return {
        "outcomes": table(["profile", *HEAD], [[f"`{name}`", *row(f"{name}_float32")] for name in names]),
        "attention": attention(),
        "formats": table(["format", *CLASSES], [of_classes(one, classes(f"formats-{one}")[None]) for one in FORMATS])
        + f"\n\n{of_pairs()}",
        "stages": table(
            ["struck", *CLASSES],
            [of_classes(told, classes(name, "stage")[stage]) for (name, stage), told in STAGES.items()],
        ),
    }


def filled(page: str) -> str:
    """The page with its tables as the stores have them."""
    for name, text in tables().items():
        before, rest = page.split(f"<!-- {name} -->\n", 1)
        page = f"{before}<!-- {name} -->\n{text}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
