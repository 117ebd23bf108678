"""The names inside JAX that promise nothing: primitives and their parameters, in this one place.

A jaxpr is public (`jax.make_jaxpr`, `jax.extend.core`), and `jax.core.eval_jaxpr` evaluates one.  The names of
primitives and the keys of their parameters may change with any version.  Read for JAX 0.8 to 0.12; where a name
changes, this file is the one to edit.  What each name could be replaced with is said beside it.
"""

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import source_info_util
from jax.extend import core
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

# Products and convolutions: what a fault can strike.  Public alternative: `jax.extend.core.primitives.dot_general_p`
# and its neighbours, whose `name` this is.
PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})

# Equations that have a body which is rewritten, and the parameter that holds it.  There is no public table of it.
BODIES = {
    "jit": "jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "scan": "jaxpr",
    "while": "body_jaxpr",
    "cond": "branches",
    "shard_map": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}

# A call of this name is no part of the training, and nothing in it is a site.
BESIDE_THE_TRAINING = "beside_the_training"

# What computes products of its own, and cannot be looked into.
CLOSED = frozenset(
    {
        *("pallas_call", "tpu_custom_call", "ffi_call", "custom_partitioning", "mosaic_gpu"),
        *("triangular_solve", "cholesky", "lu", "qr", "geqrf", "householder_product", "eigh", "svd", "fft"),
        *("dot_product_attention_fwd", "dot_product_attention_bwd", "scaled_matmul_wrapper"),
        *("call_exported", "pure_callback", "io_callback"),  # a program or function that nothing is known of
        *("bcoo_dot_general", "bcoo_dot_general_sampled", "bcsr_dot_general", "bcoo_spdot_general"),
        *("bcoo_conv_general_dilated", "coo_matmat", "coo_matvec", "csr_matmat", "csr_matvec"),
        *("coo_matmat_", "coo_spmm", "coo_spmv", "csr_spmm", "csr_spmv"),
    }
)

# Name stacks say which equations are differentiated, which differentiation made, and which a checkpoint makes again.
# Differentiation has no public mark.
DIFFERENTIATED, TRANSPOSED, RECOMPUTED = "jvp(", "transpose(", "rematted_computation"

# The value of these is their operand's: another type, another layout, another placement.
RELAID = frozenset(
    {
        *("convert_element_type", "reduce_precision", "transpose", "reshape", "squeeze", "expand_dims", "rev"),
        *("copy", "copy_p", "name", "optimization_barrier", "sharding_constraint", "mesh_cast", "reshard"),
        *("pvary", "pcast", "stop_gradient"),
    }
)
# Random numbers: drawn anew in each step, as a batch is.  The key in the state is no parameter.
DRAWN = frozenset({"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform"})
# Their value is a part of their first operand's, or that of all devices.
PARTS = frozenset({"slice", "dynamic_slice", "all_gather", "all_gather_invariant", "broadcast_in_dim"})
# Each result is computed of one operand, and of all devices'.
COLLECTIVES = frozenset({"psum", "psum2", "psum_invariant", "pmax", "pmin", "ppermute", "reduce_scatter", "all_to_all"})
# They put small operands into a large result.
PUT_TOGETHER = frozenset({"concatenate", "stack"})
PLACED = frozenset({*PUT_TOGETHER, "pad", "dynamic_update_slice", "scatter", "scatter-add", "scatter_add"})

# Inside `shard_map`, types say along which mesh axes a value differs.  A struck worker differs from the others, which
# breaks them, so the rewritten body has no such types.  These equations are all that is left of them.
UNTYPED = {
    "pvary": lambda params, values: values,
    "pcast": lambda params, values: values,
    "psum_invariant": lambda params, values: list(lax.psum(tuple(values), params["axes"])),
    "all_gather_invariant": lambda params, values: [
        lax.all_gather(values[0], params["axis_name"], axis=params["all_gather_dimension"], tiled=params["tiled"])
    ],
}


