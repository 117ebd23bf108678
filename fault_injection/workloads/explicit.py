"""What the families of workloads share whose networks are written out in this project.

A family is a description, its options, and a recipe of what they mean.  The description imports no JAX, so that names,
options and plans are read without it; its methods import the recipe, and what computes, when they are first called.
"""

import abc
import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from ..models.fault import Operand
from ..models.precisions import PRECISIONS
from ..models.site import Site
from ..seam.program import Program
from ..seam.state_spec import StateSpec
from ..seam.workload import Contradiction, Workload
from .described import described

# Options on which no site depends, so that workloads that differ in them share what is traced.
RATES = {
    *("learning_rate", "end_learning_rate", "decay_steps", "epochs", "steps_per_epoch", "seed"),
    *("dropout", "augmentation"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExplicitWorkload(Workload):
    """A network of `models/`, trained on a dataset.

    Attributes:
      dataset: its name.
      precision: key of `models.precisions.PRECISIONS`.
      batch_size: of all workers together, a multiple of `workers`.
    """

    dataset: str
    precision: str = "float32"
    batch_size: int

    DATA: ClassVar[Mapping[str, Any]]  # datasets by name, each with `find`

    @abc.abstractmethod
    def recipe(self, data_dir: pathlib.Path | None = None) -> Any:
        """The `explicit.recipe.Recipe` of its training; nothing is read or computed.

        Args:
          data_dir: where the dataset is; by default where its reader looks.
        """

    @property
    def shared(self) -> dict[str, Any]:
        """What the recipes of all families take from a workload, by the names of their fields."""
        same = {name: getattr(self, name) for name in ("workers", "batch_size", "steps_per_epoch", "seed")}
        return same | {"strategy": self.rules, "precision": PRECISIONS[self.precision]}

    def sites(self) -> Mapping[str, Site]:
        alike = self._alike()
        return described(alike, "sites") or _sites(alike)

    def of_one_example(self) -> Mapping[str, Site]:
        return self.changed(batch_size=self.workers).sites()

    def leaves(self) -> Mapping[str, Site]:
        return described(self._alike(), "leaves") or super().leaves()

    def _alike(self) -> Self:
        """The workload that all those stand for which differ in rates alone."""
        same: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self) if f.name in RATES}
        return dataclasses.replace(self, **same)

    def state(self) -> StateSpec:
        """What its state consists of; no device is asked for."""
        found: StateSpec = self.recipe().state()
        return found

    def parameters(self) -> list[str]:
        params = self.state().abstract.params  # in the order of the network
        return [f"params/{layer}/{name}" for layer, leaves in params.items() for name in leaves]

    def logits(self) -> int | None:
        *_, last = (site for site in self.sites().values() if site.stage == "forward")
        return int(last.shapes[Operand.OUTPUT][-1])

    def program(
        self,
        supported: frozenset[str] | None = None,
        devices: int | None = None,
        data_dir: pathlib.Path | None = None,
        reductions: frozenset[str] = frozenset(),
    ) -> Program:
        from ..explicit.program import explicit_program

        self.check_supported(supported)
        return explicit_program(self.recipe(data_dir), supported, devices, reductions)

    def contradiction(self) -> Contradiction | None:
        if self.batch_size % self.workers:
            message = f"batch_size {self.batch_size} is not a multiple of the {self.workers} workers"
            return Contradiction("batch_size", message)
        if not (stages := self.rules.stages) or stages <= (parts := len(self.recipe().chain.parts)):
            return None
        found = f"strategy {self.strategy}: the chain of {self.name} has {parts} parts"
        return Contradiction("strategy", f"{found}; expected at most as many stages")

    def data_at_hand(self, data_dir: pathlib.Path | None = None) -> bool:
        """Whether the data can be read without a download; raises InputError where `data_dir` holds none."""
        return bool(self.DATA[self.dataset].find(data_dir))

    @property
    def label(self) -> str:
        return f"{self.name}-{self.dataset}"

    @property
    def title(self) -> str:
        return f"{self.name} on {self.dataset}"


@functools.lru_cache(maxsize=256)
def _sites(workload: ExplicitWorkload) -> Mapping[str, Site]:
    import jax

    from ..explicit.sites import list_sites

    recipe = workload.recipe()
    return list_sites(recipe.network, jax.ShapeDtypeStruct(recipe.inputs.shape[1:], recipe.inputs.dtype))
