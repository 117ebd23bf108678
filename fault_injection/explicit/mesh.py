"""The devices of a program: how many there are, which worker is on which, and what of an array each of them has."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..machine.devices import devices, only_described, platform, shaped
from ..machine.errors import InputError
from ..models.formulations import CPU_OPTIONS

AXIS = "workers"  # the devices; each has as many workers as any other, worker 0 being on the first
SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()  # by the leading axis; all of it on each device


def compiler_options() -> dict[str, str] | None:
    """Options for the outermost `jit`, where this version of XLA knows them."""
    return _options_on_cpus() if platform() == "cpu" else None


@functools.cache
def _options_on_cpus() -> dict[str, str] | None:
    try:
        jax.jit(jnp.negative, compiler_options=CPU_OPTIONS).lower(1.0).compile()
    except jax.errors.JaxRuntimeError:  # experimental options come and go
        return None
    return CPU_OPTIONS


def jitted(function: Callable[..., Any], **options: Any) -> Any:
    """A function compiled with `compiler_options`, which only the outermost `jit` can have."""
    return jax.jit(function, compiler_options=compiler_options(), **options)


def usable_devices(workers: int, wanted: int | None = None) -> int:
    """How many devices to use: those wanted, else the largest number that divides the workers.

    Raises:
      InputError: the devices of several processes cannot share the workers evenly.
    """
    available = len(devices())
    count = wanted or max(d for d in range(1, available + 1) if workers % d == 0)
    if jax.process_count() > 1 and count != available:
        found = f"{available} devices in {jax.process_count()} processes"
        raise InputError(f"{found}; expected a number that divides the {workers} workers")
    return count


def devices_of_stages(stages: int, wanted: int | None = None) -> int:
    """How many devices a pipeline uses: one for each stage, where there are so many, else a single one.

    Raises:
      InputError: there are several processes, and they have not a device for each stage.
    """
    available = len(devices())
    if jax.process_count() > 1 and stages != available:
        found = f"{available} devices in {jax.process_count()} processes"
        raise InputError(f"{found}; expected one for each of the {stages} stages")
    return stages if (wanted or available) >= stages else 1


@functools.cache
def _compile_anew() -> None:
    """Have this process compile its programs from now on, rather than take them from the cache on disk.

    XLA runs operations of a program for CPUs that do not read one another in any order, but for sums and other
    exchanges between devices: those it orders alike on all.  In a program read from the cache it does
    not (JAX 0.10.2): one device waits in one exchange and another in the next, for ever.
    """
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # which else remembers that it is used


def mesh_of(count: int) -> Mesh:
    """The first `count` devices."""
    if count > 1 and platform() == "cpu" and not only_described():
        _compile_anew()
    return Mesh(np.array(devices()[:count]), (AXIS,))


def shardings_of(mesh: Mesh, specs: Any, tree: Any) -> Any:
    """Specs as shardings of a tree of arrays: a tree of specs like that of the arrays, or one for all."""
    if isinstance(specs, PartitionSpec):
        return jax.tree.map(lambda _: NamedSharding(mesh, specs), tree)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def placed(mesh: Mesh, specs: Any) -> Callable[[Any], Any]:
    """A function that puts a tree of arrays of the host on the devices, each process its part.

    On devices that are only described they are shapes, and know where they would lie.

    Args:
      specs: what each device has of each array, see `shardings_of`.
    """
    if only_described():
        return lambda tree: shaped(tree, shardings_of(mesh, specs, tree))
    if jax.process_count() == 1:
        return lambda tree: jax.device_put(tree, shardings_of(mesh, specs, tree))

    def by_part(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(np.shape(array), sharding, lambda part: array[part])

    # device_put would compare the values of all processes, every time.
    return lambda tree: jax.tree.map(by_part, tree, shardings_of(mesh, specs, tree))


def sharded(parts: Collection[str], state: Any, count: int) -> Any:
    """What each of `count` devices has of a state, as specs: a piece of the arrays of some parts, of others all.

    An array is cut along its first axis that the devices divide evenly; one without such an axis stays whole.

    Args:
      parts: fields of the state.

    >>> state = {"params": jnp.ones((3, 4)), "opt_state": {"m": jnp.ones((3, 4)), "steps": jnp.ones(())}}
    >>> list(sharded({"opt_state"}, state, 2)["opt_state"]["m"]), list(sharded({"opt_state"}, state, 2)["params"])
    ([None, 'workers'], [])
    """

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        axes = [axis for axis, size in enumerate(np.shape(leaf)) if size and size % count == 0]
        if part_named(path) not in parts or not axes or count == 1:
            return WHOLE
        return PartitionSpec(*[None] * axes[0], AXIS)

    return jax.tree_util.tree_map_with_path(spec, state)


def part_named(path: Any) -> str:
    """The part of a state, such as `params`, in which a leaf's path begins."""
    return jax.tree_util.keystr(path[:1], simple=True)