class Body(NamedTuple):
    """A jaxpr that an equation has, and the values of its constants."""

    jaxpr: Any
    consts: Sequence[Any]


def opened(jaxpr: Any) -> Body:
    """A jaxpr, closed or not, as a body."""
    return Body(jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, core.ClosedJaxpr) else Body(jaxpr, ())


def strikable(equation: Any, kinds: frozenset[str]) -> bool:
    """Whether an equation is a site: a product of these kinds, of real numbers, with something in it."""
    if equation.primitive.name not in kinds:  # others may have tokens, which have no size
        return False
    tensors = [atom.aval for atom in (*equation.invars[:2], *equation.outvars)]
    return all(one.size and not jnp.issubdtype(one.dtype, jnp.complexfloating) for one in tensors)


def by_platform(equation: Any) -> bool:
    """Whether an equation has a branch for each platform, of which only one can be compiled."""
    return equation.params.get("branches_platforms") is not None


def bodies(equation: Any) -> list[Body]:
    """The bodies of an equation that are rewritten, in the order in which their sites are numbered."""
    if equation.primitive.name not in BODIES or by_platform(equation):
        return []
    if equation.params.get("name") == BESIDE_THE_TRAINING:
        return []
    found = equation.params[BODIES[equation.primitive.name]]
    return [opened(one) for one in (found if isinstance(found, (tuple, list)) else [found])]


def closed_bodies(equation: Any) -> list[Body]:
    """The bodies of an equation that stay as they are: of an unknown one, and the condition of a while loop."""
    if equation.primitive.name in BODIES and equation.primitive.name != "while" and not by_platform(equation):
        return []
    known = {None if by_platform(equation) else BODIES.get(equation.primitive.name)}
    values = [value for key, value in equation.params.items() if key not in known]
    each = [one for value in values for one in (value if isinstance(value, (tuple, list)) else [value])]
    return [opened(one) for one in each if isinstance(one, (core.Jaxpr, core.ClosedJaxpr))]


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a constant written in it."""
    return isinstance(atom, core.Literal)


@functools.cache
def _nameless() -> Any:
    """What a jaxpr that is put together here says of its arguments: nothing."""
    return jax.make_jaxpr(lambda: ())().jaxpr.debug_info.with_unknown_names()


def evaluate(equation: Any, values: Sequence[Any], untyped: bool = False) -> list[Any]:
    """One equation, as it was: `eval_jaxpr` knows how to bind its parameters, contexts and effects.

    Args:
      untyped: whether it stands in a body of `shard_map` that has been rewritten without types.
    """
    if untyped and equation.primitive.name in UNTYPED:
        return UNTYPED[equation.primitive.name](equation.params, list(values))
    free = {
        atom: value for atom, value in zip(equation.invars, values, strict=True) if not isinstance(atom, core.Literal)
    }
    one = core.Jaxpr((), list(free), list(equation.outvars), [equation], equation.effects, _nameless())
    return jax.core.eval_jaxpr(one, (), *free.values())


def trace_of(value: Any) -> Any:
    """The trace that a traced value belongs to.  `_trace` is private; nothing public tells traces apart."""
    return value._trace


def is_tracer_of(value: Any, trace: Any) -> bool:
    """Whether something is a value of this trace; its type says so, because `isinstance` may run an object's code."""
    return issubclass(type(value), jax.core.Tracer) and trace_of(value) is trace


def mark(equation: Any) -> str:
    """The equation's name stack, which is relative to the body that it stands in."""
    return str(equation.source_info.name_stack)


def line(equation: Any) -> str:
    """The line of the user's file that made an equation, such as `my_run.py:12`; empty where none is known.

    Lines of installed libraries are passed over, where there is another.  `jax._src.source_info_util` is private.
    The public way is the text of a jaxpr that is printed with `source_info=True`.
    """
    frames = list(source_info_util.user_frames(equation.source_info.traceback))
    if not frames:
        return ""
    frame = next((one for one in frames if "site-packages" not in one.file_name), frames[0])
    return f"{frame.file_name.replace(chr(92), '/').rpartition('/')[2]}:{frame.start_line}"


