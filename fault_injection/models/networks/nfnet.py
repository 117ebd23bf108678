"""Normaliser-free ResNet as published (docs/science.md, Published set-up): standardised kernels in place of norms."""

import math

from ..combinators import chain, residual
from ..layer import Layer
from ..layers.activation import relu
from ..layers.dense import dense
from ..layers.dropout import dropout
from ..layers.gain import skip_gain
from ..layers.pooling import global_average
from ..layers.standardisation import standardised_convolution

# As published, close to √(2/(1 − 1/π)) = 1.71286: a ReLU scaled by it leaves the variance of a normal input 1.
VARIANCE_KEPT = 1.7139588594436646
BLOCKS = (2, 2, 2, 2)


def nfnet(
    width: int = 64,
    blocks: tuple[int, ...] = BLOCKS,
    classes: int = 10,
    dropout_rate: float = 0.0,
) -> Layer:
    """Normaliser-free ResNet for 32×32 images: [R,b,32,32,3] -> logits [R,b,classes].

    Args:
      width: channels of the stem; the stages have 4, 8, 16, 32 times as many.
      blocks: number of blocks of each of the four stages.  Blocks left out leave a gap in the numbers
        of the names, so that a name means the same block at every scale.
      classes: number of classes.
      dropout_rate: before the dense layer.

    Reference: Brock, De, Smith, ICLR 2021, and Brock, De, Smith, Simonyan, ICML 2021; as used by
    He et al., ISCA 2023.

    >>> params, _ = nfnet(width=2, blocks=(1,) * 4).init(None, (1, 2, 32, 32, 3))
    >>> params["fc"]["kernel"].shape
    (64, 10)
    """
    layers = [standardised_convolution("NF_ResNet_init_conv", width, 3, 2)]
    first, variance = 0, 1.0  # number of a stage's first block; expected variance of a block's input
    for stage, (count, published) in enumerate(zip(blocks, BLOCKS, strict=True)):
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            name, features = f"NF_ResNet_block_{first + i}", 4 * width * 2**stage
            layers.append(_block(name, features, stride, i == 0, math.sqrt(variance)))
            # A block adds variance 1 to its shortcut's, which is 1 where that is a convolution.
            variance = (1.0 if i == 0 else variance) + 1
        first += max(count, published)
    return chain(
        *layers,
        relu(VARIANCE_KEPT),
        global_average("pool"),
        dropout("dropout", dropout_rate),
        dense("fc", classes),
    )


def _block(name: str, features: int, stride: int, projected: bool, deviation: float) -> Layer:
    """Pre-activated bottleneck; its input is divided by its expected standard deviation.

    If channels or stride change (`projected`), the shortcut is a convolution of the activated input;
    otherwise it is the input itself.
    """
    activated = relu(VARIANCE_KEPT / deviation)
    main = chain(
        standardised_convolution(f"{name}_conv0", features // 4, 1),
        relu(VARIANCE_KEPT),
        standardised_convolution(f"{name}_conv1", features // 4, 3, stride),
        relu(VARIANCE_KEPT),
        standardised_convolution(f"{name}_conv2", features, 1),
        skip_gain(name),
    )
    if projected:
        return chain(activated, residual(main, standardised_convolution(f"{name}_conv_shortcut", features, 1, stride)))
    return residual(chain(activated, main))
