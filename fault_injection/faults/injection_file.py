"""The injection file: read, check, write.

One row per key, `key,value[,value…]`; a line that begins with `#` is a comment.  The published
keys are required, except that `inj_bits` can replace `inj_values`.  Every option of the workload
is a further, optional row; where it is absent, the published value holds (docs/science.md,
Injection file).  A further fault has rows of its own, see `fault_rows`.
"""

import collections
import csv
import io
import math
import operator
import pathlib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence

from ..machine.errors import InputError, did_you_mean
from ..machine.files import read_text, write_text
from ..machine.reading import SHOWN, Kind, one_of, whole
from ..models.fault import Operand
from ..models.site import Site
from ..seam.measure import NONFINITE_RULES
from ..seam.stages import CHECKPOINT, STATE
from ..seam.workload import Workload, format_option
from ..workloads.registry import find_workload
from .element_bits import POSITION, ElementBits, Position, format_new_bits, format_position, new_bits
from .fault_models import FAULT_MODELS
from .fault_rows import FAULT_ROWS, OWN_ROWS, rows_of_faults
from .injection import ALL, STAGES, Injection, clash, too_large
from .lanes import LANE, lane_of, positions_of
from .number_formats import format_of
from .profiles.reader import find_profile
from .rows import Row, Rows, SetUp, list_rows, said, shown_option
from .schedule import ONCE, SCHEDULE, Schedule
from .value_cells import check_agreement, check_whole, value_of

MOST_OPERATIONS = 64  # of a profile at a step: each fault is compiled for each operation
ANY_NAME = Kind(str, lambda text: "a name")


def read_injection(path: str | pathlib.Path) -> Injection:
    """Read and check an injection file; everything that can be wrong with it is found here.

    >>> injection = read_injection("injections/published/resnet18_nobn-slow_degrade.csv")
    >>> injection.epoch, injection.positions
    (28, ((0, 0, 76, 24),))

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    return parse_injection(read_text(path), path)


def parse_injection(text: str, path: object = "injection") -> Injection:
    """As `read_injection`, from the file's text; `path` is used in messages."""
    if str(path).lower().endswith(".toml") or re.search(r"^[ \t]*\[(faults|run|options)\]", text, re.MULTILINE):
        command = f"python -m fault_injection campaign {shlex.quote(str(path))} --out DIR"
        raise InputError(f"this is the plan of a campaign, not an injection file; run it with: {command}", path)
    # A step of one's own is called a workload, in a row of the published format that is called `model`.
    listed = [row._replace(key="model") if row.key == "workload" else row for row in list_rows(text, path)]
    published = _published_workload(listed, path)
    every = rows_of_faults(listed, path, published)
    each = [(rows, fault) for rows in every for fault in _faults(rows, published)]
    faults = [fault for _, fault in each]
    for number, (rows, fault) in enumerate(each):
        problems = [clash(sooner, fault) for sooner in faults[:number]]
        problem = next(filter(None, problems), None) or _too_late(fault, faults)
        if problem is not None:
            raise rows.wrong("target" if fault.of_leaf else "target_layer", problem)
    return Injection.together(*faults)


def _too_late(fault: Injection, faults: Sequence[Injection]) -> str | None:
    """Why a run has ended before one of its faults strikes; None where it has not."""
    after = fault.number - min(one.number for one in faults)
    if fault.horizon is None or after <= fault.horizon:
        return None
    what = f"fault at {fault.layer} strikes {after} steps after the first"
    return f"the {what}, and the row horizon ends the run {fault.horizon} steps after it; expected a longer horizon"


def _faults(rows: Rows, published: Workload) -> list[Injection]:
    """The faults that the rows of one describe: one, but of a profile one for each operation that it strikes."""
    if "profile" not in rows:
        return [_fault(rows, published)]
    name, *draw = rows.every("profile", ANY_NAME)
    if len(draw) > 1 or (draw and not re.fullmatch("[0-9]{1,9}", draw[0])):
        raise rows.wrong("profile", f"profile takes a name and perhaps a number, found {', '.join(draw)[:SHOWN]!r}")
    try:
        profile = find_profile(name)
    except InputError as error:
        raise rows.wrong("profile", str(error)) from None
    number = int(draw[0]) if draw else 0
    known = {**published.REQUIRED, **published.OPTIONS}
    setup = SetUp(rows, published, {key: rows.one(key, option.kind) for key, option in known.items() if key in rows})
    _check_options(setup)
    worker = rows.one("target_worker", whole(0)) if "target_worker" in rows else profile.worker
    if worker is None:
        raise rows.wrong("profile", f"the profile {name} names no worker; expected a row 'target_worker,…'")
    epoch, step = _check_when(setup, worker)
    if "target_layer" in rows:
        layer = rows.one("target_layer", ANY_NAME)
        site = _find_site(setup, layer, None)
        if (why := profile.refuses(site, setup.workload)) is not None:
            raise rows.wrong("target_layer", f"the profile {name} does not strike {layer}: {why}")
        sites = {layer: site}
    else:
        sites = profile.chosen(setup.workload, number)
        if not 0 < len(sites) <= MOST_OPERATIONS:
            what = f"the profile {name} strikes {len(sites)} operations of {setup.workload.name}"
            expected = (
                f"expected 1 to {MOST_OPERATIONS}; name one in a row 'target_layer,…', or let the profile say fewer"
            )
            raise rows.wrong("profile", f"{what}; {expected}")
    horizon, nonfinite, schedule = _of_the_run(rows, profile.schedule.of_device(number))
    return [
        Injection(
            *(setup.workload, _stage_of(site), "", worker, layer, epoch, step, ()),
            horizon=horizon,
            nonfinite=nonfinite,
            schedule=schedule,
            profile=profile,
            draw=number,
        )
        for layer, site in sites.items()
    ]


