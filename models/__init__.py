"""What is computed, and where it can be corrupted.

Networks are written once, as layers and combinators; each layer has its forward and its
backward pass side by side.  Nothing here knows of injection files, epochs or verdicts.
"""

from collections.abc import Callable
from functools import partial

from .densenet import densenet
from .effnet import effnet
from .layer import Layer
from .nfnet import nfnet
from .resnet import resnet18

# Each takes `width`, `blocks` and `dropout_rate`.
NETWORKS: dict[str, Callable[..., Layer]] = {
    "resnet18": resnet18,
    "resnet18_nobn": partial(resnet18, norm=False),
    "effnet": effnet,
    "densenet": densenet,
    "nfnet": nfnet,
}
