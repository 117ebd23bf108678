"""A map: how a fault spreads, tensor by tensor and step by step, beside the golden run.

The faulty run is taken twice over the steps that a map covers: as a replay takes it, and in lockstep with the golden
run (`lockstep`).  Both have to come to the same bits after every step, so a map is of the run that a replay judges.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..faults.injection import Injection
from ..machine.errors import Untrustworthy
from ..models.fault import each_of
from ..models.observe.reductions import WHOLE, WHOLE_RESULTS
from ..models.site import Site
from ..seam.leaves import Role, State
from ..seam.program import Program
from ..seam.report import StepReport
from ..seam.stages import BESIDE
from ..seam.strategies import Sum
from ..seam.trees import fetched
from .course import Course
from .exits import EXACT, NONFINITE
from .follow import follow
from .golden_run import Golden, Repeats, nudge
from .lockstep import Lockstep, StepDifferences
from .noise import noise_floor
from .progress import Progress
from .records import Recorder, Run, rows_of
from .replay_run import complete_golden, recorded_beside
from .steps import Address, Observer, addresses, horizon_or_end, numbered
from .strikes import Strike, strikes_of, struck_steps

FORWARD, LOSS, BACKWARD, GRADIENT = "forward", "loss", "backward", "gradient"  # kinds of rows before the state's
UPDATE = "update"  # a product that an optimizer makes of gradients
RESULTS = FORWARD, BACKWARD, UPDATE  # of operations
STATE = {  # kinds of the state's rows, in the order in which a step makes them
    "statistic": (Role.STATISTIC, Role.VARIANCE),
    "history": (Role.HISTORY,),
    "other": (Role.OTHER,),
    "parameter": (Role.PARAMETER,),
}
KINDS = (FORWARD, LOSS, BACKWARD, GRADIENT, UPDATE, *STATE)
ENDS = {NONFINITE: "a loss, or what the rule looks at, is not finite", EXACT: "the state is the golden one again"}


class MapRow(NamedTuple):
    """One tensor of a step.

    Attributes:
      name: of the operation whose result it is, of the gradient, or of the leaf of the state.
      kind: one of `KINDS`.
      layer: that it belongs to.
      size: elements.
    """

    name: str
    kind: str
    layer: str
    size: int


@dataclasses.dataclass(frozen=True)
class FaultMap:
    """How a fault spreads.

    Attributes:
      injection: the fault and its workload.
      rows: the tensors of a step, in the order of the computation: [n].
      steps: those that the map covers, the first one struck first: [s].
      struck: at which places of `steps` each fault strikes, by the name of what it strikes.
      differs: int64 [n,s], elements whose bits differ from the golden ones.
      nonfinite, golden_nonfinite: int64 [n,s], elements that are not finite.
      largest, rms: float64 [n,s], the largest and the root-mean-square difference, of elements finite in both.
      golden_largest, golden_rms: float64 [n,s], the same of the golden tensors.
      loss: float64 [2,s], of the golden run and of the faulty one.
      ended: why the run ended before the steps asked for, else empty.
      left_out: what the map does not show, one sentence each.
      twin: float64 [n,s], root-mean-square differences of a twin that begins where the fault strikes; None without.
    """

    injection: Injection
    rows: tuple[MapRow, ...]
    steps: tuple[Address, ...]
    struck: dict[str, tuple[int, ...]]
    differs: np.ndarray
    nonfinite: np.ndarray
    golden_nonfinite: np.ndarray
    largest: np.ndarray
    rms: np.ndarray
    golden_largest: np.ndarray
    golden_rms: np.ndarray
    loss: np.ndarray
    ended: str
    left_out: tuple[str, ...]
    twin: np.ndarray | None = None

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n,1], elements of each tensor, at least 1."""
        return np.array([[max(row.size, 1)] for row in self.rows])

    @property
    def share(self) -> np.ndarray:
        """float64 [n,s], the share of elements that differ."""
        return self.differs / self.sizes

    @property
    def relative_largest(self) -> np.ndarray:
        """float64 [n,s], the largest difference over the largest golden value; infinite over 0."""
        return _over(self.largest, self.golden_largest)

    @property
    def relative_rms(self) -> np.ndarray:
        """float64 [n,s], the same of root-mean-square values."""
        return _over(self.rms, self.golden_rms)

    def first(self, row: int) -> int | None:
        """The place among `steps` where a tensor first differs; None where it never does."""
        found = np.flatnonzero(self.differs[row])
        return int(found[0]) if found.size else None

    def of_kind(self, *kinds: str) -> list[int]:
        """Places of the rows of some kinds."""
        return [place for place, row in enumerate(self.rows) if row.kind in kinds]


