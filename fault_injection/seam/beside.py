"""Faults that are struck beside the step: in the state that it reads, or in the checkpoint that a run restarts from.

So they cost neither a program with fault support nor time in any other step.
"""

from ..models.fault import Fault, Struck, site_id
from ..models.site import Site
from .checkpoint_faults import checkpoint_sites, restarted
from .leaves import Batch, State
from .program import Program
from .report import StepReport
from .state_faults import state_sites, struck_state
from .state_spec import StateSpec


def sites_beside(state: StateSpec) -> dict[str, Site]:
    """What a fault can strike beside the step, by name."""
    return {**state_sites(state), **checkpoint_sites(state)}


def load_site_ids(state: StateSpec) -> frozenset[int]:
    """The ids of the sites that a fault strikes as a checkpoint is loaded: a job begins with that step."""
    return frozenset(map(site_id, checkpoint_sites(state)))


def loaded(program: Program, state: State, fault: Fault) -> tuple[State, Struck]:
    """The state that was saved, as the run has it after it has loaded a checkpoint with this fault."""
    found = restarted(program, state, fault)
    assert found is not None  # it strikes one of `load_site_ids`
    return program.restated(found[0]), found[1]


def faulty_step(
    program: Program, state: State, batch: Batch, epoch: int, step: int, fault: Fault
) -> tuple[State, StepReport]:
    """One step with a fault, in an operation or beside the step; the state given can still be used."""
    for strike in (struck_state, restarted):
        if (found := strike(program, state, fault)) is not None:
            new, struck = found
            state, report = program.step(program.restated(new), batch, epoch, step)
            return state, report._replace(struck=struck)
    return program.faulty_step(state, batch, epoch, step, fault)
