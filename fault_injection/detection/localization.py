"""Where an alarm points to: the operation, the array or the workers that the name of its tensor tells."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..faults.injection import ALL
from ..models.observe.dr_dna import NAMES
from ..models.observe.reductions import REDUCTIONS
from .worker_names import WORKERS

OF_ALL = ("loss", "gradient_norm", "probe")  # what is of the whole step
OF_OPERATIONS = ("activations", "gradients", "products")  # kinds of reductions named by a layer or an operation
# What holds parameters, moments or statistics in a tree, and says nothing of where they belong.
CONTAINERS = {
    *("params", "opt_state", "stats", "state", "m", "v", "mu", "nu", "trace", "gradient", "update", "master"),
}
KINDS = frozenset({*REDUCTIONS, *(name.partition("/")[0] for name in NAMES)})


class PointedAt(NamedTuple):
    """What the name of an alarm's tensor tells; what it does not tell is empty.

    Attributes:
      site: an operation, or the layer at whose input or output a gradient was looked at.
      leaf: an array of the state, a gradient, or a parameter.
      workers: numbers of those whose tensor it is.
    """

    site: str = ""
    leaf: str = ""
    workers: tuple[int, ...] = ()


def located(tensor: str) -> PointedAt:
    """Where an alarm points to.

    Args:
      tensor: `Alarm.tensor`, a name as `signals.KINDS` makes them.

    >>> located("largest/local_gradients/worker_3/fc/kernel")
    PointedAt(site='', leaf='fc/kernel', workers=(3,))
    >>> located("checksum/products/conv1_grad_wt").site, located("opt_state/m/fc/kernel").leaf, located("loss").leaf
    ('conv1_grad_wt', 'opt_state/m/fc/kernel', '')
    """
    if tensor in OF_ALL:
        return PointedAt()
    workers: tuple[int, ...] = ()
    if match := WORKERS.search(tensor):
        tensor = (tensor[: match.start()] + tensor[match.end() :]).rstrip("/")
        workers = tuple(range(int(match[1]), int(match[2] or match[1]) + 1))
    reduction, _, rest = tensor.partition("/")
    kind, _, name = rest.partition("/")
    if reduction not in KINDS or not name:
        return PointedAt(leaf=tensor, workers=workers)
    if kind in OF_OPERATIONS:
        return PointedAt(site=name, workers=workers)
    return PointedAt(leaf=name, workers=workers)


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
    """Whether an alarm names the struck operation or leaf itself, its layer, and its worker alone."""

    site: bool
    layer: bool
    worker: bool


def localized(tensor: str, struck: Target) -> Localized:
    """Whether an alarm points to where the fault struck.

    A tensor names a layer if its path contains the layer's, one part after the other.  The parts before that hold
    parameters, moments or statistics of all layers, and do not count.  No alarm names a worker where all workers share
    what was struck.

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
    at = located(tensor)
    name = at.site or at.leaf
    site = bool(name) and (name == struck.site or name.endswith(f"/{struck.site}"))
    layer = site or _within(_path(struck.layer), name.split("/"))
    return Localized(site, layer, struck.worker != ALL and at.workers == (struck.worker,))


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