def _over(differences: np.ndarray, golden: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = np.where(differences == 0, 0.0, differences / golden)
    return found


def told_by(program: Program) -> tuple[frozenset[str], tuple[str, ...]]:
    """What the steps of a program have to tell for a map, and what they cannot tell, one sentence each."""
    if program.state.strategy.gradients is Sum.NONE:
        return frozenset({WHOLE_RESULTS}), (
            "gradients of parameters: each worker follows its own, see its grad_wt rows",
        )
    if program.extras.unreported(WHOLE):
        why = "gradients of parameters: a step of one's own does not say them; see its grad_wt rows"
        return frozenset({WHOLE_RESULTS}), (why,)
    return frozenset({WHOLE_RESULTS, WHOLE}), ()


def mapped(injection: Injection, golden: Golden, telling: Program, steps: int, twin: bool = False) -> FaultMap:
    """Take the steps of a faulty run, and say how they differ from the golden ones.

    Args:
      golden: of the injection's workload, by a program that can strike its sites; see `golden_for`.
      telling: the same program, whose steps tell what `told_by` says.
      steps: to follow the fault, after the first step struck.
      twin: whether a twin that begins there is followed, too.

    Raises:
      NotRepeated: a golden step differs from the golden run.
      Untrustworthy: the faulty run in lockstep differs from the replay.
      InputError, OSError: the dataset cannot be read, or a file not written.
    """
    w, program = injection.workload, golden.program
    at, per_epoch = Address(injection.epoch, injection.step), program.steps_per_epoch
    last = horizon_or_end(w.epochs, per_epoch, at, steps)
    complete_golden(golden, at.epoch + 1, last.epoch + 1)
    before, strikes = _state_before(golden, at), strikes_of(injection)
    missing = max(0, last.epoch + 1 - golden.recorded()) * per_epoch
    total = (2 + twin) * (numbered(last, per_epoch) - numbered(at, per_epoch) + 1) + missing
    with Progress("map", total) as progress:
        record = recorded_beside(golden, lambda: progress.beside("golden run"))

        def course(beside: Golden) -> Course:
            return Course(
                beside,
                strikes,
                injection.nonfinite,
                record=record,
                golden_after=golden.fetch_state_after,
                noise=lambda window: noise_floor(golden, w.epochs, window),
                recorder=Recorder(Run(at.epoch, (), 0), rows_of(record(at.epoch), at.step)),
            )

        alone, again, hits = course(golden), functools.partial(jax.tree.map, jnp.copy), _Hits()
        ended = alone.take(again(before), at, last, before=[progress, hits]).ended
        progress.compiling("the step that tells what a map shows")
        inactive = next((one.inactive() for one in strikes if one.site.stage not in BESIDE), None)
        repeats = Repeats(golden)

        def golden_step(at: Address, told: StepReport) -> None:
            repeats.after_step(at, None, told)

        def beside() -> Lockstep:
            return Lockstep(program, telling.faulty_step, again(before), inactive, golden_step)

        lockstep = beside()
        together = course(dataclasses.replace(golden, program=lockstep.program))
        together.take(again(before), at, last, before=[progress])
        _check_same(alone, together)
        floor = None
        if twin:
            floor = beside()
            taken = [one.at for one in lockstep.compared]
            follow(floor.program, program.place(nudge(program, fetched(before))), taken, observers=[progress])
    found = _made(injection, lockstep.compared, telling, strikes, hits)
    return dataclasses.replace(
        found,
        ended="" if ended is None else ENDS[ended],
        twin=None if floor is None else _made(injection, floor.compared, telling, strikes, hits).rms,
    )


def _state_before(golden: Golden, at: Address) -> State:
    """The golden state before a step."""
    state = golden.fetch_state_before(at.epoch)
    if at.step:
        steps = addresses(Address(at.epoch, 0), Address(at.epoch, at.step - 1), golden.program.steps_per_epoch)
        state = follow(golden.program, state, steps, observers=[Repeats(golden)]).state
    return state


def _check_same(alone: Course, together: Course) -> None:
    """See that a run in lockstep has the bits of the replay after every step."""
    digests = [one.recorder.run.column("digest") for one in (alone, together)]
    if digests[0].shape != digests[1].shape or (digests[0] != digests[1]).any():
        raise Untrustworthy(
            "the faulty run in lockstep with the golden one has other bits than the replay: a map would show another "
            "run, so nothing was written"
        )


class _Hits(Observer):
    """Which faults of each step struck something: not one in a branch not taken, nor a rule that nothing fits."""

    def __init__(self) -> None:
        self.of: dict[Address, tuple[bool, ...]] = {}

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        self.of[at] = tuple(int(one.hits) > 0 for one in each_of(report.struck))


def _made(
    injection: Injection,
    compared: list[StepDifferences],
    program: Program,
    strikes: tuple[Strike, ...],
    hits: _Hits,
) -> FaultMap:
    """The map of what was compared."""
    w, steps = injection.workload, tuple(one.at for one in compared)
    rows = _rows(injection, compared[0], program)
    each = [[one.differences[row.name] for one in compared] for row in rows]

    def of(field: str, kind: type, factor: int = 1) -> np.ndarray:
        return np.array([[getattr(one, field) for one in row] for row in each], kind) * factor

    struck: dict[str, tuple[int, ...]] = {}
    for at, numbers in struck_steps(strikes, w.epochs, program.steps_per_epoch, w.seed).items():
        for number, hit in zip(numbers, hits.of[at], strict=True) if at in steps else ():
            if hit:
                name = strikes[number].site.name
                struck[name] = (*struck.get(name, ()), steps.index(at))
    unread = sorted(set(program_sites(injection)) - compared[0].differences.keys())
    left_out = [*told_by(program)[1], *_kept(program)]
    if unread:
        left_out.append(f"results of {len(unread)} operations that nothing reads, and no step computes: {unread[0]}, …")
    return FaultMap(
        injection,
        rows,
        steps,
        struck,
        of("differs", np.int64),
        of("nonfinite", np.int64),
        of("golden_nonfinite", np.int64),
        of("largest", np.float64, 2),
        of("rms", np.float64, 2),
        of("golden_largest", np.float64),
        of("golden_rms", np.float64),
        np.array([one.loss for one in compared], np.float64).T,
        "",
        tuple(left_out),
    )


def program_sites(injection: Injection) -> list[str]:
    """Names of the workload's operations, in the order in which a step runs them."""
    return list(injection.workload.sites())


def _kept(program: Program) -> list[str]:
    """What is said of leaves that a step only keeps of others."""
    kept = [leaf.name for leaf in program.state.leaves if leaf.role == Role.KEPT]
    return [f"{len(kept)} leaves that a step keeps of others, such as {kept[0]}"] if kept else []


def _rows(injection: Injection, compared: StepDifferences, program: Program) -> tuple[MapRow, ...]:
    """The tensors of a step in the order of the computation: forward, loss, backward, gradients, update, the state."""
    sites, sizes = injection.workload.sites(), compared.sizes
    of_sites = [(name, _kind(site), site.layer) for name, site in sites.items()]
    last = max((place for place, (_, kind, _) in enumerate(of_sites) if kind == FORWARD), default=-1)
    end = 1 + max((place for place, (_, kind, _) in enumerate(of_sites) if kind != UPDATE), default=-1)
    # Of a step that runs forward passes after backward ones, the loss stands behind the last.
    found = [*of_sites[: last + 1], ("loss", LOSS, ""), *of_sites[last + 1 : end]]
    found += [(name, GRADIENT, _layer(name)) for name in program.state.gradients]
    found += of_sites[end:]
    for kind, roles in STATE.items():
        for leaf in program.state.leaves:
            if leaf.role in roles:
                found.append((leaf.name, kind, _layer(leaf.parameter or leaf.name)))
    return tuple(MapRow(name, kind, layer, sizes[name]) for name, kind, layer in found if name in sizes)


def _kind(site: Site) -> str:
    if site.details.get("role") == UPDATE:
        return UPDATE
    return FORWARD if site.stage == "forward" else BACKWARD


def _layer(name: str) -> str:
    """The layer of a leaf: its path without the part of the state and its own name."""
    parts = name.split("/")
    return "/".join(parts[1:-1] if len(parts) > 2 else parts[:1])
