"""The plan of a campaign: a TOML file that says what is struck, how often, and when to stop looking.

Everything that can be wrong with it is found before any work starts, and said in one line.
"""

import dataclasses
import fnmatch
import math
import pathlib
import re
import statistics
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..faults.fault_models import FAULT_MODELS, FLOAT32, VALUES, Pattern, Values, read_histogram
from ..faults.injection import STAGES, too_large
from ..machine.errors import InputError, did_you_mean
from ..machine.files import read_text
from ..machine.reading import SHOWN, fits
from ..runs.follow import Address, horizon_or_end, numbered
from ..training.program import NONFINITE_RULES
from ..training.workload import Workload, format_option
from ..training.workloads import find_workload, restore_workload

# How long an experiment is watched, the first the longest (docs/campaign.md, How an experiment ends).
EXITS = ("full", "exact", "conditions")
PUBLISHED_MODELS = tuple(name for name in FAULT_MODELS if name != "MEASURED")
LARGEST = 10_000_000  # experiments of a plan
LONGEST = 400  # characters of a pattern, and of a message about a key
SAID = 200  # characters of a message that is not ours
INJECTION = re.compile(r"([^\S\n]*(#.*)?\n)*+\s*[\"']?(model|stage|fmodel|target_\w+)[\"']?\s*,")  # how its files begin
FAULTS = ("experiments", "half_width", "confidence", "epochs", "stages", "sites", "seed", "models")
RUN = ("exit", "horizon", "audit", "twins", "nonfinite")


