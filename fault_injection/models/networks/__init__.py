"""Networks of images by name; each takes `width`, `blocks` and `dropout_rate`."""

from collections.abc import Callable
from functools import partial

from ..layer import Layer
from .densenet import densenet
from .effnet import effnet
from .nfnet import nfnet
from .resnet import resnet18

NETWORKS: dict[str, Callable[..., Layer]] = {
    "resnet18": resnet18,
    "resnet18_nobn": partial(resnet18, norm=False),
    "resnet18_largedecay": partial(resnet18, momentum=0.99),
    "effnet": effnet,
    "densenet": densenet,
    "nfnet": nfnet,
}
