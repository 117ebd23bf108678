"""Where an alarm points: whether the tensor that it names is that of the struck operation or leaf, layer, or worker."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...faults.injection import ALL

# What holds parameters, moments or statistics in a tree, and says nothing of where they belong.
CONTAINERS = {
    *("params", "opt_state", "stats", "state", "m", "v", "mu", "nu", "trace", "gradient", "update", "master"),
    *("largest", "norm", "checksum", "variance_checksum", "dr_dna", "gradients", "activations", "products"),
}
WORKER = re.compile(r"\b(?:worker|rank)[ _:]?(\d+)\b")


class Target(NamedTuple):
    """What an experiment struck.

    Attributes:
      site: name of the operation or leaf.
      layer: that it belongs to; empty where it belongs to none.
      worker: the one struck, or `ALL`.
    """

    site: str
    layer: str
    worker: int


NOTHING = Target("", "", ALL)


class Localized(NamedTuple):
    """Whether an alarm names the struck operation or leaf itself, its layer, and its worker."""

    site: bool
    layer: bool
    worker: bool


def localized(tensor: str, struck: Target) -> Localized:
    """Whether an alarm points to where the fault struck.

    A tensor names a layer if its path contains the layer's, one part after the other.  The parts before that hold
    parameters, moments or statistics of all layers, and do not count.  `loss` and `gradient_norm` name nothing.  No
    alarm names a worker where all workers share what was struck.

    Args:
      tensor: as the alarm calls it.

    >>> struck = Target("conv1_grad_wt", "conv1", 3)
    >>> localized("checksum/products/conv1_grad_wt", struck)
    Localized(site=True, layer=True, worker=False)
    >>> localized("opt_state/m/conv1/kernel", struck), localized("loss", struck)
    (Localized(site=False, layer=True, worker=False), Localized(site=False, layer=False, worker=False))
    >>> localized("1/0/mu/head", Target("grad_wt:0/head", "0/head", 0)).layer
    True
    """
    site = tensor == struck.site or tensor.endswith(f"/{struck.site}")
    known = WORKER.search(tensor)
    worker = known is not None and struck.worker != ALL and int(known[1]) == struck.worker
    return Localized(site, site or _within(_path(struck.layer), tensor.split("/")), worker)


def _path(layer: str) -> list[str]:
    """The parts of a layer's path, without what holds it; all of them where nothing else is left."""
    parts = layer.split("/")
    left = list(parts)
    while left and (left[0] in CONTAINERS or left[0].isdigit()):
        del left[0]
    return left or parts


def _within(parts: Sequence[str], path: Sequence[str]) -> bool:
    """Whether all parts stand in a path, one after the other; an operation's role may end its name."""
    plain = [re.sub(r"_grad_(in|wt)$", "", part).rpartition(":")[2] for part in path]
    size = len(parts)
    return any(parts) and any(list(parts) == plain[i : i + size] for i in range(len(plain) - size + 1))
