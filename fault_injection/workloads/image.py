"""Workloads of image classification: the published set-ups, and others of their kind."""

import dataclasses
import operator
import pathlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from ..data import DATASETS
from ..data.batches import steps_per_epoch
from ..machine.reading import counts, number, one_of, whole
from ..models.fault import Operand
from ..models.site import Site
from ..seam.workload import PRECISION, STRATEGY, Contradiction, Option, Workload, format_option, narrower, shared_out
from .explicit import ExplicitWorkload

AUGMENTATIONS = ("flip+crop", "crop", "none")

# What a dataset changes in the published options.  Digits are not symmetric, and dropout makes
# twins differ by several points, which would drown most verdicts.
IMPLIED: dict[str, dict[str, Any]] = {"digits": {"dropout": 0.0, "augmentation": "crop"}, "cifar10": {}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageWorkload(ExplicitWorkload):
    """A network that classifies images.

    Attributes:
      network: key of `models.networks.NETWORKS`.
      optimizer: key of `image_recipe.OPTIMIZERS`.
      learning_rate, end_learning_rate, decay_steps: linear decay from the first to the
        second in that many steps.
      dataset: key of `fault_injection.data.DATASETS`.
      width: channels of the first convolution; all others are in proportion.
      blocks: repeated parts of each stage, at most as many as published.
      dropout: rate, where the network has its dropout.
      augmentation: one of `AUGMENTATIONS`.
    """

    network: str = "resnet18"
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    end_learning_rate: float = 1e-4
    decay_steps: int = 5000
    dataset: str = "cifar10"
    width: int = 64
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    dropout: float = 0.15
    augmentation: str = "flip+crop"
    workers: int = 8
    batch_size: int = 1024
    epochs: int = 80

    DATA: ClassVar[Mapping[str, Any]] = DATASETS
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "dataset": Option(one_of(DATASETS), "the images", ("step",)),
        "width": Option(whole(1, 1024), "channels of the first convolution, the others in proportion", ("position",)),
        "blocks": Option(counts("/", 1, "a count for each stage, such as 2/2/2/2"), "blocks of each stage", ("layer",)),
        "dropout": Option(number(lambda n: 0 <= n < 1, "a rate in [0, 1)"), "rate of dropout"),
        "augmentation": Option(one_of(AUGMENTATIONS), "of the training images"),
        "precision": PRECISION,
        "strategy": STRATEGY,
        "epochs": Workload.OPTIONS["epochs"],
        "batch_size": Option(whole(1, 2**20), "of all workers together", ("step", "position")),
        "workers": Workload.OPTIONS["workers"],
    }

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(DATASETS[self.dataset].train, self.batch_size)

    def recipe(self, data_dir: pathlib.Path | None = None) -> Any:
        from .image_recipe import image_recipe

        return image_recipe(self, data_dir)

    def components(self) -> Mapping[str, list[str]]:
        """The stages of the network: layers whose names are alike up to their first number."""
        stages = (re.match(r"\D*\d*", site.layer) for site in self.sites().values() if site.stage == "forward")
        return {found[0]: [f"{found[0]}/*", f"{found[0]}_*"] for found in stages if found}

    def kind(self, site: Site) -> str:
        """Convolution or dense."""
        return "convolution" if len(self.sites()[site.layer].shapes[Operand.WEIGHT]) == 4 else "dense"

    def changed(self, **options: Any) -> Self:
        """This workload with some options replaced.

        With another dataset, an option that has the value which the old dataset implies takes
        the one that the new dataset implies, unless it is given.
        """
        published = PUBLISHED.get(self.name, self)
        before, after = (
            dataclasses.replace(published, **IMPLIED[name])
            for name in (self.dataset, options.get("dataset", self.dataset))
        )
        names = {name for implied in IMPLIED.values() for name in implied}
        implied = {name: getattr(after, name) for name in names if getattr(self, name) == getattr(before, name)}
        return dataclasses.replace(self, **(implied | options))

    def embedded(self) -> Self:
        """The embedded default, small enough for two cores."""
        blocks = tuple(min(count, 2) for count in self.blocks)
        return self.changed(dataset="digits", width=8, blocks=blocks, batch_size=128, epochs=20)

    def contradiction(self) -> Contradiction | None:
        most = PUBLISHED.get(self.name, self).blocks
        if len(self.blocks) != len(most) or any(map(operator.gt, self.blocks, most)):
            expected = f"{len(most)} counts, from 1 each to the published {format_option(most)}"
            found = str(format_option(self.blocks))[:60]
            return Contradiction("blocks", f"blocks {found} of {self.name}; expected {expected}")
        if self.batch_size > (images := DATASETS[self.dataset].train):
            message = f"batch_size {self.batch_size} is larger than {self.dataset}, which has {images} training images"
            return Contradiction("batch_size", message)
        return super().contradiction()

    def unscaled(self, new: Self) -> list[str]:
        """The learning rate, which counts in steps whatever their number is."""
        totals = [workload.epochs * workload.steps_per_epoch for workload in (self, new)]
        through = [f"{min(1, total / self.decay_steps):.0%} ({total} steps)" for total in totals]
        return [
            f"learning rate: not scaled, {self.learning_rate:g} to {self.end_learning_rate:g} within "
            f"{self.decay_steps} steps, of which the training goes through {through[0]} -> {through[1]}"
        ]

    @property
    def details(self) -> str:
        return (
            f"{narrower(self.precision)}{shared_out(self)}width {self.width}, "
            f"batches of {self.batch_size} on {self.workers} workers, "
            f"{self.epochs} epochs of {self.steps_per_epoch} steps"
        )


# docs/science.md, Published set-up (He et al., ISCA 2023, artifact).
PUBLISHED: dict[str, "ImageWorkload"] = {
    workload.name: workload
    for workload in (
        ImageWorkload(name="resnet18"),
        ImageWorkload(name="resnet18_nobn", network="resnet18_nobn"),
        # Published are its name and three injections; the momentum of 0.99, Keras's default, is ours.
        ImageWorkload(name="resnet18_largedecay", network="resnet18_largedecay"),
        ImageWorkload(
            name="resnet18_sgd",
            optimizer="sgd",
            learning_rate=0.1,
            end_learning_rate=1e-3,
            decay_steps=2000,
            dropout=0.0,
        ),
        ImageWorkload(
            name="effnet",
            network="effnet",
            learning_rate=2e-3,
            end_learning_rate=5e-4,
            decay_steps=2000,
            width=32,
            blocks=(1, 2, 2, 3, 3, 4, 1),
            dropout=0.0,
        ),
        ImageWorkload(name="densenet", network="densenet", blocks=(6, 12, 24, 16), dropout=0.5),
        ImageWorkload(name="nfnet", network="nfnet", learning_rate=1e-2, dropout=0.0),
    )
}
