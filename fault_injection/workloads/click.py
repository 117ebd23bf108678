"""Workloads of recommendation: whether somebody clicks, decided from numbers and categories."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from ..data.click_logs import CLICK_LOGS
from ..machine.reading import counts, one_of, whole
from ..models.site import Site
from ..seam.workload import PRECISION, Option, Workload, format_option, narrower
from .explicit import ExplicitWorkload

WIDTHS = counts("/", 1, "a width for each hidden layer, such as 64/32")
KINDS = {"bot": "bottom MLP", "top": "top MLP", "emb": "embedding", "interaction": "interaction"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClickWorkload(ExplicitWorkload):
    """A DLRM that decides about examples of numbers and categories, trained by plain gradient descent.

    Attributes:
      dataset: key of `fault_injection.data.click_logs.CLICK_LOGS`.
      dimension, bottom, top: as in `models.networks.dlrm`.
      max_rows: rows of a table, at most; an index is taken modulo the rows of its table.
      steps_per_epoch: steps in each epoch: it goes through no whole table of examples.
    """

    learning_rate: float = 0.1
    dataset: str = "adult"
    dimension: int = 16
    bottom: tuple[int, ...] = (64, 32)
    top: tuple[int, ...] = (64, 32)
    max_rows: int = 2**31 - 1
    steps_per_epoch: int = 100
    workers: int = 4
    batch_size: int = 128
    epochs: int = 20

    DATA: ClassVar[Mapping[str, Any]] = CLICK_LOGS
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "dataset": Option(one_of(CLICK_LOGS), "the table of examples", ("layer", "position")),
        "dimension": Option(whole(1, 2**12), "width of a row of an embedding table", ("position",)),
        "bottom": Option(WIDTHS, "widths of the hidden layers below the interaction", ("layer", "position")),
        "top": Option(WIDTHS, "widths of the hidden layers above it", ("layer", "position")),
        "max_rows": Option(whole(1), "rows of an embedding table, at most", ("position",)),
        "precision": PRECISION,
        "epochs": Workload.OPTIONS["epochs"],
        "steps_per_epoch": Option(whole(1, 1_000_000), "steps in each epoch", ("step",)),
        "batch_size": Option(whole(1, 2**20), "of all workers together", ("position",)),
        "workers": Workload.OPTIONS["workers"],
    }

    @property
    def tables(self) -> tuple[int, ...]:
        """Rows of each embedding table."""
        return tuple(min(size, self.max_rows) for size in CLICK_LOGS[self.dataset].sizes)

    def recipe(self, data_dir: pathlib.Path | None = None) -> Any:
        from .click_recipe import click_recipe

        return click_recipe(self, data_dir)

    def components(self) -> Mapping[str, list[str]]:
        """The two perceptrons and the tables."""
        return {"bottom MLP": ["bot_*"], "embeddings": ["emb_*"], "top MLP": ["top_*"]}

    def lookups(self) -> Mapping[str, int]:
        """The embedding tables, with the columns of the categories."""
        numbers = CLICK_LOGS[self.dataset].numbers
        return {f"params/emb_{k}/table": numbers + k for k in range(len(self.tables))}

    def kind(self, site: Site) -> str:
        """The component of the model that it belongs to."""
        return KINDS[re.sub(r"_\d+$", "", site.layer)]

    @property
    def details(self) -> str:
        return (
            f"{narrower(self.precision)}{len(self.tables)} tables of {sum(self.tables):,} rows × {self.dimension}, "
            f"layers of {format_option(self.bottom)} and {format_option(self.top)}, "
            f"batches of {self.batch_size} on {self.workers} workers, "
            f"{self.epochs} epochs of {self.steps_per_epoch} steps"
        )


# Naumov et al., arXiv 1906.00091: that of Criteo's challenge has the published sizes.
RECOMMENDERS = {
    "dlrm": ClickWorkload(name="dlrm"),
    "dlrm_criteo": ClickWorkload(
        name="dlrm_criteo", dataset="criteo", bottom=(512, 256, 64), top=(512, 256), workers=1, steps_per_epoch=1000
    ),
}
