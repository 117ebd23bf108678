"""Signals: named numbers of a step's report that detectors watch, by kind."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..training.program import Program, Role, StepReport


class Kind(NamedTuple):
    """One kind of signals.

    Attributes:
      reductions: what steps have to report for it, of `models.reductions.CHOICES`.
      roles: of the arrays whose largest absolute values it is made of, which every step reports.
    """

    reductions: frozenset[str] = frozenset()
    roles: tuple[Role, ...] = ()


# Of the gradients, those of parameters are summed over the workers; the others are those of the
# inputs of norms and of the head, and of the outputs of embeddings.
KINDS = {
    "loss": Kind(),
    "gradient_norm": Kind(frozenset({"norm/parameter_gradients"})),
    "norm/gradients": Kind(frozenset({"norm/gradients"})),
    "largest/gradients": Kind(frozenset({"largest/gradients"})),
    "largest/gradients_of_parameters": Kind(roles=(Role.GRADIENT,)),
    "largest/history": Kind(roles=(Role.HISTORY,)),
    "largest/running_variance": Kind(roles=(Role.VARIANCE,)),
    "largest/state": Kind(roles=tuple(role for role in Role if role != Role.GRADIENT)),
    "checksum/products": Kind(frozenset({"checksum/products"})),
    "variance_checksum/products": Kind(frozenset({"variance_checksum/products"})),
}


def reductions_of(kinds: Iterable[str]) -> frozenset[str]:
    """What steps have to report for these kinds of signals.

    >>> sorted(reductions_of(["loss", "gradient_norm"]))
    ['norm/parameter_gradients']
    """
    return frozenset().union(*(KINDS[kind].reductions for kind in kinds))


def signals(program: Program, report: StepReport, kinds: Iterable[str]) -> dict[str, float]:
    """The signals of a step by name, in an order that is the same for all its program's steps.

    Names are those of the report: `loss`, `gradient_norm`, `largest/gradients/NORM`, and for
    largest values of arrays their own names.

    Args:
      report: on the host, of a program made with `reductions_of(kinds)`.
    """
    found: dict[str, float] = {}
    for kind in kinds:
        if kind == "loss":
            found["loss"] = float(report.loss)
        elif KINDS[kind].roles:
            at = [i for i, leaf in enumerate(program.watched) if leaf.role in KINDS[kind].roles]
            found |= {program.watched[i].name: float(report.magnitude[i]) for i in at}
        else:
            names = sorted(n for n in report.reductions if any(n.startswith(f"{r}/") for r in KINDS[kind].reductions))
            numbers = {name: float(report.reductions[name]) for name in names}
            if kind == "gradient_norm":
                norms = np.fromiter(numbers.values(), np.float64)
                numbers = {"gradient_norm": float(np.sqrt(np.sum(norms * norms)))}
            found |= numbers
    return found
