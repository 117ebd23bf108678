"""The injection file: read, check, write.

One row a key, `key,value[,value…]`.  The published keys are required; every other row is
optional and, where it is absent, the published value holds (docs/science.md, Injection file).
"""

import csv
import dataclasses
import functools
import io
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from models.fault import Fault, Operand, make_fault
from models.site import Site, list_sites

from ..data import DATASETS
from ..data.batches import steps_per_epoch
from ..machine.errors import InputError, did_you_mean
from ..machine.files import read_text, write_text
from ..training.workloads import (
    AUGMENTATIONS,
    DATASET_OPTIONS,
    WORKLOADS,
    Workload,
    contradiction,
    format_option,
    make_network,
    make_workload,
)
from .fault_models import FAULT_MODELS

STAGES = {"fwrd_inject": "forward", "bkwd_inject": "backward"}
LARGEST_SITE = 2**31 - 1  # elements of its operands, put end to end: positions are 32-bit integers
# What anyone writes for a number; Python's float would also take 1_5, other scripts' digits, -nan.
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
NO_NUMBER = ("nan", "inf", "-inf")
OPTIONS = ("dataset", "width", "blocks", "dropout", "augmentation", "workers", "batch_size", "epochs")
SCALE = ("dataset", "width", "blocks", "epochs", "batch_size", "workers")  # those that say how far places count


@dataclasses.dataclass(frozen=True)
class Injection:
    """A fault at one (epoch, step) of one workload.

    Attributes:
      workload: with all its options.
      stage: `fwrd_inject` or `bkwd_inject`.
      fmodel: published name of the fault model; it selects the operand.
      worker, epoch, step: where, counted from 0.
      layer: name of the site.
      positions: coordinates in the operand of one worker.
      values: what each of them becomes, rounded to the operand's type.
      horizon: steps to go on after the fault; None goes on to the end of the training.
    """

    workload: Workload
    stage: str
    fmodel: str
    worker: int
    layer: str
    epoch: int
    step: int
    positions: tuple[tuple[int, ...], ...]
    values: tuple[float, ...]
    horizon: int | None = None

    @property
    def operand(self) -> Operand:
        """The operand struck."""
        return FAULT_MODELS[self.fmodel].operand

    @property
    def site(self) -> Site:
        """The operation struck, with its operands' shapes."""
        return sites_of(self.workload)[self.layer]

    @property
    def steps_per_epoch(self) -> int:
        """Steps in each epoch of the workload."""
        return steps_per_epoch(DATASETS[self.workload.dataset].train, self.workload.batch_size)

    def fault(self) -> Fault:
        """The fault as the compiled step takes it."""
        shape = self.site.shapes[self.operand]
        index = np.ravel_multi_index(np.array(self.positions).T, shape)
        values = np.array(self.values, np.float32).view(np.uint32)
        return make_fault(self.site, self.operand, self.worker, index, flip=values)

    def sentence(self) -> str:
        """The fault in English, without old values, which only the run can tell."""
        w, count = self.workload, len(self.positions)
        where = "/".join(map(str, self.positions[0]))
        what = f"element {where} becomes {self.values[0]!r}"
        if count > 1:
            last = "/".join(map(str, self.positions[-1]))
            what = f"{count} elements from {where} to {last} are overwritten"
        shape = "×".join(map(str, self.site.shapes[self.operand]))
        return (
            f"In epoch {self.epoch}, step {self.step} of {w.name} on {w.dataset}, in the {self.site.stage} pass "
            f"of worker {self.worker}, {what} in the {self.operand.name.lower()} [{shape}] of {self.layer}."
        )


def sites_of(workload: Workload) -> dict[str, Site]:
    """The sites of a workload's network, by name."""
    return _sites(workload.network, workload.width, workload.blocks, workload.worker_batch)


@functools.lru_cache(maxsize=256)
def _sites(network, width, blocks, worker_batch):
    workload = Workload("", network=network, width=width, blocks=blocks)
    return list_sites(make_network(workload), jax.ShapeDtypeStruct((worker_batch, 32, 32, 3), "float32"))


def _whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    def read(text):
        if not text.isascii() or not text.isdecimal() or len(text) > 12 or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return read