def jit_options(params: dict[str, Any]) -> dict[str, Any]:
    """What `jax.jit` takes to be a nested call again: one operand more before its own, and a pair of results.

    A call that says nothing of shardings stays one that says nothing.

    Args:
      params: of the equation.
    """

    def given(key: str) -> list[Any]:
        return [None if type(one).__name__ == "UnspecifiedValue" else one for one in params[key]]

    arguments, results = given("in_shardings"), given("out_shardings")
    found: dict[str, Any] = {"inline": params["inline"]}
    if options := dict(params["compiler_options_kvs"]):
        found["compiler_options"] = options
    if any(one is not None for one in [*arguments, *results]):
        found |= {"in_shardings": (None, *arguments), "out_shardings": (results, None)}
    return found


def meshes_of_shardings(params: dict[str, Any]) -> list[Mesh]:
    """The meshes over which an equation says that its operands and results lie, see `meshes_of`.

    Args:
      params: of the equation: those of a nested call and of a constraint have shardings.
    """
    return meshes_of([*params.get("in_shardings", ()), *params.get("out_shardings", ()), params.get("sharding")])


def meshes_of(shardings: Sequence[Any]) -> list[Mesh]:
    """The meshes over which arrays of these shardings lie, each named once; of one device only those with types."""
    meshes = [one.mesh for one in shardings if isinstance(one, NamedSharding) and isinstance(one.mesh, Mesh)]
    return [mesh for mesh in dict.fromkeys(meshes) if mesh.devices.size > 1 or is_explicit(mesh)]


def is_explicit(mesh: Mesh) -> bool:
    """Whether the types of arrays say how devices share them out, over an axis of this mesh at least."""
    return AxisType.Explicit in mesh.axis_types


def typed_by(meshes: Sequence[Mesh]) -> contextlib.AbstractContextManager[Any]:
    """In this context, constants have types of the mesh with explicit axes, if there is one."""
    explicit = next(filter(is_explicit, meshes), None)
    return contextlib.nullcontext() if explicit is None else jax.sharding.use_abstract_mesh(explicit.abstract_mesh)


def gathered(tensor: jax.Array) -> jax.Array:
    """A tensor as a whole on each device, where its type says how devices share it out (a mesh with explicit axes)."""
    typed = jax.typeof(tensor).sharding
    return jax.sharding.reshard(tensor, NamedSharding(typed.mesh, PartitionSpec())) if any(typed.spec) else tensor


def resharded(tensor: jax.Array, like: jax.Array) -> jax.Array:
    """A tensor that was `gathered`, shared out again as another's type says."""
    typed = jax.typeof(like).sharding
    return jax.sharding.reshard(tensor, typed) if any(typed.spec) else tensor


