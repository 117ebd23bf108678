"""Where an alarm points to: the operation, the array or the workers that the name of its tensor tells."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..models.observe.dr_dna import NAME
from ..models.observe.reductions import REDUCTIONS
from ..seam.leaves import part_of
from ..seam.stages import EXCHANGED

WORKERS = re.compile(r"workers?_(\d+)(?:_to_(\d+))?/")
RANK = re.compile(r"rank[ _]?\d+/")  # as trainers write it into logs
OF_ALL = ("loss", "gradient_norm", "probe")  # what is of the whole step
OF_OPERATIONS = ("activations", "gradients", "products")  # kinds of reductions named by a layer or an operation
PASSES = ("_grad_in", "_grad_wt")
KINDS = frozenset({*REDUCTIONS, NAME.partition("/")[0]})


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
    reduction, _, rest = tensor.partition("/")
    kind, _, name = rest.partition("/")
    if reduction not in KINDS or not name:
        return PointedAt(leaf=tensor)
    if kind in OF_OPERATIONS:
        return PointedAt(site=name)
    match = WORKERS.match(name) if kind == "local_gradients" else None
    if match is None:
        return PointedAt(leaf=name)
    first, last = int(match[1]), int(match[2] or match[1])
    return PointedAt(leaf=name[match.end() :], workers=tuple(range(first, last + 1)))


def names(tensor: str, target: str, parameters: Mapping[str, str] | None = None) -> bool:
    """Whether an alarm names what was struck: the layer of the operation, or of the parameter, that its tensor is of.

    Args:
      tensor: `Alarm.tensor`.
      target: the name of a site, of something that is exchanged, or of an array of the state.
      parameters: of arrays of a user's state, by name, the names of the parameters that they are kept for
        (`Leaf.parameter`): its parameters lie as deep as the user likes.  Without it a name ends in layer and
        parameter, as those of `models` do.

    >>> names("largest/activations/conv1", "conv1_grad_wt"), names("opt_state/v/conv1/kernel", "conv1_grad_wt")
    (True, True)
    >>> names("opt_state/v/conv1/kernel", "gradient/conv1/kernel"), names("opt_state/v/conv1/kernel", "params/fc/bias")
    (True, False)
    >>> names("loss", "conv1")
    False
    """
    at = located(tensor)
    if not at.site and not at.leaf:
        return False
    stage, _, rest = target.partition("/")
    struck = rest if stage in EXCHANGED and rest else target
    return _layer(at.site or at.leaf, parameters or {}) == _layer(struck, parameters or {})


def _layer(name: str, parameters: Mapping[str, str]) -> str:
    """The layer of an operation without its pass, or of an array."""
    if name in parameters:
        return parameters[name].rpartition("/")[0] or parameters[name]
    if part_of(name) != name:  # of a state: layer and parameter are its last two parts
        return name.split("/")[-2]
    for suffix in PASSES:
        name = name.removesuffix(suffix)
    return name.partition("/")[0]


def whose(tensor: str) -> str:
    """Whose tensor it is, as its name says; empty where it does not.  Strikes are counted for each by itself.

    >>> whose("largest/local_gradients/worker_3/fc/kernel"), whose("rank1/grad_max"), whose("loss")
    ('worker_3/', 'rank1/', '')
    """
    match = WORKERS.search(tensor) or RANK.search(tensor)
    return match[0] if match else ""