def _number(valid: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    def read(text):
        if not NUMBER.fullmatch(text) or not valid(float(text)):
            raise ValueError(expected)
        return float(text)

    return read


def _value(text: str) -> float:
    """A float32, `nan` and `inf` included; what would only round to infinity, or to zero, is a mistake."""
    if text in NO_NUMBER:
        return float(text)
    if not NUMBER.fullmatch(text):
        raise ValueError("a number such as -1.5e10, nan or inf")
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.float32(float(text))
    if np.isinf(rounded):
        raise ValueError("a float32, at most 3.4028235e38 in size (or inf)")
    digits = re.split("[eE]", text)[0]
    if rounded == 0 and digits.strip("+-.0"):
        raise ValueError("a float32, at least 1.4e-45 in size (or 0)")
    return float(text)


def _position(text: str) -> tuple[int, ...]:
    parts = text.split("/")
    try:
        return tuple(_whole(0)(part) for part in parts)
    except ValueError:
        raise ValueError("coordinates such as 107/3/3/85, counted from 0") from None


def _blocks(text: str) -> tuple[int, ...]:
    try:
        return tuple(_whole(1)(part) for part in text.split("/"))
    except ValueError:
        raise ValueError("a count for each stage, such as 2/2/2/2") from None


def _one_of(names) -> Callable[[str], str]:
    def read(text):
        if text not in names:
            raise LookupError(did_you_mean(text, names))
        return text

    return read


# Required rows, in the published order, then optional ones: how each value is read.
REQUIRED: dict[str, Callable[[str], Any]] = {
    "model": _one_of(WORKLOADS),
    "stage": _one_of(STAGES),
    "fmodel": _one_of(FAULT_MODELS),
    "target_worker": _whole(0),
    "target_layer": str,
    "target_epoch": _whole(0),
    "target_step": _whole(0),
    "inj_pos": _position,
    "inj_values": _value,
    "learning_rate": _number(lambda n: 1e-30 < n < 1e30, "a positive number, from 1e-30 to 1e30"),
    "seed": _whole(0),
}
OPTIONAL: dict[str, Callable[[str], Any]] = {
    "dataset": _one_of(DATASETS),
    "width": _whole(1, 1024),
    "blocks": _blocks,
    "dropout": _number(lambda n: 0 <= n < 1, "a rate in [0, 1)"),
    "augmentation": _one_of(AUGMENTATIONS),
    "workers": _whole(1, 4096),
    "batch_size": _whole(1, 2**20),
    "epochs": _whole(1, 100_000),
    "horizon": _whole(0),
}
LISTS = ("inj_pos", "inj_values")


def read_injection(path: str | pathlib.Path) -> Injection:
    """Read and check an injection file; everything that can be wrong with it is found here.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    return parse_injection(read_text(path), path)


def parse_injection(text: str, path: object = "injection") -> Injection:
    """As `read_injection`, from the file's text; `path` is used in messages."""
    rows = _rows(text, path)
    fields, lines = {}, {key: line for key, (line, _) in rows.items()}
    for key, (line, values) in rows.items():
        fields[key] = _fields(key, values, path, line)
    injection = _build(fields)

    w = injection.workload

    def wrong(key, message):
        return InputError(message, path, lines.get(key))

    def outside(key, message):
        return wrong(key, message + _other_scale(w))

    if (problem := contradiction(w)) is not None:
        key, message = problem
        raise wrong(key if key in lines else "workers", message)
    for key, value, limit, what in (
        ("target_worker", injection.worker, w.workers, "workers"),
        ("target_epoch", injection.epoch, w.epochs, "epochs"),
        ("target_step", injection.step, injection.steps_per_epoch, f"steps of an epoch on {w.dataset}"),
    ):
        if value >= limit:
            raise outside(key, f"{key} {value} is not among the {limit} {what}; expected 0 to {limit - 1}")

    sites = sites_of(w)
    if injection.layer not in sites:
        of, flag, near = w.name, "", did_you_mean(injection.layer, sites)
        if w.blocks != WORKLOADS[w.name].blocks:
            of, flag = f"{w.name} with blocks {format_option(w.blocks)}", f" --blocks {format_option(w.blocks)}"
        hint = f" (list them: python -m fault_injection sites {w.name}{flag})"
        raise wrong("target_layer", f"target_layer {injection.layer[:60]!r} is not a site of {of}{near}{hint}")
    if injection.site.stage != STAGES[injection.stage]:
        raise wrong(
            "target_layer",
            f"target_layer {injection.layer!r} is a {injection.site.stage} operation, but stage is "
            f"{injection.stage!r}; {_other_site(injection, sites)}",
        )
    _check_positions(injection, wrong, outside)
    return injection


def _other_scale(workload) -> str:
    """What else may be wrong with a place outside, where rows say another scale than the published one."""
    published = WORKLOADS[workload.name]
    rows = [name for name in SCALE if getattr(workload, name) != getattr(published, name)]
    if not rows:
        return ""
    flags = " ".join(f"--{name.replace('_', '-')} {format_option(getattr(workload, name))}" for name in rows)
    return (
        "; if this file was written for the published scale, take out its rows "
        f"{', '.join(rows)}, then: python -m fault_injection scale FILE {flags}"
    )


def _other_site(injection, sites):
    base = injection.layer.removesuffix("_grad_in").removesuffix("_grad_wt")
    if injection.site.stage == "backward":
        return f"did you mean '{base}', or the stage 'bkwd_inject'?"
    return f"did you mean '{base}_grad_in' or '{base}_grad_wt', or the stage 'fwrd_inject'?"


def _rows(text, path) -> dict[str, tuple[int, list[str]]]:
    """`{key: (line, values)}` of the rows, each key known and given once, none required missing."""
    rows: dict[str, tuple[int, list[str]]] = {}
    for line, raw in enumerate(re.split("\r\n|\n|\r", text), 1):  # as editors count; splitlines() knows more ends
        if not raw.strip():
            continue
        try:
            key, *values = (cell.strip() for cell in next(csv.reader([raw], strict=True)))
        except csv.Error as error:
            raise InputError(f"not a row of comma-separated values: {error}", path, line) from None
        if key not in REQUIRED and key not in OPTIONAL:
            raise InputError(f"unknown key {key[:60]!r}{did_you_mean(key, [*REQUIRED, *OPTIONAL])}", path, line)
        if key in rows:
            raise InputError(f"{key} is given twice, first in line {rows[key][0]}", path, line)
        rows[key] = line, values
    for key in REQUIRED:
        if key not in rows:
            raise InputError(f"no row '{key},…'", path)
    return rows


def _fields(key, values, path, line):
    """The value of a row, or the tuple of them for the two rows that are lists."""
    read = (REQUIRED | OPTIONAL)[key]
    if key not in LISTS and len(values) != 1:
        raise InputError(f"{key} takes one value, found {len(values)}", path, line)
    if not values:
        raise InputError(f"{key} takes at least one value, found none", path, line)
    result = []
    for value in values:
        try:
            result.append(read(value))
        except LookupError as hint:
            raise InputError(f"{key} {value[:60]!r} is unknown{hint.args[0]}", path, line) from None
        except ValueError as expected:
            raise InputError(f"{key} {value[:60]!r}; expected {expected}", path, line) from None
    return tuple(result) if key in LISTS else result[0]


def _build(fields) -> Injection:
    options = {name: fields[name] for name in OPTIONS if name in fields}
    options |= {"learning_rate": fields["learning_rate"], "seed": fields["seed"]}
    return Injection(
        workload=make_workload(fields["model"], **options),
        stage=fields["stage"],
        fmodel=fields["fmodel"],
        worker=fields["target_worker"],
        layer=fields["target_layer"],
        epoch=fields["target_epoch"],
        step=fields["target_step"],
        positions=fields["inj_pos"],
        values=fields["inj_values"],
        horizon=fields.get("horizon"),
    )


def _check_positions(injection, wrong, outside):
    shape = injection.site.shapes[injection.operand]
    operand = f"the {injection.operand.name.lower()} of {injection.layer}, which is {list(shape)}"
    if (elements := sum(map(math.prod, injection.site.shapes.values()))) > LARGEST_SITE:
        most = f"the operands of {injection.layer} have {elements} elements, expected at most {LARGEST_SITE}"
        raise wrong("batch_size", f"{most}; lower batch_size or width")
    seen = set()
    for position in injection.positions:
        text = "/".join(map(str, position))[:60]
        if len(position) != len(shape):
            raise wrong("inj_pos", f"inj_pos {text} has {len(position)} coordinates, not {len(shape)} as {operand}")
        for axis, (at, size) in enumerate(zip(position, shape, strict=True)):
            if at >= size:
                place = f"coordinate {axis + 1} is {at}, expected 0 to {size - 1}"
                raise outside("inj_pos", f"inj_pos {text} lies outside {operand}: {place}")
        if position in seen:
            raise wrong("inj_pos", f"inj_pos {text} is listed twice")
        seen.add(position)
    if len(injection.values) != len(injection.positions):
        found = f"{len(injection.values)} inj_values for {len(injection.positions)} inj_pos"
        raise wrong("inj_values", f"{found}; expected one value for each position")


def format_injection(injection: Injection) -> str:
    """The file's text: the published rows, then the options that differ from what their absence means."""
    w = injection.workload
    rows: list[list[object]] = [
        ["model", w.name],
        ["stage", injection.stage],
        ["fmodel", injection.fmodel],
        ["target_worker", injection.worker],
        ["target_layer", injection.layer],
        ["target_epoch", injection.epoch],
        ["target_step", injection.step],
        ["inj_pos", *("/".join(map(str, position)) for position in injection.positions)],
        ["inj_values", *map(repr, injection.values)],
        ["learning_rate", repr(w.learning_rate)],
        ["seed", w.seed],
    ]
    implied = dataclasses.replace(WORKLOADS[w.name], **DATASET_OPTIONS[w.dataset])
    for name in OPTIONS:
        if getattr(w, name) != getattr(implied, name):
            rows.append([name, format_option(getattr(w, name))])
    if injection.horizon is not None:
        rows.append(["horizon", injection.horizon])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def write_injection(path: str | pathlib.Path, injection: Injection) -> None:
    """Write the file; reading it gives an equal injection."""
    write_text(path, format_injection(injection))