def bind_checkpoint(equation: Any, body: Any, new: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """A checkpoint again, with another body.  `jax.checkpoint` would forget that it has been differentiated.

    Args:
      body: a closed jaxpr of the new operands, followed by those of the equation.
      new: its new operands.
    """
    consts, jaxpr = list(body.consts), body.jaxpr
    open_ = core.Jaxpr((), [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr.effects, _nameless())
    params = {**equation.params, "jaxpr": open_}
    if isinstance(params["prevent_cse"], tuple):
        params["prevent_cse"] = (False,) * (len(consts) + len(new)) + params["prevent_cse"]
    return equation.primitive.bind(*consts, *new, *values, **params)


def scan_operands(params: dict[str, Any]) -> tuple[int, int]:
    """How many operands of a `scan` are constants, and how many its turns carry on; the others are sliced."""
    if "ft_in" in params:  # since JAX 0.12
        constants, carried, _ = params["ft_in"].unpack()
        return len(constants), len(carried)
    return params["num_consts"], params["num_carry"]


def layout(equation: Any) -> tuple[str, ...]:
    """Which axes the two operands and the result of a site have, as letters; empty where that is not known.

    >>> product = jax.make_jaxpr(lambda a, b: a @ b)(jnp.ones((2, 3)), jnp.ones((3, 4))).eqns[0]
    >>> layout(product)
    ('ab', 'bc', 'ac')
    """
    params, ranks = equation.params, [atom.aval.ndim for atom in (*equation.invars[:2], equation.outvars[0])]
    if equation.primitive.name == "dot_general":
        (mine, other), (batch, other_batch) = contracted(params)
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        a = [next(letters) for _ in range(ranks[0])]
        shared = dict(zip((*other, *other_batch), (a[axis] for axis in (*mine, *batch)), strict=True))
        b = [shared[axis] if axis in shared else next(letters) for axis in range(ranks[1])]
        free = [one for axis, one in enumerate(a) if axis not in (*mine, *batch)]
        free += [one for axis, one in enumerate(b) if axis not in shared]
        return "".join(a), "".join(b), "".join([*(a[axis] for axis in batch), *free])
    if equation.primitive.name == "conv_general_dilated":
        numbers, space = params["dimension_numbers"], "DHW"[max(0, 5 - ranks[0]) :]
        if ranks[0] <= 5:
            named = ((numbers.lhs_spec, "NC"), (numbers.rhs_spec, "OI"), (numbers.out_spec, "NC"))
            return tuple("".join(one for _, one in sorted(zip(spec, two + space, strict=True))) for spec, two in named)
    return ()


def is_of_vector(equation: Any) -> bool:
    """Whether an equation is a product with a vector: one of its operands has no axis of its own, or one of 1."""
    if equation.primitive.name != "dot_general":
        return False
    summed, batch = contracted(equation.params)
    shapes = [atom.aval.shape for atom in equation.invars]
    free = (
        math.prod(length for axis, length in enumerate(shape) if axis not in (*mine, *shared))
        for shape, mine, shared in zip(shapes, summed, batch, strict=True)
    )
    return min(free) == 1


def contracted(params: dict[str, Any]) -> tuple[Any, Any]:
    """The dimension numbers of a `dot_general`, as `lax.dot_general` takes them, in tuples."""
    (mine, other), (batch, other_batch) = params["dimension_numbers"]
    return (tuple(mine), tuple(other)), (tuple(batch), tuple(other_batch))


def is_widened(equation: Any) -> bool:
    """Whether an equation is a product of bfloat16 tensors that XLA on CPUs computes in float32, and rounds."""
    if equation.primitive.name != "dot_general":
        return False
    precision = equation.params["precision"]  # a pair says how float32 is rounded; else an algorithm may be named
    tensors = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    return (precision is None or isinstance(precision, tuple)) and all(one.dtype == jnp.bfloat16 for one in tensors)


def wide_product(equation: Any, a: jax.Array, b: jax.Array, dimension_numbers: Any) -> jax.Array:
    """A product of the precision of an equation that `is_widened`, of operands that are float32, and its result too."""
    return lax.dot_general(
        a, b, dimension_numbers, precision=equation.params["precision"], preferred_element_type=jnp.dtype("float32")
    )


def kernel_axes(params: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """The axes of a convolution's kernel that it adds up over, those of space and the input's channels; and the other.

    Args:
      params: of a `conv_general_dilated`.
    """
    outputs, inputs, *space = params["dimension_numbers"].rhs_spec
    return (*space, inputs), outputs


def convolved(params: dict[str, Any]) -> tuple[tuple[str, Any], ...] | None:
    """Keyword arguments of `lax.conv_general_dilated` that make a convolution again; None where it has groups."""
    if params["feature_group_count"] > 1 or params["batch_group_count"] > 1:
        return None
    kept = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers")
    return tuple((key, params[key]) for key in kept)


def manual_axes(params: dict[str, Any]) -> tuple[str, ...]:
    """The mesh axes over which a `shard_map` runs its body, in the order of the mesh."""
    mapped = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
    return tuple(axis for axis in params["mesh"].axis_names if axis in mapped)
