"""Signals: named numbers of a step's report that detectors watch, by kind."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..seam.leaves import Role
from ..seam.program import Program
from ..seam.report import StepReport


class SignalKind(NamedTuple):
    """One kind of signals.

    Attributes:
      reductions: what steps have to report for it, of `models.observe.reductions.CHOICES`.
      roles: of the arrays whose largest absolute values it is made of, which every step reports.
    """

    reductions: frozenset[str] = frozenset()
    roles: tuple[Role, ...] = ()


# Of the gradients, those of parameters are summed over the workers; the others are those of the
# inputs of norms and of the head, and of the outputs of embeddings.
KINDS = {
    "loss": SignalKind(),
    "gradient_norm": SignalKind(frozenset({"norm/parameter_gradients"})),
    "norm/gradients": SignalKind(frozenset({"norm/gradients"})),
    "largest/gradients": SignalKind(frozenset({"largest/gradients"})),
    # Reported by a program that watches a profile (`Program.watching`); its kind is what its names begin with.
    "dr_dna/activations": SignalKind(frozenset({"dr_dna/activations"})),
    "largest/gradients_of_parameters": SignalKind(roles=(Role.GRADIENT,)),
    "largest/history": SignalKind(roles=(Role.HISTORY,)),
    "largest/running_variance": SignalKind(roles=(Role.VARIANCE,)),
    "largest/state": SignalKind(roles=tuple(role for role in Role if role != Role.GRADIENT)),
    "checksum/products": SignalKind(frozenset({"checksum/products"})),
    "variance_checksum/products": SignalKind(frozenset({"variance_checksum/products"})),
}


def reductions_of(kinds: Iterable[str]) -> frozenset[str]:
    """What steps have to report for these kinds of signals.

    >>> sorted(reductions_of(["loss", "gradient_norm"]))
    ['norm/parameter_gradients']
    """
    return frozenset().union(*(KINDS[kind].reductions for kind in kinds))


class SignalReader:
    """Reads the signals of some kinds from the reports of one program's steps.

    Names are those of the report: `loss`, `gradient_norm`, `largest/gradients/NORM`, and for
    largest values of arrays their own names.

    Args:
      program: made with `reductions_of(kinds)`.
    """

    def __init__(self, program: Program, kinds: Iterable[str]):
        self._kinds = tuple(kinds)
        self._leaves = {
            kind: np.array([i for i, leaf in enumerate(program.state.watched) if leaf.role in KINDS[kind].roles], int)
            for kind in self._kinds
        }
        self._program = program
        self._names: tuple[str, ...] | None = None
        self._reported: dict[str, list[str]] = {}

    def names(self, report: StepReport) -> tuple[str, ...]:
        """Names of the signals, the same for every step."""
        if self._names is None:
            self._names = self._named(report)
        return self._names

    def _named(self, report: StepReport) -> tuple[str, ...]:
        found: list[str] = []
        for kind in self._kinds:
            if kind in ("loss", "gradient_norm"):
                found.append(kind)
            elif KINDS[kind].roles:
                found += [self._program.state.watched[i].name for i in self._leaves[kind]]
            else:
                found += self._of(kind, report)
        return tuple(found)

    def read(self, report: StepReport) -> np.ndarray:
        """float64 [N], the signals of a step, in the order of `names`.

        Args:
          report: on the host.
        """
        parts = []
        for kind in self._kinds:
            if kind == "loss":
                parts.append(np.asarray([report.loss], np.float64))
            elif KINDS[kind].roles:
                parts.append(np.asarray(report.magnitude, np.float64)[self._leaves[kind]])
            else:
                values = np.array([report.reductions[name] for name in self._of(kind, report)], np.float64)
                parts.append(np.sqrt(np.sum(values * values, keepdims=True)) if kind == "gradient_norm" else values)
        return np.concatenate(parts)

    def named(self, report: StepReport) -> dict[str, float]:
        """The signals of a step by name."""
        return dict(zip(self.names(report), self.read(report).tolist(), strict=True))

    def _of(self, kind: str, report: StepReport) -> list[str]:
        """Names of the reductions that a kind is made of."""
        if kind not in self._reported:
            wanted = tuple(f"{reduction}/" for reduction in KINDS[kind].reductions)
            self._reported[kind] = sorted(name for name in report.reductions if name.startswith(wanted))
        return self._reported[kind]