def _stage_of(site: Site) -> str:
    """The stage of an operation, as files name it."""
    return next(published for published, stage in STAGES.items() if stage == site.stage)


def _of_the_run(rows: Rows, schedule: Schedule = ONCE) -> tuple[int | None, str, Schedule]:
    """The horizon, the rule of what is not finite, and the schedule: by default this one."""
    horizon = rows.one("horizon", whole(0)) if "horizon" in rows else None
    nonfinite = rows.one("nonfinite", one_of(NONFINITE_RULES)) if "nonfinite" in rows else NONFINITE_RULES[0]
    return horizon, nonfinite, rows.one("schedule", SCHEDULE) if "schedule" in rows else schedule


def _check_when(setup: SetUp, worker: int | None) -> tuple[int, int]:
    """Epoch and step, which are there, as is the worker, if one is given."""
    epoch, step = (setup.rows.one(f"target_{place}", whole(0)) for place in ("epoch", "step"))
    if worker is not None:
        _check_address(setup, "worker", worker, lambda workload: workload.workers, "workers")
    _check_address(setup, "epoch", epoch, lambda workload: workload.epochs, "epochs")
    _check_address(setup, "step", step, lambda workload: workload.steps_per_epoch, "steps of an epoch")
    return epoch, step


def _fault(rows: Rows, published: Workload) -> Injection:
    """One fault of listed elements."""
    known = {**published.REQUIRED, **published.OPTIONS}
    of_leaf = "target" in rows
    worker = rows.one("target_worker", whole(0)) if "target_worker" in rows else ALL
    if of_leaf:
        stage, fmodel, layer = "", "", rows.one("target", ANY_NAME)
    else:
        stage, fmodel = rows.one("stage", one_of(STAGES)), rows.one("fmodel", one_of(FAULT_MODELS))
        layer = rows.one("target_layer", ANY_NAME)
    listed_positions = rows.every("inj_pos", POSITION) if "inj_pos" in rows else ()
    options = {name: rows.one(name, option.kind) for name, option in known.items() if name in rows}
    horizon, nonfinite, schedule = _of_the_run(rows)

    setup = SetUp(rows, published, options)
    _check_options(setup)
    checked = worker != ALL and not layer.startswith(f"{CHECKPOINT}/")  # of those that load it, see `_find_leaf`
    epoch, step = _check_when(setup, worker if checked else None)
    site = _find_leaf(setup, layer) if of_leaf else _find_site(setup, layer, stage)
    stage, operand = stage or site.stage, FAULT_MODELS[fmodel].operand if fmodel else Operand.INPUT
    positions = listed_positions or _lane(rows, site, operand)
    _check_positions(setup, "inj_pos", positions, layer, operand)
    often, times = collections.Counter(positions).most_common(1)[0]
    if times > 1:
        raise rows.wrong("inj_pos", f"inj_pos {_shown(often)} is listed {'twice' if times == 2 else f'{times} times'}")

    format = format_of(site.operands[operand].dtype)
    values = rows.every("inj_values", value_of(format)) if "inj_values" in rows else ()
    check_whole(rows, values, layer, operand, site.operands[operand].dtype)

    bits: tuple[ElementBits, ...] = ()
    if "inj_bits" in rows:
        bits = rows.every("inj_bits", new_bits(site.operands[operand].dtype))
        _check_positions(setup, "inj_bits", [new.source for new in bits if new.source is not None], layer, operand)
    if not listed_positions:  # one cell for the whole lane
        values = values * len(positions) if len(values) == 1 else values
        bits = bits * len(positions) if len(bits) == 1 else bits
    for key, given in (("inj_values", values), ("inj_bits", bits)):
        if key in rows and len(given) != len(positions):
            found = f"{len(given)} {key} for {len(positions)} inj_pos"
            raise rows.wrong(
                key, f"{found}; expected one {'value' if key == 'inj_values' else 'cell'} for each position"
            )
    if values and bits:
        check_agreement(rows, values, bits, site.operands[operand].dtype)
        values = ()
    place = (worker, layer, epoch, step, positions)
    return Injection(setup.workload, stage, fmodel, *place, values, bits, horizon, nonfinite, schedule)


