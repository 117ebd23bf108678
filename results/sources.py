"""What `write.py` reads: campaigns, scoreboards, vulnerability factors, replays and benchmarks."""

import ast
import contextlib
import functools
import json
import math
import operator
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from fault_injection.campaign.rates import Rate, wilson
from fault_injection.campaign.wording import MINUS, interval, percent
from fault_injection.faults.number_formats import format_of
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand
from fault_injection.questions.outcomes.report import summary
from fault_injection.questions.outcomes.report.facts import Facts, decode
from fault_injection.questions.outcomes.report.queries import BY, KNOWN, VERDICT
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.outcomes.tally import Tally, tally_of
from fault_injection.questions.scoreboard.board import Board, read_board
from fault_injection.questions.scoreboard.store import ScoreStore
from fault_injection.questions.scoreboard.tasks import SWEPT
from fault_injection.runs.outcome import MASKED

RESULTS = pathlib.Path(__file__).resolve().parent
TRACES = RESULTS.parent / "tests" / "data" / "published_traces.json"
FLIPS = RESULTS.parent / "tests" / "data" / "dlrm_flips.npz"
opened = contextlib.ExitStack()  # the stores that are open
SEEN = f"(SELECT *, {VERDICT} AS verdict FROM experiments)"


# ---- Campaigns -----------------------------------------------------------------------------


class Part(NamedTuple):
    """Some of a campaign's experiments: what is known of them, and the confidence of intervals."""

    tally: Tally
    confidence: float = 0.95

    def __add__(self, other: object) -> "Part":
        return Part(self.tally + other.tally, self.confidence) if isinstance(other, Part) else NotImplemented

    def of(self, outcomes: str | list[str]) -> int:
        """How many have an outcome, or one of several, as far as is known."""
        return sum(self.tally.counts[name] for name in ([outcomes] if isinstance(outcomes, str) else outcomes))

    @property
    def n(self) -> int:
        """How many are decided."""
        return self.tally.decided

    @property
    def bad(self) -> int:
        """How many are known not to be masked."""
        return self.n - self.of(MASKED)

    @property
    def pair(self) -> tuple[int, int]:
        """Bad, and all."""
        return self.bad, self.n

    @property
    def rate(self) -> Rate:
        """The share not masked, in which what audits have not seen is allowed for."""
        return self.tally.not_masked(self.confidence)

    @property
    def believed(self) -> Rate:
        """The same if early verdicts are believed."""
        return wilson(*self.pair, self.confidence)

    def __str__(self) -> str:
        return f"{self.bad} of {self.n}"