@dataclasses.dataclass(frozen=True)
class Model:
    """A fault model of a plan.

    Attributes:
      name: key of `FAULT_MODELS`.
      weight: its share of the experiments, in proportion to the sum of weights.
      values: key of `VALUES`, what the elements become; the model's own unless told otherwise.
      options: of the value source, `bits` or `patterns`.
    """

    name: str
    weight: float
    values: str
    options: tuple[tuple[str, Any], ...] = ()

    def source(self) -> Values:
        """What the elements become."""
        return VALUES[self.values](**dict(self.options))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A campaign, checked.

    Attributes:
      workload: with all its options.
      experiments: how many.
      half_width, confidence: what their number was calculated from, or None.
      epochs: among which the fault's is drawn.
      sites: names of the operations struck, of the stages and patterns asked for.
      models: fault models with their weights.
      seed: of all that is drawn.
      exit: one of `EXITS`.
      horizon: steps to follow a run after its fault; None follows it to the end of the training.
      audit: share of the masked verdicts by conditions that are run to the end all the same.
      twins: golden runs one unit in the last place apart, for the tolerance of verdicts.
      nonfinite: one of `NONFINITE_RULES`: what ends a run when it is not finite.
    """

    workload: Workload
    experiments: int
    half_width: float | None
    confidence: float
    epochs: tuple[int, ...]
    sites: tuple[str, ...]
    models: tuple[Model, ...]
    seed: int
    exit: str
    horizon: int | None
    audit: float
    twins: int
    nonfinite: str = NONFINITE_RULES[0]

    @property
    def steps_per_epoch(self) -> int:
        """Steps in each epoch of the workload."""
        return self.workload.steps_per_epoch

    @property
    def end(self) -> Address:
        """The last step of the training."""
        return Address(self.workload.epochs - 1, self.steps_per_epoch - 1)

    def last_step(self, fault: Address) -> Address:
        """The last step that an experiment may run, by the horizon."""
        return horizon_or_end(self.workload.epochs, self.steps_per_epoch, fault, self.horizon)

    def followed(self, epoch: int, step: int) -> int:
        """How many steps an experiment at a step takes that is followed as far as it may be."""
        at, last = Address(epoch, step), self.last_step(Address(epoch, step))
        return numbered(last, self.steps_per_epoch) - numbered(at, self.steps_per_epoch) + 1

    @property
    def golden_epochs(self) -> int:
        """Epochs of the golden run that its experiments are compared with."""
        if self.horizon is None or self.twins or (self.exit == "conditions" and self.audit):
            return self.workload.epochs
        return self.last_step(Address(max(self.epochs), self.steps_per_epoch - 1)).epoch + 1

    def sentence(self) -> str:
        """The plan in words."""
        size = f"{self.experiments} experiments"
        if self.half_width is not None:
            size += f", for rates within ±{self.half_width:g} at {self.confidence:.0%}"
        ends = "to the end of the training" if self.horizon is None else f"for at most {self.horizon} steps"
        models = ", ".join(model.name for model in self.models)
        w = self.workload
        return (
            f"{size}, on {w.title} ({w.details}): {len(self.sites)} sites, {len(self.epochs)} of {w.epochs} epochs; "
            f"fault models {models}; exit mode {self.exit}, followed {ends}"
        )

    def identity(self) -> dict[str, Any]:
        """What determines experiment i and its verdict: everything but how many there are."""
        known = dataclasses.asdict(self)
        for extent in ("experiments", "half_width", "confidence"):
            del known[extent]
        return known


def restore_plan(kept: dict[str, Any]) -> Plan:
    """The plan whose fields were kept as JSON.

    Raises:
      ValueError: they are not those of a plan; perhaps somebody wrote them by hand.
      InputError: the file of a user's own workload is gone.
    """
    try:
        plan = _restored_plan(kept)
        workload, sites = plan.workload, plan.workload.sites()
        options = {**workload.OPTIONS, **workload.REQUIRED}
        read = {
            name: option.kind.parse(str(format_option(getattr(workload, name)))) for name, option in options.items()
        }
        as_written = find_workload(workload.name).changed(**read) == workload and workload.contradiction() is None
        values = [model.source() for model in plan.models]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    for field in dataclasses.fields(plan):
        if not fits(getattr(plan, field.name), field.type):
            raise ValueError(f"{field.name} has another type than a plan's")
    sound = {
        "workload": as_written,
        "experiments": 0 < plan.experiments <= LARGEST,
        "confidence": 0.5 <= plan.confidence < 1,
        "epochs": bool(plan.epochs) and all(0 <= epoch < plan.workload.epochs for epoch in plan.epochs),
        "sites": bool(plan.sites) and all(site in sites for site in plan.sites),
        "models": bool(values) and all(m.name in FAULT_MODELS and 0 < m.weight < 1e6 for m in plan.models),
        "seed": 0 <= plan.seed < 2**31,
        "exit": plan.exit in EXITS,
        "horizon": plan.horizon is None or plan.horizon > 0,
        "audit": 0 <= plan.audit <= 1,
        "twins": 0 <= plan.twins < 100,
    }
    for name, right in sound.items():
        if not right:
            raise ValueError(f"its value of {name} is not one of a plan")
    return plan


def _restored_plan(kept: dict[str, Any]) -> Plan:
    known = dict(kept)
    known["workload"] = restore_workload(known["workload"])
    known["models"] = tuple(
        Model(**{**model, "options": tuple((name, _restored(name, value)) for name, value in model["options"])})
        for model in known["models"]
    )
    known |= {name: tuple(known[name]) for name in ("epochs", "sites")}
    return Plan(**known)


def _restored(name: str, value: list[Any]) -> tuple[Any, ...]:
    return tuple(Pattern(*row) for row in value) if name == "patterns" else tuple(value)


def sample_size(half_width: float, confidence: float) -> int:
    """Experiments for a rate to be known within ± `half_width`, whatever it is: n = z² ¼ / e².

    Reference: Leveugle, Calvez, Maistri, Vanhauwaert, DATE 2009, for a large population and
    p = ½; 385 for 5 % and 9604 for 1 % at 95 % as printed there, one more than its 16587 for 1 %
    at 99 %, z being rounded there.
    """
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    return math.ceil(z * z / 4 / half_width**2)


def read_plan(path: pathlib.Path) -> Plan:
    """Read and check a plan.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    return parse_plan(read_text(path), path)


