"""Groups of audits: several early verdicts are checked by one run, in which all their faults strike.

An audit follows a run to its end, which costs about a hundred times a verdict.  Most audits find what the early verdict
said: *Masked*.  So audits of such verdicts may be followed together, each fault at its own step of one run.  If that
run ends *Masked*, each of its faults is guessed to be masked by itself.  If not, each is followed by itself.

The guess takes harm not to hide harm, which is no proof.  So a share of the audits, drawn with the experiments, is
followed alone besides (`Experiment.alone`), and rates count the others as guesses within guesses: `two_phase`.

A group is a function of the experiments that are there, whatever ran before what.  A campaign that grows groups its
audits anew, and runs the groups that it has not run yet.

Reference: Dorfman, Annals of Mathematical Statistics 14 (1943) 436 (tests of groups).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...campaign.plan_reader import Reader
from ...runs.dependencies import content_hash
from ...runs.outcome import MASKED
from ...runs.steps import Address
from .conditions import CONDITIONS
from .plan import Plan
from .sampling import draw_experiment
from .store import Store

ALONE = 0.2  # share of the audits that are followed by themselves all the same, where the plan does not say


@dataclasses.dataclass(frozen=True)
class AuditGroup:
    """Experiments whose faults strike in one run.

    Attributes:
      number: their numbers, in order.
      epoch, step: of the first fault, with which the run begins.
      stratum: none, as of any experiment that is not drawn by strata.
    """

    number: tuple[int, ...]
    epoch: int
    step: int
    stratum: None = None

    @property
    def name(self) -> str:
        """Hash of its experiments: a group of others is another group."""
        return content_hash(self.number)

    @property
    def title(self) -> str:
        """For people, and to count the processes lost over it."""
        return f"group {self.name} of {len(self.number)} audits"


class AuditsLeft(NamedTuple):
    """What a campaign has to do yet, once every experiment has a verdict.

    Attributes:
      grouped: of each experiment in a group the group's name, and 1 where it is followed alone all the same, else 0.
      groups: those that have not run.
      follow: experiments to be followed alone, because their group did not end masked, or because they have none.
      regroup: whether the store has other groups.
    """

    grouped: Mapping[int, tuple[str, int]]
    groups: list[AuditGroup]
    follow: list[int]
    regroup: bool

    def __bool__(self) -> bool:
        return bool(self.groups or self.follow or self.regroup)


def groups_of(members: Iterable[tuple[Address, int]], most: int) -> list[AuditGroup]:
    """Groups of at most so many experiments, such that no two faults of a group strike in one step.

    Members are taken by time, so that a run begins late, and each goes to the first group that has room for it.  Who
    would be the only one of a group has none.

    >>> where = [(Address(0, 1), 7), (Address(0, 1), 3), (Address(0, 4), 5), (Address(2, 0), 1), (Address(3, 3), 9)]
    >>> [group.number for group in groups_of(where, 2)]
    [(3, 5), (1, 7)]

    Args:
      members: of each the step of its fault, and its number.
    """
    open: list[list[tuple[Address, int]]] = []
    full: list[list[tuple[Address, int]]] = []
    for at, number in sorted(members):
        fits = next((group for group in open if group[-1][0] != at), None)
        if fits is None:
            open.append(fits := [])
        fits.append((at, number))
        if len(fits) == most:
            open.remove(fits)
            full.append(fits)
    return [
        AuditGroup(tuple(sorted(number for _, number in group)), *group[0][0])
        for group in itertools.chain(full, open)
        if len(group) > 1
    ]


def audits_left(store: Store, plan: Plan) -> AuditsLeft:
    """What audits of a plan with groups are left, by the experiments that its store has."""
    assert plan.together is not None
    members: dict[int, Address] = {}
    alone, ended = set(), set()
    known = "SELECT number, epoch, step, near, audit_outcome FROM experiments WHERE exit = ? AND outcome = ?"
    for row in store.query(known, [CONDITIONS, MASKED]):
        drawn = draw_experiment(plan, row["number"])
        if drawn.audited or (row["near"] and drawn.audited_near):
            members[row["number"]] = Address(row["epoch"], row["step"])
            alone |= {row["number"]} if drawn.alone else set()
            ended |= {row["number"]} if row["audit_outcome"] is not None else set()
    groups = groups_of([(at, number) for number, at in members.items()], plan.together)
    came_to, kept = store.groups()
    grouped = {number: (group.name, int(number in alone)) for group in groups for number in group.number}
    follow = [
        number
        for number in sorted(members.keys() - ended)
        if number not in grouped or came_to.get(grouped[number][0], MASKED) != MASKED
    ]
    return AuditsLeft(grouped, [group for group in groups if group.name not in came_to], follow, kept != grouped)


def with_groups(plan: Plan, run: Mapping[str, Any], read: Reader) -> Plan:
    """A plan, with `together` and `together_alone` of its table `run`.

    Where the plan leaves open how many early verdicts are audited, as many of them are followed alone as would be
    without groups: so intervals that hold whatever groups hide are about as wide, and groups look at more besides.

    Raises:
      InputError: audits of the plan cannot be grouped.
    """
    most = read.whole(run, "run.together", None, 2, 10_000)
    if most is None:
        if "together_alone" in run:
            raise read.wrong("run.together_alone", "has no effect without run.together")
        return plan
    refused = {
        f"the exit mode '{plan.exit}' gives no early verdict to audit": plan.exit != CONDITIONS,
        "a campaign with [wanted] designs its blocks by the ends of its audits; leave out one of the two": plan.wanted,
        "does not go with run.settled: an audit would end with a guess of two kinds; leave out one of the two": (
            plan.settled
        ),
        "runs that restart from an altered checkpoint are audited each by itself; leave it out": plan.restarts,
        "what the faults strike is beyond the premises of early verdicts, so each audit is made first, by itself; "
        "leave it out": plan.audits_first,
        "run.audit is 0, so there is nothing to group": plan.audit == 0,
    }
    for why, wrong in refused.items():
        if wrong:
            raise read.wrong("run.together", why)
    alone = float(read.number(run, "run.together_alone", ALONE, 0, 1))
    audit = min(1.0, round(plan.audit / alone, 3)) if plan.audit_open and alone else plan.audit
    return dataclasses.replace(plan, together=most, together_alone=alone, audit=audit)