def _published_workload(listed: list[Row], path: object) -> Workload:
    """The workload that the row `model` names; its options say which further rows there can be."""
    for row in listed:
        if row.key == "model":
            name = Rows(path, {"model": row}).one("model", ANY_NAME)
            try:
                return find_workload(name)
            except InputError as error:
                raise InputError(said(error), path, row.line) from None
    for row in listed:  # perhaps it is misspelled
        if row.key not in FAULT_ROWS and "'model'" in (near := did_you_mean(row.key, (*FAULT_ROWS, *OWN_ROWS))):
            raise InputError(f"unknown key {row.key[:SHOWN]!r}{near}", path, row.line)
    raise InputError("no row 'model,…'", path)


def _lane(rows: Rows, site: Site, operand: Operand) -> tuple[Position, ...]:
    """The positions of the row `inj_lane`."""
    lane, lanes = rows.one("inj_lane", LANE)
    found = positions_of(lane, lanes, site.shapes[operand])
    if not found:
        size = math.prod(site.shapes[operand])
        raise rows.wrong(
            "inj_lane", f"inj_lane {lane}/{lanes} computes nothing: {site.named(operand)} has {size} elements"
        )
    return found


def _check_options(setup: SetUp) -> None:
    if (problem := setup.workload.contradiction()) is None:
        return
    differing = setup.differing()
    names = setup.at_fault(differing, lambda other: True) or [name for name in differing if name == problem.option]
    key = problem.option if problem.option in setup.rows else next(iter(names), "model")
    raise setup.rows.wrong(key, said(problem.message) + setup.blame(names))


def _check_address(setup: SetUp, place: str, at: int, limit_of: Callable[[Workload], int], what: str) -> None:
    if at >= (limit := limit_of(setup.workload)):
        message = f"target_{place} {at} is not among the {limit} {what}; expected 0 to {limit - 1}"
        raise setup.outside(f"target_{place}", message, place, lambda other: at < limit_of(other))


def _find_site(setup: SetUp, layer: str, stage: str | None) -> Site:
    """The site of this name, in this stage if one is given, with operands small enough."""
    workload, sites = setup.workload, setup.workload.sites()
    if layer not in sites:
        names = setup.differing("layer")
        of = " ".join([workload.name, *(f"with {name} {shown_option(setup.options[name])}" for name in names)])
        hint = f" (list them: python -m fault_injection sites {workload.name}{setup.flags(names)})"
        if names and layer in setup.published.sites():
            why = setup.blame(setup.at_fault(names, lambda other: layer in other.sites()))
        else:
            why = did_you_mean(layer, sites)
        raise setup.rows.wrong("target_layer", f"target_layer {layer[:SHOWN]!r} is not a site of {of}{why}{hint}")
    site = sites[layer]
    if stage is not None and site.stage != STAGES[stage]:
        meant = [other.name for other in sites.values() if (other.layer, other.stage) == (site.layer, STAGES[stage])]
        meant.append(f"the stage '{next(name for name, of in STAGES.items() if of == site.stage)}'")
        raise setup.rows.wrong(
            "target_layer",
            f"target_layer {layer!r} is a {site.stage} operation, but stage is {stage!r}; "
            f"did you mean {' or '.join([*map(repr, meant[:-1]), meant[-1]])}?",
        )
    if (message := too_large(site)) is not None:
        names = setup.at_fault(
            setup.differing("position"), lambda other: layer in other.sites() and not too_large(other.sites()[layer])
        )
        raise setup.rows.wrong(next(iter(names), "target_layer"), message + setup.blame(names))
    return site


def _find_leaf(setup: SetUp, name: str) -> Site:
    """The leaf of this name: of the state, a gradient, or the update; with a worker where it is one worker's."""
    leaves, of = setup.workload.leaves(), f"of {setup.workload.name}"
    if name not in leaves:
        hint = did_you_mean(name, leaves) or f" (list them: python -m fault_injection sites {setup.workload.name})"
        raise setup.rows.wrong("target", f"target {name[:SHOWN]!r} is no leaf {of}{hint}")
    owners = setup.workload.owners(leaves[name])
    if owners and "target_worker" not in setup.rows:
        raise setup.rows.wrong("target", f"target {name!r} is one worker's; expected a row 'target_worker,…'")
    if owners and setup.rows.one("target_worker", whole(0)) >= owners:
        raise setup.rows.wrong(
            "target_worker", f"target_worker is not among the {owners} that load {name!r}; expected 0 to {owners - 1}"
        )
    if not owners and "target_worker" in setup.rows:
        how = ", or give each its own copy: strategy,ddp" if leaves[name].stage == STATE else ""
        raise setup.rows.wrong("target_worker", f"all workers share {name!r}; leave out target_worker{how}")
    return leaves[name]


