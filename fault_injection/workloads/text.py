"""Workloads that predict the next token of a text."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from ..data.texts import TEXTS
from ..machine.reading import one_of, whole
from ..models.site import Site
from ..seam.workload import PRECISION, STRATEGY, Contradiction, Option, Workload, narrower, shared_out
from .explicit import ExplicitWorkload


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextWorkload(ExplicitWorkload):
    """A decoder-only transformer that predicts the next token.

    Attributes:
      learning_rate: the largest one; it rises to this and falls, see `text_recipe.schedule`.
      dataset: key of `fault_injection.data.texts.TEXTS`.
      width, blocks, heads, kv_heads, vocabulary: as in `models.networks.transformer`.
      context: tokens of a sequence.
      tied: `yes` where the head shares the table of the embedding, else `no`.
      steps_per_epoch: steps in each epoch: it goes through no whole text.
    """

    learning_rate: float = 5e-3
    dataset: str = "shakespeare"
    width: int = 64
    blocks: int = 2
    heads: int = 4
    kv_heads: int = 2
    context: int = 64
    vocabulary: int = 128
    tied: str = "yes"
    steps_per_epoch: int = 50
    workers: int = 4
    batch_size: int = 32
    epochs: int = 20

    DATA: ClassVar[Mapping[str, Any]] = TEXTS
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "dataset": Option(one_of(TEXTS), "the text"),
        "width": Option(whole(1, 2**16), "channels between the blocks", ("position",)),
        "blocks": Option(whole(1, 1000), "number of blocks", ("layer",)),
        "heads": Option(whole(1, 1024), "of the queries", ("position",)),
        "kv_heads": Option(whole(1, 1024), "of keys and values", ("position",)),
        "context": Option(whole(1, 2**16), "tokens of a sequence", ("position",)),
        "vocabulary": Option(whole(1, 2**16), "number of tokens", ("position",)),
        "tied": Option(one_of(("yes", "no")), "whether the head shares the table of the embedding"),
        "precision": PRECISION,
        "strategy": STRATEGY,
        "epochs": Workload.OPTIONS["epochs"],
        "steps_per_epoch": Option(whole(1, 1_000_000), "steps in each epoch", ("step",)),
        "batch_size": Option(whole(1, 2**20), "of all workers together", ("position",)),
        "workers": Workload.OPTIONS["workers"],
    }

    def recipe(self, data_dir: pathlib.Path | None = None) -> Any:
        from .text_recipe import text_recipe

        return text_recipe(self, data_dir)

    def identity(self) -> dict[str, Any]:
        """All fields: the learning rate rises and falls within the length of the training."""
        return dataclasses.asdict(self)

    def components(self) -> Mapping[str, list[str]]:
        """What a block consists of, and what is before and behind the blocks."""
        head = {} if self.tied == "yes" else {"head": ["lm_head/*"]}
        named = {"embedding": ["embed_tokens/*"], "attention": ["*_self_attn_*"], "MLP": ["*_mlp_*"]}
        return {**named, "norms": ["*norm/*"], **head}

    def kind(self, site: Site) -> str:
        """Embedding, head, attention product or projection."""
        if site.layer in (named := {"embed_tokens": "embedding", "lm_head": "head"}):
            return named[site.layer]
        return "attention product" if site.layer.endswith(("_scores", "_mix")) else "projection"

    def contradiction(self) -> Contradiction | None:
        if self.width % (2 * self.heads):
            expected = f"expected a multiple of {2 * self.heads}: heads of an even width, whose pairs are rotated"
            return Contradiction("width", f"width {self.width} with {self.heads} heads; {expected}")
        if self.heads % self.kv_heads:
            return Contradiction("kv_heads", f"kv_heads {self.kv_heads}; expected a divisor of the {self.heads} heads")
        if self.vocabulary < (least := TEXTS[self.dataset].vocabulary):
            found = f"vocabulary {self.vocabulary} is too small for {self.dataset}"
            return Contradiction("vocabulary", f"{found}, whose tokens go up to {least - 1}; expected at least {least}")
        return super().contradiction()

    def unscaled(self, new: Self) -> list[str]:
        """The learning rate, whose rise and fall take as long as the training."""
        totals = [workload.epochs * workload.steps_per_epoch for workload in (self, new)]
        return [f"learning rate: not scaled; it rises and falls within {totals[0]} -> {totals[1]} steps"]

    @property
    def details(self) -> str:
        return (
            f"{narrower(self.precision)}{shared_out(self)}width {self.width}, {self.blocks} blocks, "
            f"batches of {self.batch_size} × {self.context} tokens on {self.workers} workers, "
            f"{self.epochs} epochs of {self.steps_per_epoch} steps"
        )


TRANSFORMERS = {"transformer": TextWorkload(name="transformer")}
