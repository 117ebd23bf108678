"""Workloads that predict the next token of a text."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import numpy as np

from ..data.texts import TEXTS
from ..machine.reading import one_of, whole
from ..models.combinators import in_precision
from ..models.layer import Layer
from ..models.networks.transformer import transformer
from ..models.precision import PRECISIONS
from ..models.site import Site, list_sites
from ..seam.program import Program
from ..seam.workload import PRECISION, STRATEGY, Contradiction, Option, Workload, narrower, shared_out, too_many_stages
from .text_program import text_program


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextWorkload(Workload):
    """A decoder-only transformer that predicts the next token.

    Attributes:
      learning_rate: the largest one; it rises to this and falls, see `text_program.schedule`.
      dataset: key of `fault_injection.data.texts.TEXTS`.
      width, blocks, heads, kv_heads, vocabulary: as in `models.networks.transformer`.
      context: tokens of a sequence.
      precision: key of `models.precision.PRECISIONS`.
      tied: `yes` where the head shares the table of the embedding, else `no`.
      steps_per_epoch: steps in each epoch: it goes through no whole text.
      batch_size: sequences of all workers together, a multiple of `workers`.
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
    precision: str = "float32"
    steps_per_epoch: int = 50
    workers: int = 4
    batch_size: int = 32
    epochs: int = 20

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

    def sites(self) -> Mapping[str, Site]:
        """The operations that a fault can strike, by name."""
        return _sites(dataclasses.replace(self, learning_rate=1.0, epochs=1, steps_per_epoch=1, seed=0))

    def program(
        self,
        supported: frozenset[str] | None = None,
        devices: int | None = None,
        data_dir: pathlib.Path | None = None,
        reductions: frozenset[str] = frozenset(),
    ) -> Program:
        """What runs of this workload need; see `Workload.program`."""
        self.check_supported(supported)
        return text_program(self, self.make_network(), TEXTS[self.dataset], supported, devices, data_dir, reductions)

    def make_network(self) -> Layer:
        """The network that it trains."""
        tied = self.tied == "yes"
        network = transformer(self.vocabulary, self.width, self.blocks, self.heads, self.kv_heads, tied)
        return in_precision(network, PRECISIONS[self.precision])

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
        """The first option that does not go with the others; None where all do."""
        if self.width % (2 * self.heads):
            expected = f"expected a multiple of {2 * self.heads}: heads of an even width, whose pairs are rotated"
            return Contradiction("width", f"width {self.width} with {self.heads} heads; {expected}")
        if self.heads % self.kv_heads:
            return Contradiction("kv_heads", f"kv_heads {self.kv_heads}; expected a divisor of the {self.heads} heads")
        if self.vocabulary < (least := TEXTS[self.dataset].vocabulary):
            found = f"vocabulary {self.vocabulary} is too small for {self.dataset}"
            return Contradiction("vocabulary", f"{found}, whose tokens go up to {least - 1}; expected at least {least}")
        if self.batch_size % self.workers:
            message = f"batch_size {self.batch_size} is not a multiple of the {self.workers} workers"
            return Contradiction("batch_size", message)
        return too_many_stages(self, self.make_network)

    def unscaled(self, new: Self) -> list[str]:
        """The learning rate, whose rise and fall take as long as the training."""
        totals = [workload.epochs * workload.steps_per_epoch for workload in (self, new)]
        return [f"learning rate: not scaled; it rises and falls within {totals[0]} -> {totals[1]} steps"]

    def data_at_hand(self, data_dir: pathlib.Path | None = None) -> bool:
        """Whether the text can be read; raises InputError where `data_dir` holds none."""
        return bool(TEXTS[self.dataset].find(data_dir))

    @property
    def label(self) -> str:
        """Name of its folders."""
        return f"{self.name}-{self.dataset}"

    @property
    def title(self) -> str:
        """What it is."""
        return f"{self.name} on {self.dataset}"

    @property
    def details(self) -> str:
        """How large it is."""
        return (
            f"{narrower(self.precision)}{shared_out(self)}width {self.width}, {self.blocks} blocks, "
            f"batches of {self.batch_size} × {self.context} tokens on {self.workers} workers, "
            f"{self.epochs} epochs of {self.steps_per_epoch} steps"
        )


@functools.lru_cache(maxsize=256)
def _sites(workload: TextWorkload) -> Mapping[str, Site]:
    shape = (workload.batch_size // workload.workers, workload.context)
    return list_sites(workload.make_network(), jax.ShapeDtypeStruct(shape, np.int32))


TRANSFORMERS = {"transformer": TextWorkload(name="transformer")}
