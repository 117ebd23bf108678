"""DLRM: a recommendation model of embedding tables, two perceptrons, and dot products between."""

from collections.abc import Sequence

from ..combinators import chain
from ..layer import Layer
from ..layers.activation import relu
from ..layers.dense import dense
from ..layers.embedding import sparse_embedding
from ..layers.interaction import columns, dot_interaction


def dlrm(
    numbers: int,
    categories: Sequence[int],
    dimension: int = 16,
    bottom: Sequence[int] = (512, 256, 64),
    top: Sequence[int] = (512, 256),
) -> Layer:
    """Rows of numbers and categories, int32 [R,b,D+S] as `layers.interaction.columns` -> logits [R,b,1].

    Layers: `bot_0`, `bot_1`, … of the bottom perceptron, a ReLU behind each; `emb_0`, `emb_1`, …,
    a table for each column of categories; `interaction`; `top_0`, … of the top perceptron, a ReLU
    behind each but the last, which gives the logit.  The defaults are those published for Criteo's
    display advertising challenge.

    Args:
      numbers: D, columns of numbers.
      categories: rows of the table of each other column.
      dimension: width of a table's rows, and of the bottom perceptron's output.
      bottom, top: widths of the hidden layers.

    Reference: Naumov et al., arXiv 1906.00091.

    >>> params, _ = dlrm(13, (9, 5), bottom=(32,), top=(8,)).init((0,), (1, 4, 15))
    >>> {name: next(iter(leaves.values())).shape for name, leaves in params.items()}
    {'bot_0': (13, 32), 'bot_1': (32, 16), 'emb_0': (9, 16), 'emb_1': (5, 16), 'top_0': (19, 8), 'top_1': (8, 1)}
    """
    below = [layer for i, width in enumerate((*bottom, dimension)) for layer in (dense(f"bot_{i}", width), relu())]
    tables = [sparse_embedding(f"emb_{k}", count, dimension) for k, count in enumerate(categories)]
    above = [layer for i, width in enumerate(top) for layer in (dense(f"top_{i}", width), relu())]
    return chain(
        columns(numbers, chain(*below), tables),
        dot_interaction("interaction"),
        *above,
        dense(f"top_{len(top)}", 1),
    )
