"""EfficientNet-B0 as published (docs/science.md, Published set-up): for 32×32 images, all dropout rates 0."""

from ..combinators import chain, gated, residual
from ..layer import Layer
from ..layers.activation import sigmoid, swish
from ..layers.convolution import convolution, depthwise_convolution
from ..layers.dense import dense
from ..layers.dropout import dropout
from ..layers.normalisation import batch_norm
from ..layers.pooling import global_average

# Output channels where the stem has 32, expansion, kernel size, stride of the first block.
STAGES = (
    (16, 1, 3, 1),
    (24, 6, 3, 2),
    (40, 6, 5, 2),
    (80, 6, 3, 2),
    (112, 6, 5, 1),
    (192, 6, 5, 2),
    (320, 6, 3, 1),
)
HEAD = 1280


def effnet(
    width: int = 32,
    blocks: tuple[int, ...] = (1, 2, 2, 3, 3, 4, 1),
    classes: int = 10,
    dropout_rate: float = 0.0,
) -> Layer:
    """EfficientNet-B0 for 32×32 images: [R,b,32,32,3] -> logits [R,b,classes].

    Args:
      width: channels of the stem; the other layers' are in proportion.
      blocks: number of blocks of each of the seven stages.
      classes: number of classes.
      dropout_rate: before the dense layer.

    Reference: Tan and Le, ICML 2019; as used by He et al., ISCA 2023.

    >>> params, _ = effnet(width=4, blocks=(1,) * 7).init(None, (1, 2, 32, 32, 3))
    >>> params["fc"]["kernel"].shape
    (160, 10)
    """

    def scaled(channels: int) -> int:
        return max(1, channels * width // 32)

    stages, inputs = [], width
    for stage, ((channels, expansion, size, stride), count) in enumerate(zip(STAGES, blocks, strict=True), 1):
        for i in range(count):
            block = _mbconv(f"block{stage}_mbconv_{i}", scaled(channels), inputs * expansion, size, 1 if i else stride)
            stages.append(residual(block) if i else block)  # a stage's first block changes channels, the others do not
            inputs = scaled(channels)
    return chain(
        convolution("conv1", width, 3, 2, bias=False),
        batch_norm("bn1"),
        swish(),
        *stages,
        convolution("conv2", scaled(HEAD), 1, bias=False),
        batch_norm("bn2"),
        swish(),
        global_average("pool"),
        dropout("dropout", dropout_rate),
        dense("fc", classes),
    )


def _mbconv(name: str, features: int, expanded: int, size: int, stride: int) -> Layer:
    """Inverted bottleneck: widen, convolve each channel, weigh the channels, narrow."""
    squeeze_and_excite = chain(
        global_average(f"{name}_se_pool", keep_map=True),
        convolution(f"{name}_se_reduce_conv", max(1, expanded // 4), 1),
        swish(),
        convolution(f"{name}_se_expand_conv", expanded, 1),
        sigmoid(),
    )
    return chain(
        convolution(f"{name}_conv1", expanded, 1, bias=False),
        batch_norm(f"{name}_bn1"),
        swish(),
        depthwise_convolution(f"{name}_dwconv", size, stride),
        batch_norm(f"{name}_bn2"),
        gated(squeeze_and_excite),
        swish(),
        convolution(f"{name}_conv2", features, 1, bias=False),
        batch_norm(f"{name}_bn3"),
    )
