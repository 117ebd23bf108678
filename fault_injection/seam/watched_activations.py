"""What a pass says of its activations after a profile (`models.observe.dr_dna`)."""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax

from ..models.isolation import isolated
from ..models.observe.dr_dna import SAMPLES, Profile, largest_values


def scored(profile: Profile | None, tensors: Mapping[str, Any], axis: str | None) -> dict[str, jax.Array]:
    """What the pass says of its activations, by name: the largest of all examples of the devices of `axis`.

    Args:
      tensors: of the pass, the samples by layer among them.
    """
    if profile is None or profile.histograms is None:
        return {}
    with isolated("false"):
        found = largest_values(profile, tensors[SAMPLES])
    found = found if axis is None else lax.pmax(found, axis)
    return {f"{name}/{layer}": found[name][i] for name in found for i, layer in enumerate(profile.layers)}


def returned(profile: Profile | None, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that are returned: samples only where a profile is made of them."""
    is_scored = profile is not None and profile.histograms is not None
    return {kind: named for kind, named in tensors.items() if not (is_scored and kind == SAMPLES)}
