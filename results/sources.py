"""What `write.py` reads beside campaigns: scoreboards, vulnerability factors, replays and benchmarks."""

import ast
import functools
import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fault_injection.campaign.rates import Rate, wilson
from fault_injection.campaign.wording import MINUS, interval, percent
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.scoreboard.board import Board, ScoredExperiment, read_board
from fault_injection.questions.scoreboard.comparison import standings
from fault_injection.questions.scoreboard.store import ScoreStore
from fault_injection.questions.scoreboard.tasks import SWEPT
from fault_injection.runs.outcome import LATENT

RESULTS = pathlib.Path(__file__).resolve().parent
TRACES = RESULTS.parent / "tests" / "data" / "published_traces.json"
FLIPS = RESULTS.parent / "tests" / "data" / "dlrm_flips.npz"


# ---- Scoreboards ---------------------------------------------------------------------------


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


def lasting() -> dict[str, Board]:
    """The scoreboards of devices that stay defective, by the names of their sets."""
    scored = sorted((RESULTS / "boards").glob("*/score.sqlite"))  # of others there are verdicts alone
    return {path.parent.name: board(f"boards/{path.parent.name}") for path in scored}


def watching(boards: Iterable[Board], detector: str) -> list[Board]:
    """Those of several boards on which a detector watched."""
    return [one for one in boards if detector in one.detectors]


def without(boards: Mapping[str, Board], detector: str) -> list[str]:
    """Names of boards on which a detector did not watch."""
    return [name for name, one in boards.items() if detector not in one.detectors]


def by_latent(boards: Mapping[str, Board]) -> list[str]:
    """Detectors, those first that detect the most latent outcomes of a board; of equal ones the sooner."""
    names = {name: None for one in boards.values() for name in one.detectors}

    def order(name: str) -> tuple[float, float]:
        after = [one.latencies(name, one.of(LATENT)) for one in watching(boards.values(), name)]
        every = [steps for each in after for steps in each]
        return -len(every) / len(after), float(np.mean(every)) if every else 0.0

    return sorted(names, key=order)


def by_either(scored: Board, detectors: Sequence[str], experiments: Sequence[ScoredExperiment]) -> Rate:
    """The share of experiments in which one of several detectors raised an alarm that stops."""
    stopped = [any(one.stop(name) is not None for name in detectors) for one in experiments]
    return wilson(sum(stopped), len(stopped), scored.confidence)


def looks_every(name: str, outcomes: Sequence[str], every: int = 0, beside: str = "") -> Rate:
    """What `unconfirmed_checksum` saw on a board of lasting faults in every n-th step alone.

    That is what `epoch_checksum` and `sampled_checksum` detect: all look at the same sums, without memory.

    Args:
      name: of the set.
      every: n; 0 for the steps of an epoch.
      beside: another detector that may stop the run, too.
    """
    scored = board(f"boards/{name}")
    with Store(RESULTS / "boards" / name) as store:
        plan = store.plan()
        rows = store.query("SELECT number, epoch, step FROM experiments")
    assert plan is not None
    steps, stopped = plan.steps_per_epoch, []
    every = every or steps
    first = {row["number"]: row["epoch"] * steps + row["step"] for row in rows}
    for one in scored.of(outcomes):
        peaks = enumerate(map(float, one.found["seen"]["unconfirmed_checksum"]["peaks"]), first[one.number] + 1)
        stopped.append(any(peak > 1 and after % every == 0 for after, peak in peaks))
        stopped[-1] |= bool(beside) and one.stop(beside) is not None
    return wilson(sum(stopped), len(stopped), scored.confidence)


def seen_late(boards: Sequence[Board], detector: str) -> int:
    """How many latent outcomes it stopped, on all boards on which it watched."""
    return sum(one.detected(detector, one.of(LATENT)).found for one in watching(boards, detector))


def counts_of_false(boards: Sequence[Board], detector: str) -> int:
    """How many fault-free steps it stopped, on all boards on which it watched."""
    return sum(one.false_alarms(detector).found for one in watching(boards, detector))


def naming(scored: Board, detector: str) -> str:
    """Of its alarms on harmful outcomes, how many name the worker that was struck."""
    named: Rate = {one.detector: one for one in standings(scored)}[detector].worker
    return f"{named.found} of {named.total}"


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


def enumerated_layers() -> list[dict[str, Any]]:
    """What is known of each layer of which every flip was tried."""
    folder = RESULTS / "populations" / "layers"
    return [read(str(path.relative_to(RESULTS))) for path in sorted(folder.glob("*.json"))]


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
