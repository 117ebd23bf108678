"""ResNet-18 as published (docs/science.md, Published set-up): a 7×7 stem without pooling, dropout after activations."""

from ..combinators import chain, residual
from ..layer import Layer
from ..layers.activation import relu
from ..layers.convolution import convolution
from ..layers.dense import dense
from ..layers.dropout import dropout
from ..layers.normalisation import MOMENTUM, batch_norm
from ..layers.pooling import global_average


def resnet18(
    width: int = 64,
    blocks: tuple[int, ...] = (2, 2, 2, 2),
    classes: int = 10,
    dropout_rate: float = 0.15,
    norm: bool = True,
    momentum: float = MOMENTUM,
) -> Layer:
    """ResNet-18 for 32×32 images: [R,b,32,32,3] -> logits [R,b,classes].

    Args:
      width: channels of the first stage; the stages have 1, 2, 4, 8 times as many.
      blocks: number of blocks of each of the four stages.
      classes: number of classes.
      dropout_rate: after every activation inside the stages.
      norm: False leaves out every batch normalisation (workload `resnet18_nobn`).
      momentum: of the running statistics (0.99 in workload `resnet18_largedecay`).

    Reference: He, Zhang, Ren, Sun, CVPR 2016; as used by He et al., ISCA 2023.

    >>> network = resnet18(width=8)
    >>> params, stats = network.init((0,), (1, 2, 32, 32, 3))
    >>> params["fc"]["kernel"].shape, len(params), len(stats)
    ((64, 10), 41, 20)
    """

    def normalise(name: str) -> Layer:
        return batch_norm(name, momentum) if norm else chain()

    def block(name: str, features: int, stride: int) -> Layer:
        shortcut = chain(
            convolution(f"{name}_downsample", features, 1, stride),
            normalise(f"{name}_bn3"),
        )
        main = chain(
            convolution(f"{name}_conv1", features, 3, stride),
            normalise(f"{name}_bn1"),
            relu(),
            dropout(f"{name}_dropout1", dropout_rate),
            convolution(f"{name}_conv2", features, 3),
            normalise(f"{name}_bn2"),
        )
        return chain(
            residual(main, shortcut if stride != 1 else None),
            relu(),
            dropout(f"{name}_dropout2", dropout_rate),
        )

    stages = [
        block(f"basicblock_{stage}_basic_{i}", width * 2 ** (stage - 1), 2 if stage > 1 and i == 0 else 1)
        for stage, count in zip((1, 2, 3, 4), blocks, strict=True)
        for i in range(count)
    ]
    return chain(
        convolution("conv1", width, 7, 2),
        normalise("bn1"),
        relu(),
        *stages,
        global_average("pool"),
        dense("fc", classes),
    )
