"""A function that was traced on this machine, lowered for devices that are only described.

A user's step may name devices: it was made on a mesh, and its initial state lies on one.  Nothing can be put on
described devices, so the step is traced here, on as many devices of this machine, and each device that the traced
program names is replaced by the described one of the same place.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from ..machine.devices import devices
from ..machine.errors import InputError


def lowered_for_described(function: Callable[..., Any], arguments: tuple[Any, ...], donated: int = 0) -> Any:
    """A function of arrays before compilation (`jax.stages.Lowered`), for `machine.devices.devices`.

    Args:
      function: of the arguments.
      arguments: trees of arrays of this machine.
      donated: how many arguments from the first on the function may overwrite.

    Raises:
      InputError: it needs more devices than are described.
    """
    traced = jax.make_jaxpr(function)(*arguments)
    leaves, kept = jax.tree.leaves(arguments), len(jax.tree.leaves(arguments[:donated]))
    # Where nothing says where they lie, arrays lie on one device, or as the compiler likes.
    meshes = _meshes(traced) or any(isinstance(_sharding(leaf), NamedSharding) for leaf in leaves)
    elsewhere = None if meshes else SingleDeviceSharding(devices()[0])
    shapes = [
        jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=_moved(own) if isinstance(own, NamedSharding) else elsewhere
        )
        for aval, own in zip(traced.in_avals, map(_sharding, leaves), strict=True)
    ]
    moved = jax.jit(core.jaxpr_as_fun(_moved(traced)), donate_argnums=tuple(range(kept)))
    return moved.lower(*shapes)


def _sharding(leaf: Any) -> Sharding | None:
    return getattr(leaf, "sharding", None)


def _meshes(value: Any) -> bool:
    """Whether a traced program names a mesh of devices."""
    if isinstance(value, Mesh):
        return not value.empty
    if isinstance(value, NamedSharding):
        return _meshes(value.mesh)
    return any(map(_meshes, _parts(value)))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, core.Jaxpr):
        return [part for equation in value.eqns for part in equation.params.values()]
    return list(value) if isinstance(value, tuple | list) else []


def _moved(value: Any) -> Any:
    """A traced program, or a part of one, with described devices in place of this machine's."""
    if isinstance(value, Mesh) and not value.empty:
        return Mesh(np.vectorize(_counterpart, otypes=[object])(value.devices), value.axis_names, value.axis_types)
    if isinstance(value, NamedSharding):
        return NamedSharding(_moved(value.mesh), value.spec) if isinstance(value.mesh, Mesh) else value
    if isinstance(value, SingleDeviceSharding):
        return SingleDeviceSharding(*map(_counterpart, value.device_set))
    if isinstance(value, jax.Device):
        return _counterpart(value)
    if isinstance(value, core.ClosedJaxpr):
        return core.ClosedJaxpr(_moved(value.jaxpr), value.consts)
    if isinstance(value, core.Jaxpr):
        equations = [
            equation.replace(params={name: _moved(part) for name, part in equation.params.items()})
            for equation in value.eqns
        ]
        return value.replace(eqns=equations)
    if type(value) in (tuple, list):
        return type(value)(map(_moved, value))
    return value


def _counterpart(device: Any) -> Any:
    here, there = jax.devices(), devices()
    if device not in here:  # it is a described one already
        return device
    if (place := here.index(device)) >= len(there):
        raise InputError(f"the step is made for {place + 1} devices or more; {len(there)} are described")
    return there[place]
