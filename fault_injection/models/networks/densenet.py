"""DenseNet-121 as published (docs/science.md, Published set-up): strided convolutions for pooling, no last norm."""

from ..combinators import chain, concatenated
from ..layer import Layer
from ..layers.activation import relu
from ..layers.convolution import convolution
from ..layers.dense import dense
from ..layers.dropout import dropout
from ..layers.normalisation import batch_norm
from ..layers.pooling import global_average


def densenet(
    width: int = 64,
    blocks: tuple[int, ...] = (6, 12, 24, 16),
    classes: int = 10,
    dropout_rate: float = 0.5,
) -> Layer:
    """DenseNet-121 for 32×32 images: [R,b,32,32,3] -> logits [R,b,classes].

    Args:
      width: channels of the stem; each bottleneck adds half as many (32 at the published width).
      blocks: number of bottlenecks in each of the four dense blocks.
      classes: number of classes.
      dropout_rate: at the end of each bottleneck.

    Reference: Huang, Liu, van der Maaten, Weinberger, CVPR 2017; as used by He et al., ISCA 2023.

    >>> params, _ = densenet(width=4, blocks=(1,) * 4).init(None, (1, 2, 32, 32, 3))
    >>> params["fc"]["kernel"].shape
    (4, 10)
    """
    growth = max(1, width // 2)

    def bottleneck(name: str) -> Layer:
        added = chain(
            batch_norm(f"{name}_bn1"),
            relu(),
            convolution(f"{name}_conv1", 4 * growth, 1),
            batch_norm(f"{name}_bn2"),
            relu(),
            convolution(f"{name}_conv2", growth, 3),
            dropout(f"{name}_dropout", dropout_rate),
        )
        return concatenated(added)

    def transition(name: str, features: int) -> Layer:
        return chain(
            batch_norm(f"{name}_bn"),
            relu(),
            convolution(f"{name}_conv", features, 1),
            convolution(f"{name}_conv_p", features, 3, 2),
        )

    stages, features = [], width
    for stage, count in enumerate(blocks, 1):
        if stage > 1:
            features //= 2
            stages.append(transition(f"densenet_transition_{stage - 1}", features))
        stages += [bottleneck(f"densenet_dense_block_{stage}_bottleneck_{i}") for i in range(count)]
        features += count * growth
    return chain(
        convolution("densenet_conv", width, 7, 2),
        batch_norm("densenet_bn"),
        relu(),
        convolution("densenet_conv_p", width, 3, 2),
        *stages,
        global_average("pool"),
        dense("fc", classes),
    )
