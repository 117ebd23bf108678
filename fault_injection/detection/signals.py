"""Signals: named numbers of a step's report that detectors watch, by kind."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..models.observe.dr_dna import NAMES
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


# Of the gradients, those of parameters are summed over the workers, local ones are before that sum, and the others are
# those of the inputs of norms and of the head, and of the outputs of embeddings.
KINDS = {
    "loss": SignalKind(),
    "gradient_norm": SignalKind(frozenset({"norm/parameter_gradients"})),
    "norm/gradients": SignalKind(frozenset({"norm/gradients"})),
    "largest/gradients": SignalKind(frozenset({"largest/gradients"})),
    "largest/local_gradients": SignalKind(frozenset({"largest/local_gradients"})),
    "norm/local_gradients": SignalKind(frozenset({"norm/local_gradients"})),
    "rms/updates": SignalKind(frozenset({"rms/updates"})),
    "rms/adam_steps": SignalKind(frozenset({"rms/adam_steps"})),
    "largest/activations": SignalKind(frozenset({"largest/activations"})),
    # Reported by a program that watches a profile (`Program.watching`); its kind is what its names begin with.
    **{name: SignalKind(frozenset({name})) for name in NAMES},
    "largest/gradients_of_parameters": SignalKind(roles=(Role.GRADIENT,)),
    "largest/history": SignalKind(roles=(Role.HISTORY,)),
    "largest/running_variance": SignalKind(roles=(Role.VARIANCE,)),
    "largest/state": SignalKind(roles=tuple(role for role in Role if role != Role.GRADIENT)),
    "checksum/products": SignalKind(frozenset({"checksum/products"})),
    "variance_checksum/products": SignalKind(frozenset({"variance_checksum/products"})),
}

PROFILED = NAMES  # kinds that only a program reports which watches a profile


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
        self._watched = program.state.watched

    def read(self, report: StepReport) -> tuple[list[str], np.ndarray]:
        """Names of the signals, the same for every step, and their values in a step, float64 [N].

        Args:
          report: on the host.
        """
        names: list[str] = []
        parts = []
        for kind in self._kinds:
            reductions, roles = KINDS[kind]
            if kind == "loss":
                names.append(kind)
                parts.append(np.asarray([report.loss], np.float64))
            elif roles:
                at = [i for i, leaf in enumerate(self._watched) if leaf.role in roles]
                names += [self._watched[i].name for i in at]
                parts.append(np.asarray(report.magnitude, np.float64)[np.array(at, int)])
            else:
                wanted = tuple(f"{reduction}/" for reduction in reductions)
                known = sorted(name for name in report.reductions if name.startswith(wanted))
                values = np.array([report.reductions[name] for name in known], np.float64)
                names += [kind] if kind == "gradient_norm" else known
                parts.append(np.sqrt(np.sum(values * values, keepdims=True)) if kind == "gradient_norm" else values)
        return names, np.concatenate(parts)

    def named(self, report: StepReport) -> dict[str, float]:
        """The signals of a step by name."""
        names, values = self.read(report)
        return dict(zip(names, values.tolist(), strict=True))