def parse_plan(text: str, path: object = "plan") -> Plan:
    """As `read_plan`, from the file's text; a histogram's path counts from the folder of `path`."""
    if INJECTION.match(text):
        raise InputError(f"an injection file, not a plan; replay it: python -m fault_injection replay {path}", path)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise InputError("not a plan: it has tables or lists nested a thousand deep", path) from None
    except ValueError as error:  # a number of thousands of digits is a ValueError too
        raise InputError(f"not TOML: {str(error)[:SAID]}", path) from None
    read = _Reader(text, path)
    read.keys(document, ("workload", "options", "faults", "run"), "")
    workload = _workload(document, read)
    faults, run = read.table(document, "faults"), read.table(document, "run")
    read.keys(faults, FAULTS, "faults.")
    read.keys(run, RUN, "run.")
    half_width = read.number(faults, "faults.half_width", None, 1e-4, 0.5)
    confidence = read.number(faults, "faults.confidence", 0.95, 0.5, 0.9999)
    if (half_width is None) == ("experiments" not in faults):
        raise read.wrong("faults", "expected either experiments, or half_width (and confidence)")
    if half_width is None and "confidence" in faults:
        raise read.wrong("faults.confidence", "belongs to half_width, and has no effect beside experiments")
    if half_width is None:
        experiments = read.whole(faults, "faults.experiments", None, 1, LARGEST)
    else:
        experiments = sample_size(half_width, confidence)
        if experiments > LARGEST:
            raise read.wrong("faults.half_width", f"takes {experiments} experiments, more than {LARGEST}")
    exit = read.one_of(run, "run.exit", "conditions", EXITS)
    horizon = read.whole(run, "run.horizon", None, 2, 10**9)
    if exit == "full" and horizon is not None:
        raise read.wrong("run.horizon", "the exit mode 'full' follows every run to the end")
    if exit != "conditions" and "audit" in run:
        raise read.wrong("run.audit", f"has no effect: the exit mode '{exit}' gives no verdict that needs an audit")
    twins = read.whole(run, "run.twins", 0, 0, 99)
    if twins == 1:
        raise read.wrong("run.twins", "1; a spread needs two at least")
    return Plan(
        workload=workload,
        experiments=experiments,
        half_width=half_width,
        confidence=confidence,
        epochs=_epochs(faults, workload, read),
        sites=_sites(faults, workload, read),
        models=_models(faults, read),
        seed=read.whole(faults, "faults.seed", 1, 0, 2**31 - 1),
        exit=exit,
        horizon=horizon,
        audit=read.number(run, "run.audit", 0.02, 0, 1),
        twins=twins,
        nonfinite=read.one_of(run, "run.nonfinite", NONFINITE_RULES[0], NONFINITE_RULES),
    )


