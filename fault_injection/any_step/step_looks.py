"""What a step tells of its sites: checksums of products, and the largest values and samples of activations.

An activation is the result of a site of the forward pass.  A layer is such a site outside of loops, branches and
`shard_map`, whose result has one axis that counts examples: its activation is sampled, example by example.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..models.fault import Operand
from ..models.isolation import isolated
from ..models.largest import largest
from ..models.observe.dr_dna import SAMPLED, SAMPLES, sampled
from ..models.observe.reductions import OF_PRODUCTS, WHOLE_RESULTS
from .jax_internals import gathered
from .step_checks import checks
from .step_site import StepSite

LARGEST = "largest"
ACTIVATIONS = f"{LARGEST}/activations"
REPORTED = frozenset({ACTIVATIONS, *(f"{reduction}/products" for reduction in OF_PRODUCTS)})

Seen = Mapping[str, jax.Array]  # by what is told, with a leading axis that counts the sites of a body


class Layers(NamedTuple):
    """The layers of a step whose activations can be sampled.

    Attributes:
      examples: of a batch.
      axes: by site, in the order of the step, which axis of its result counts examples.  One that is k times as long
        as the batch holds k rows of each example, those of the first example first: B·T of a flattened sequence.
    """

    examples: int
    axes: Mapping[str, int]


class Looks(NamedTuple):
    """What is told of each site.

    Attributes:
      checksums: reductions of products, of `models.observe.reductions.OF_PRODUCTS`.
      forward: `id` of the equations whose largest absolute value is told.
      axes: of the equations that are sampled, by their `id`, which axis of the result counts examples.
      examples: of a batch, where something is sampled.
      whole: whether the whole result of every site is told.
    """

    checksums: tuple[str, ...] = ()
    forward: frozenset[int] = frozenset()
    axes: Mapping[int, int] = {}
    examples: int = 0
    whole: bool = False

    @property
    def told(self) -> dict[str, tuple[int, ...]]:
        """What is told, and the shape that one site has of it; all of it is float32.

        >>> Looks(("checksum",), frozenset({1})).told
        {'checksum': (), 'largest': ()}
        """
        found: dict[str, tuple[int, ...]] = dict.fromkeys(self.checksums, ())
        found |= {LARGEST: ()} if self.forward else {}
        return found | ({SAMPLES: (self.examples, SAMPLED)} if self.axes else {})

    def nothing(self, sites: int) -> Seen:
        """What is told of so many sites where nothing of them runs."""
        return {what: jnp.zeros((sites, *shape), jnp.float32) for what, shape in self.told.items()}

    def at(self, equation: Any, operands: Sequence[Any], result: jax.Array, places: jax.Array | None) -> Seen:
        """What is told of one site.

        Args:
          operands: without a fault.
          places: int32 [1,PLACES], where an example's activation is sampled; None where it is not.
        """
        found = dict(self.nothing(1))
        if self.checksums:
            values = checks(equation, operands, result, self.checksums)
            found |= {name: values[:, column] for column, name in enumerate(self.checksums)}
        with isolated("false"):
            if id(equation) in self.forward:
                found[LARGEST] = _largest(gathered(result))
            if places is not None and id(equation) in self.axes:
                examples = jnp.moveaxis(gathered(result), self.axes[id(equation)], 0)
                found[SAMPLES] = sampled(examples.reshape(1, self.examples, -1), places[0]).astype(jnp.float32)
        return found


@jax.jit
def _largest(tensor: jax.Array) -> jax.Array:
    return largest(tensor).astype(jnp.float32)[None]


def is_activation(site: StepSite) -> bool:
    """Whether a site's result is an activation: floating-point numbers of the forward pass."""
    return site.role == "forward" and bool(jnp.issubdtype(site.operands[Operand.OUTPUT].dtype, jnp.floating))


def looks(
    reductions: frozenset[str], sites: Mapping[str, StepSite], equations: Mapping[str, Any], layers: Layers | None
) -> Looks:
    """What is told of a step.

    Args:
      reductions: of `REPORTED`, or `WHOLE_RESULTS`; others are passed over.
      sites, equations: of the whole step, by name.
      layers: whose activations are sampled; None samples nothing.
    """
    checksums = tuple(sorted(name.partition("/")[0] for name in reductions & (REPORTED - {ACTIVATIONS})))
    forward = [name for name, site in sites.items() if ACTIVATIONS in reductions and is_activation(site)]
    axes = {} if layers is None else {id(equations[name]): axis for name, axis in layers.axes.items()}
    examples = 0 if layers is None else layers.examples
    numbers = frozenset(id(equations[name]) for name in forward)
    return Looks(checksums, numbers, axes, examples, whole=WHOLE_RESULTS in reductions)


def named(seen: Seen, sites: Mapping[str, StepSite]) -> dict[str, jax.Array]:
    """The reductions that a step tells, by `REDUCTION/KIND/SITE`."""
    found = {}
    for what in seen.keys() - {SAMPLES}:
        kind = "activations" if what == LARGEST else "products"
        for place, (name, site) in enumerate(sites.items()):
            if is_activation(site) if what == LARGEST else site.checked:
                found[f"{what}/{kind}/{name}"] = seen[what][place]
    return found


def samples(seen: Seen, sites: Mapping[str, StepSite], layers: Sequence[str]) -> dict[str, jax.Array]:
    """The samples float32 [1,b,SAMPLED] of the activations of layers, by name."""
    numbers = {name: place for place, name in enumerate(sites)}
    return {layer: seen[SAMPLES][numbers[layer]][None] for layer in layers}