class Campaign:
    """A campaign's store, to be asked in SQL.

    Conditions may use all columns of the table `experiments` (docs/campaign.md, Store), `verdict`, the outcome that is
    best known, `kind(site)`, the kind of operation, and `role(site, operand, bit)`, what a bit
    is for: `sign`, `exponent 1`, `mantissa 23`.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.store = opened.enter_context(Store(RESULTS / folder))
        opened.callback(campaign.cache_clear)  # of no use with its store closed
        self.facts = facts = Facts(self.store)
        self.plan = facts.plan
        if facts.total != facts.plan.experiments:
            raise InputError(f"{facts.total} of {facts.plan.experiments} experiments are done", self.store.path)
        self._parts: dict[str, Part] = {}

        def kind(site: str) -> str:
            return site if facts.plan.leaf else facts.plan.workload.kind(facts.plan.targets[site])

        def role(site: str, operand: str, bit: int | None) -> str | None:
            tensor = facts.plan.targets[site].operands[Operand[operand.upper()]]
            return None if bit is None else format_of(tensor.dtype).role(bit)

        self.store.teach("kind", kind, 1)
        self.store.teach("role", role, 3)

    def where(self, condition: str = "true") -> Part:
        """The experiments for which a condition holds."""
        if condition not in self._parts:
            rows = self.store.query(f"SELECT {KNOWN.replace('experiments', SEEN)} WHERE {condition} GROUP BY {BY}")
            self._parts[condition] = Part(tally_of(rows, self.plan), self.plan.confidence)
        return self._parts[condition]

    def value(self, expression: str, condition: str = "true") -> Any:
        """One value, such as `max(steps)`, over the experiments for which a condition holds."""
        ((value,),) = self.store.query(f"SELECT {expression} FROM {SEEN} WHERE {condition}")
        return value

    def values(self, expression: str, condition: str = "true") -> list[Any]:
        """The values of an expression, by the experiments' numbers."""
        rows = self.store.query(f"SELECT {expression} FROM {SEEN} WHERE {condition} ORDER BY number")
        return [row[0] for row in rows]

    def median(self, column: str, condition: str = "true") -> str | None:
        """The median of a column as text; None where it has no value."""
        found = [value for value in self.values(column, condition) if value is not None]
        return f"{np.median(found):g}" if found else None

    def rises(self, steps: int) -> dict[str, list[float]]:
        """By outcome, how far the loss rises above that of the faulty step, within this number of steps after it."""
        found: dict[str, list[float]] = {}
        for row in self.store.query(f"SELECT verdict, curve, steps + audit_steps AS recorded FROM {SEEN}"):
            loss = decode(row["curve"], row["recorded"])[: steps + 1, 0]
            found.setdefault(row["verdict"], []).append(float((loss - loss[0]).max()))
        return found

    @property
    def all(self) -> Part:
        """All experiments."""
        return self.where()

    @property
    def weighted(self) -> Rate:
        """The share not masked, fault models weighted as in the plan."""
        return self.facts.whole()

    @property
    def cost(self) -> summary.Cost:
        """Its training steps."""
        return summary.cost(self.facts)

    @functools.cached_property
    def audit(self) -> dict[str, int]:
        """Early verdicts: how many, how many of them followed to the end (`seen`), how many `changed`."""
        found = summary.audit(self.facts)
        return {name: sum(getattr(kind, name) for kind in found) for name in ("early", "seen", "changed")}


class Together:
    """Campaigns that are counted together."""

    def __init__(self, campaigns: list[Campaign]):
        self.campaigns = campaigns

    def where(self, condition: str = "true") -> Part:
        """The experiments of all of them for which a condition holds."""
        return functools.reduce(operator.add, (one.where(condition) for one in self.campaigns))

    def most(self, column: str, condition: str = "true") -> float:
        """The largest value of a column; 0 where it has none."""
        return max(one.value(f"max({column})", condition) or 0 for one in self.campaigns)

    @property
    def commit(self) -> str:
        """The commits on which they were made."""
        return ", ".join(sorted({commit[:7] for commit in self._described("commit")}))

    @property
    def processor(self) -> str:
        """The processors on which they were made."""
        return ", ".join(sorted({named(name) for name in self._described("processor")}))

    def _described(self, what: str) -> set[str]:
        query = f"SELECT DISTINCT description ->> '{what}' FROM environments"
        return {str(row[0]) for one in self.campaigns for row in one.store.query(query)}

    @property
    def audit(self) -> dict[str, int]:
        """That of all of them."""
        audits = [one.audit for one in self.campaigns]
        return {name: sum(audit[name] for audit in audits) for name in audits[0]}


def paired(a: Campaign, b: Campaign, columns: str, condition: str = "true") -> list[tuple[Any, Any]]:
    """What columns say of each experiment that two campaigns share, by number: the row of one, and of the other."""
    query = f"SELECT number, {columns} FROM {SEEN} WHERE {condition}"
    ours, theirs = ({row["number"]: dict(row) for row in one.store.query(query)} for one in (a, b))
    return [(ours[number], theirs[number]) for number in sorted(ours.keys() & theirs.keys())]


@functools.cache
def campaign(folder: str) -> Campaign:
    """The campaign in a folder of results."""
    return Campaign(folder)