class _Reader:
    """Values of a TOML document by their kinds, mistakes named with the line they stand in."""

    def __init__(self, text: str, path: object):
        self.text, self.path = text, path

    def wrong(self, key: str, message: str) -> InputError:
        """The mistake at a key, or at a table."""
        return InputError(f"{key}: {message[:LONGEST]}", self.path, self._line(key))

    def _line(self, key: str) -> int | None:
        """Where a key or a table stands, or what it stands in."""
        table = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if (header := re.match(r"\s*\[([^\[\]]+)\]", line)) is not None:
                table = ".".join(part.strip(" \t\"'") for part in header[1].split("."))
                if table == key:
                    return number
                continue
            given = re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", line)
            if given is not None and ".".join(filter(None, (table, given[1]))) == key:
                return number
        return self._line(key.rpartition(".")[0]) if "." in key else None

    def keys(self, table: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
        """Refuse a key that is not known."""
        for key in table:
            if key not in known:
                raise self.wrong(f"{prefix}{key[:60]}", f"unknown key{did_you_mean(key, known)}")

    def table(self, document: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A table, empty where there is none."""
        value = document.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"{_shown(value)}; expected a table, [{key}]")
        return value

    @staticmethod
    def _get(table: Mapping[str, Any], key: str, default: Any) -> Any:
        return table.get(key.rpartition(".")[2], default)

    def whole(self, table: Mapping[str, Any], key: str, default: int | None, low: int, high: int) -> Any:
        """A whole number."""
        value = self._get(table, key, default)
        if value is not default and (type(value) is not int or not low <= value <= high):
            raise self.wrong(key, f"{_shown(value)}; expected a whole number from {low} to {high}")
        return value

    def number(self, table: Mapping[str, Any], key: str, default: float | None, low: float, high: float) -> Any:
        """A number."""
        value = self._get(table, key, default)
        is_number = type(value) in (int, float) and low <= value <= high
        if value is not default and (not is_number or str(value) == "-0.0"):
            raise self.wrong(key, f"{_shown(value)}; expected a number from {low} to {high}")
        return value

    def one_of(self, table: Mapping[str, Any], key: str, default: str | None, names: Collection[str]) -> str:
        """A name."""
        value = self._get(table, key, default)
        if not isinstance(value, str) or value not in names:
            near = did_you_mean(value, names) if isinstance(value, str) else f"; expected one of {', '.join(names)}"
            raise self.wrong(key, f"{_shown(value)} is unknown{near}")
        return value

    def list_of(
        self, table: Mapping[str, Any], key: str, default: list[Any] | None, kind: type, expected: str
    ) -> list[Any]:
        """A list of one kind, not empty."""
        value = self._get(table, key, default)
        if not isinstance(value, list) or not value or any(type(item) is not kind for item in value):
            raise self.wrong(key, f"{_shown(value)}; expected a list of {expected}")
        return value


def _shown(value: Any) -> str:
    """A value of a document as a message repeats it; one too deep or too long to print by what it is."""
    try:
        return f"{value!r}"[:SHOWN]
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__}"


def _as_text(value: Any) -> str:
    """A value as a row of an injection file would have it, for its kind to read."""
    return value if isinstance(value, str) else _shown(value)


def _workload(document: Mapping[str, Any], read: _Reader) -> Workload:
    name = document.get("workload")
    if not isinstance(name, str):
        raise InputError("no workload = '…'", read.path)
    try:
        workload = find_workload(name)
    except InputError as error:
        raise read.wrong("workload", str(error).removeprefix("workload ")) from None
    known = {**workload.OPTIONS, **workload.REQUIRED}
    options = read.table(document, "options")
    read.keys(options, known, "options.")
    values = {}
    for key, value in options.items():
        kind = known[key].kind
        try:
            values[key] = kind.parse(_as_text(value))
        except ValueError:
            raise read.wrong(f"options.{key}", kind.wrong(_as_text(value))) from None
    workload = workload.changed(**values)
    if (problem := workload.contradiction()) is not None:
        raise read.wrong(f"options.{problem.option}", problem.message)
    return workload


def _epochs(faults: Mapping[str, Any], workload: Workload, read: _Reader) -> tuple[int, ...]:
    epochs = read.list_of(faults, "faults.epochs", list(range(workload.epochs)), int, "epochs, counted from 0")
    for epoch in epochs:
        if not 0 <= epoch < workload.epochs:
            raise read.wrong(
                "faults.epochs",
                f"{_shown(epoch)} is not among the {workload.epochs} epochs, 0 to {workload.epochs - 1}",
            )
    if len(set(epochs)) < len(epochs):
        raise read.wrong("faults.epochs", "an epoch is listed twice")
    return tuple(sorted(epochs))


def _sites(faults: Mapping[str, Any], workload: Workload, read: _Reader) -> tuple[str, ...]:
    """Sites of the stages asked for that fit a pattern, and none that begins with an exclamation mark."""
    known = list(STAGES.values())
    stages = read.list_of(faults, "faults.stages", known, str, "stages")
    for stage in stages:
        if stage not in known:
            raise read.wrong("faults.stages", f"{stage[:60]!r} is unknown{did_you_mean(stage, known)}")
    patterns = read.list_of(faults, "faults.sites", ["*"], str, "patterns of names, such as basicblock_*_conv1")
    sites = workload.sites()
    chosen = set(sites) if patterns[0].startswith("!") else set()
    for pattern in patterns:
        fitting = fnmatch.filter(sites, pattern.removeprefix("!")) if len(pattern) <= LONGEST else []
        if not fitting:
            raise read.wrong(
                "faults.sites", f"no site of {workload.name} fits {pattern[:60]!r}{did_you_mean(pattern, sites)}"
            )
        chosen = chosen - set(fitting) if pattern.startswith("!") else chosen | set(fitting)
    found = tuple(name for name, site in sites.items() if name in chosen and site.stage in stages)
    if not found:
        raise read.wrong("faults.sites", f"no site of the {' and '.join(stages)} pass is left")
    for name in found:
        if (problem := too_large(sites[name])) is not None:
            raise read.wrong("faults.sites", problem)
    return found


def _models(faults: Mapping[str, Any], read: _Reader) -> tuple[Model, ...]:
    given = faults.get("models", dict.fromkeys(PUBLISHED_MODELS, 1))
    if not isinstance(given, dict) or not given:
        raise read.wrong("faults.models", "expected a table of fault models and weights, such as RD = 1")
    models = []
    for name, entry in given.items():
        key = f"faults.models.{name[:60]}"
        if name not in FAULT_MODELS:
            raise read.wrong(key, f"unknown fault model{did_you_mean(name, FAULT_MODELS)}")
        entry = entry if isinstance(entry, dict) else {"weight": entry}
        read.keys(entry, ("weight", "values", "bits", "histogram"), f"{key}.")
        weight = entry.get("weight", 1)
        if type(weight) not in (int, float) or not 0 < weight < 1e6:
            raise read.wrong(key, f"weight {_shown(weight)}; expected a positive number")
        values = entry.get("values", FAULT_MODELS[name].values)
        if not isinstance(values, str) or values not in VALUES:
            near = did_you_mean(values, VALUES) if isinstance(values, str) else f"; expected one of {', '.join(VALUES)}"
            raise read.wrong(key, f"values {_shown(values)} are unknown{near}")
        models.append(Model(name, float(weight), values, _value_options(entry, values, key, read)))
    return tuple(models)


def _value_options(entry: Mapping[str, Any], values: str, key: str, read: _Reader) -> tuple[tuple[str, Any], ...]:
    needed = {"bit_flip": "bits", "histogram": "histogram"}
    for option in ("bits", "histogram"):
        if option in entry and needed.get(values) != option:
            of = next(source for source, taken in needed.items() if taken == option)
            raise read.wrong(key, f"{option} belongs to the values '{of}', not to '{values}'")
    if values == "histogram":
        path = entry.get("histogram")
        if not isinstance(path, str):
            raise read.wrong(key, "the values 'histogram' need histogram = 'FILE'")
        return (("patterns", read_histogram(pathlib.Path(str(read.path)).parent / path)),)
    if "bits" in entry:
        bits = read.list_of(entry, f"{key}.bits", None, int, f"bits, from 0 (the lowest) to {FLOAT32 - 1}")
        if not all(0 <= bit < FLOAT32 for bit in bits) or len(set(bits)) < len(bits):
            raise read.wrong(key, f"bits {_shown(bits)}; expected distinct bits from 0 (the lowest) to {FLOAT32 - 1}")
        return (("bits", tuple(bits)),)
    return ()