def _check_positions(setup: SetUp, key: str, positions: Iterable[Position], layer: str, operand: Operand) -> None:
    """Refuse coordinates that are not as many as the operand has axes, or lie outside it."""

    def inside(position: Position, shape: tuple[int, ...]) -> bool:
        return len(position) == len(shape) and all(map(operator.lt, position, shape))

    site = setup.workload.target(layer)
    shape = site.shapes[operand]
    of = f"{site.named(operand)}, which is {list(shape)}"
    wrong = next((position for position in positions if not inside(position, shape)), None)
    if wrong is None:
        return
    if len(wrong) != len(shape):
        count = f"{len(wrong)} coordinates, not {len(shape)}"
        raise setup.rows.wrong(key, f"{key} {_shown(wrong)} has {count} as {of}")
    axis = next(axis for axis, size in enumerate(shape) if wrong[axis] >= size)
    found = f"coordinate {axis + 1} is {wrong[axis]}, expected 0 to {shape[axis] - 1}"
    raise setup.outside(
        key,
        f"{key} {_shown(wrong)} lies outside {of}: {found}",
        "position",
        lambda other: (site := other.find(layer)) is not None and inside(wrong, site.shapes[operand]),
    )


def _shown(position: Position) -> str:
    return format_position(position)[:SHOWN]


def format_injection(injection: Injection) -> str:
    """The file's text: the published rows, then the options that differ from what their absence means.

    `parse_injection` of it gives an equal injection.
    """
    options = [[name, format_option(value)] for name, value in _stated_options(injection.workload).items()]
    rows: list[list[object]] = [["model", injection.workload.name], *_rows_of(injection), *options]
    if injection.schedule != _unsaid(injection):
        rows.append(["schedule", injection.schedule])
    if injection.horizon is not None:
        rows.append(["horizon", injection.horizon])
    if injection.nonfinite != NONFINITE_RULES[0]:
        rows.append(["nonfinite", injection.nonfinite])
    for number, one in enumerate(injection.also, 2):
        of_one = [*_rows_of(one), *([] if one.schedule == _unsaid(one) else [["schedule", one.schedule]])]
        rows += [[f"{key}.{number}", *cells] for key, *cells in of_one]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _unsaid(injection: Injection) -> Schedule:
    """The schedule of a fault whose file does not say one."""
    return ONCE if injection.profile is None else injection.profile.schedule.of_device(injection.draw)


def _rows_of(injection: Injection) -> list[list[object]]:
    """The rows of the first fault alone, but for its schedule."""
    at: list[list[object]] = [["target_epoch", injection.epoch], ["target_step", injection.step]]
    if injection.profile is not None:
        said = ["profile", injection.profile.name, *([injection.draw] if injection.draw else [])]
        return [said, ["target_worker", injection.worker], ["target_layer", injection.layer], *at]
    where: list[object] = ["inj_pos", *map(format_position, injection.positions)]
    count, lane = len(injection.positions), lane_of(injection.positions, injection.tensor.shape)
    if lane is not None and len({*map(repr, injection.values or injection.bits)}) == 1:
        where, count = ["inj_lane", format_position(lane)], 1
    if injection.bits:
        dtype = injection.tensor.dtype
        become: list[object] = ["inj_bits", *(format_new_bits(new, dtype) for new in injection.bits[:count])]
    else:
        become = ["inj_values", *map(repr, injection.values[:count])]
    operation: list[list[object]] = [
        ["stage", injection.stage],
        ["fmodel", injection.fmodel],
        ["target_worker", injection.worker],
        ["target_layer", injection.layer],
    ]
    leaf: list[list[object]] = [["target", injection.layer]]
    if injection.worker != ALL:
        leaf.append(["target_worker", injection.worker])
    return [*(leaf if injection.of_leaf else operation), *at, where, become]


def _stated_options(workload: Workload) -> dict[str, object]:
    """The options that a file has to state: the required ones, and those whose absence would change any."""
    published, stated = find_workload(workload.name), workload.options()
    for name in workload.OPTIONS:
        others = {key: value for key, value in stated.items() if key != name}
        if published.changed(**others).options() == workload.options():
            stated = others
    return stated


def write_injection(path: str | pathlib.Path, injection: Injection) -> None:
    """Write the file; reading it gives an equal injection."""
    write_text(path, format_injection(injection))