def together(*folders: str) -> Together:
    """Several campaigns as one."""
    return Together([campaign(folder) for folder in folders])


@functools.cache
def board(folder: str) -> Board:
    """The scoreboard in a folder of results."""
    return read_board(RESULTS / folder)


def caught(scored: Board, detector: str) -> set[int]:
    """Numbers of the experiments in which a detector raised an alarm that stops."""
    return {one.number for one in scored.seen if one.stop(detector) is not None}


def quietest(scored: Board, detector: str) -> float:
    """The least swept share of a detector's threshold that no value in a fault-free step was above."""
    beyond = np.sum([run[detector]["beyond"] for run in scored.fault_free.values()], axis=0)
    return SWEPT[int(np.argmin(beyond > 0))]


def commit(folder: str) -> str:
    """The commit on which a scoreboard was made."""
    with ScoreStore(RESULTS / folder) as store:
        return str(store.get("about", "environment")["commit"])[:7]


# ---- Other files ---------------------------------------------------------------------------


@functools.cache
def read(path: str) -> Any:
    """What a JSON file of results says."""
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


@functools.cache
def record(path: str) -> dict[str, np.ndarray]:
    """The curves of a replay, of its folder."""
    return dict(np.load(RESULTS / path / "record.npz"))


def outcome(replay: str) -> Any:
    """What came of a replay, of its folder."""
    return read(f"{replay}/outcome.json")


def verdict(replay: str) -> str:
    """Its verdict, as tables say it."""
    found = outcome(replay)
    return f"{found['outcome']}{' (exactly)' if found['exactly_masked_after'] is not None else ''}"


def stage(replay: str) -> str:
    """The pass that a replay's fault struck."""
    return "forward" if "stage,fwrd_inject" in read(f"{replay}/provenance.json")["injection"] else "backward"


def places(replay: str) -> list[dict[str, Any]]:
    """What came of a replay's fault at its own place, and at others (`places.py`); empty where nobody has looked."""
    path = f"{replay}/places.json"
    return read(path)["places"] if (RESULTS / path).exists() else []


def points(replay: str, part: str) -> str:
    """By how many points a replay ended worse, in `train` or `test`."""
    return f"{100 * outcome(replay)['worse'][part]:.1f}"


def replays(folder: str) -> list[str]:
    """The replays in a folder of results."""
    return sorted(path.parent.name for path in (RESULTS / folder).glob("*/outcome.json"))


def published(name: str) -> dict[str, Any]:
    """A published run: means of the last three epochs, training accuracies from the fault on, tests by epoch."""
    trace = json.loads(TRACES.read_text(encoding="utf-8"))[name]
    epochs, steps = (
        np.array(trace["epochs"], float).reshape(-1, 3),
        np.array(trace.get("steps", []), float).reshape(-1, 2),
    )
    train, test = epochs[-3:, 1:].mean(axis=0) if len(epochs) else (math.nan, math.nan)
    return {"train": train, "test": test, "steps": steps[trace.get("step", 0) :, 1], "tests": epochs[:, 2]}


class Vulnerability:
    """What `pvf` counted: `rates.json` of a folder."""

    def __init__(self, folder: str):
        self.cells = read(f"{folder}/rates.json")["cells"]

    def cell(self, component: str, kind: str = "flips", amount: float = 1) -> Any:
        """One cell: `pvf`, `interval`, `trials` and more."""
        wanted = (component, kind, amount)
        return next(c for c in self.cells if (c["component"], c["kind"], c["amount"]) == wanted)

    def ranked(self, components: list[str], amount: float) -> list[str]:
        """Components by their share, the least vulnerable first."""
        return sorted(components, key=lambda name: self.cell(name, amount=amount)["pvf"])

    def shown(self, component: str, amount: float = 1, unit: str = "", kind: str = "flips") -> str:
        """A cell's share in percent with its interval."""
        cell = self.cell(component, kind, amount)
        return f"{percent(cell['pvf'])}{unit} {interval(*cell['interval'])}"


