"""The devices that programs are made for: those that JAX finds, or ones that are only described.

For described devices a program can be traced and compiled, and cannot run: what would be put on them stays shapes.
"""

import contextlib
import contextvars
import os
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Sharding

from .errors import InputError

_described = contextvars.ContextVar[list[Any] | None]("_described", default=None)
TPU_EXAMPLES = "tpu:v2:2x2, tpu:v3:2x2, tpu:v4:2x2x1, tpu:v5e:2x4, tpu:v5p:2x2x2 or tpu:v6e:2x4"

EFFORTS = ("jax_exec_time_optimization_effort", "jax_memory_fitting_effort")


@contextlib.contextmanager
def described(topology: str, effort: float = 0.0) -> Iterator[list[Any]]:
    """Make programs for devices that are only described; gives these.

    Args:
      topology: `cpu`, the devices that JAX finds on this machine without accelerators; or `tpu:` and a name that
        libtpu knows, such as `tpu:v2:2x2`: generation and chips along each axis.
      effort: how much the compiler optimizes for time and memory, from -1 to 1; 0 is what programs that run have.

    Raises:
      InputError: it is no such text, or nothing here can describe it.

    >>> with described("cpu") as found:
    ...     found == devices(), platform()
    (True, 'cpu')
    """
    found = _devices_of(topology)
    before, cached = _described.set(found), jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    for name in EFFORTS:
        jax.config.update(name, effort)
    if topology != "cpu":
        jax.config.update("jax_enable_compilation_cache", False)  # its programs can be read by their devices alone
        with contextlib.suppress(RuntimeError):  # a step of one's own is made for as many devices of this machine
            jax.config.update("jax_num_cpu_devices", len(found))
    try:
        yield found
    finally:
        _described.reset(before)
        jax.config.update("jax_enable_compilation_cache", cached)
        for name in EFFORTS:
            jax.config.update(name, 0.0)


def _devices_of(topology: str) -> list[Any]:
    kind, _, name = topology.partition(":")
    if topology == "cpu":
        return list(jax.devices("cpu"))
    if kind != "tpu" or not name:
        raise InputError(f"topology {topology[:60]!r}; expected cpu, or such as {TPU_EXAMPLES}")
    # Else libtpu asks a server of Google's cloud what machine this is, and says at length that it was not answered;
    # and it lets one process at a time describe devices, as if that process held them.
    unasked = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": name}
    for variable, value in {**unasked, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")  # whatever this machine has computes nothing here
    try:
        return list(topologies.get_topology_desc(platform=kind, topology_name=name).devices)
    except Exception as error:  # JAX and libtpu raise what they like
        reason = str(error).partition("\n")[0][:200]
        if "support not installed" in reason:
            reason = "describing TPUs needs libtpu: pip install 'jax[tpu]' (or -e '.[tpu]')"
        raise InputError(f"topology {topology[:60]!r}: {reason}; known are such as {TPU_EXAMPLES}") from None


def only_described() -> bool:
    """Whether programs are made now for devices on which nothing can be put."""
    return bool(_described.get())


def devices() -> list[Any]:
    """The devices that programs are made for."""
    return _described.get() or jax.devices()


def platform() -> str:
    """What they are: `cpu`, `gpu` or `tpu`."""
    found = _described.get()
    return found[0].platform if found else jax.default_backend()


def shaped(tree: Any, shardings: Any) -> Any:
    """Shapes and dtypes of arrays with where they lie, in place of the arrays.

    Args:
      shardings: a tree of shardings like that of the arrays, or one for all.
    """

    def of(array: Any, sharding: Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    if isinstance(shardings, Sharding):
        return jax.tree.map(lambda array: of(array, shardings), tree)
    return jax.tree.map(of, tree, shardings)