@functools.cache
def vulnerability(folder: str) -> Vulnerability:
    """The rates in a folder of `pvf`."""
    return Vulnerability(folder)


def made(*folders: str) -> str:
    """By which code, and on which processor, `pvf` made some folders."""
    known = {
        (one["commit"][:7], one["processor"])
        for folder in folders
        for one in [read(f"{folder}/rates.json")["environment"]]
    }
    return "; ".join(f"on commit {commit} ({named(processor)})" for commit, processor in sorted(known))


def named(processor: str) -> str:
    """A processor without the number of its model: `AMD EPYC`."""
    return re.sub(r"^\d+ |\([A-Z]+\)| Processor$", "", processor)


class AllFlips:
    """Every single flip of a trained `dlrm`, each tried on the same examples.

    Attributes:
      examples: how many.
      count: of the flips.
    """

    def __init__(self) -> None:
        with np.load(FLIPS) as stored:
            self.examples = int(stored["examples"])
            # By leaf: changed decisions, int64 [elements, 32].
            self._changed = {leaf: stored[leaf].astype(np.int64) for leaf in stored.files if leaf.count("/") == 1}
        self.count = sum(changed.size for changed in self._changed.values())

    def shown(self, layers: str) -> str:
        """The factor of the layers whose names begin so, in percent to three digits."""
        here = [changed for leaf, changed in self._changed.items() if leaf.startswith(layers)]
        return f"{100 * sum(map(np.sum, here)) / sum(each.size for each in here) / self.examples:.3f}"

    def part(self, bits: dict[str, list[int]] | list[int]) -> float:
        """The share of all changed decisions that these bits carry, by layer or in all layers alike."""
        of = {leaf: bits.get(leaf.split("/")[0], []) if isinstance(bits, dict) else bits for leaf in self._changed}
        carried = sum(changed[:, of[leaf]].sum() for leaf, changed in self._changed.items())
        return float(carried / sum(map(np.sum, self._changed.values())))


@functools.cache
def all_flips() -> AllFlips:
    """What is known of all single flips."""
    return AllFlips()


def benchmark(name: str, claim: str) -> Any:
    """The one claim of a benchmark's file that a regular expression finds."""
    found = [one for one in read(f"benchmarks/{name}.json")["claims"] if re.search(claim, one["claim"])]
    if len(found) != 1:
        raise InputError(f"{len(found)} of its claims are like {claim!r}", f"benchmarks/{name}.json")
    return found[0]


def load(name: str) -> float:
    """The load of the machine when a benchmark began."""
    return float(read(f"benchmarks/{name}.json")["machine"]["load_average_at_start"][0])


def measured(name: str, claim: str, places: int = 2, times: float = 1) -> str:
    """A claim's median with its interval, to so many places."""
    one = benchmark(name, claim)
    median, low, high = (f"{times * x:.{places}f}" for x in (one["median"], *one["interval"]))
    zero = f"-{0:.{places}f}"
    median, low, high = (x[1:] if x == zero else x.replace("-", MINUS) for x in (median, low, high))
    return f"{median} [{low}, {high}]" if one["rounds"] > 1 else median


def met(names: str | list[str], claim: str) -> str:
    """Whether a claim's bound is met, in a file or in several, as a table says it."""
    files = [names] if isinstance(names, str) else names
    return "met" if all(benchmark(name, claim)["met"] for name in files) else "**not met**"


def read_calls(path: str) -> dict[str, float]:
    """Seconds of first calls, from the lines that `first_call.py --child` printed."""
    lines = (line.split(" | ") for line in (RESULTS / path).read_text(encoding="utf-8").splitlines())
    return {", ".join(cells[:3]): ast.literal_eval(cells[3])["call alone"] for cells in lines if len(cells) == 4}
