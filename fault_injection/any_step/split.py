"""A function split in two: what its last argument leaves alone, computed once, and what lies behind it."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun


def split(function: Callable[..., Any], known: Any, unknown: Any) -> tuple[Callable[[Any], Any], Callable[..., Any]]:
    """Split `function(known, unknown)` into what depends on `known` alone, and the rest.

    An operation belongs to the rest if something that it reads depends on `unknown`.  A function
    that is called as a whole (`jit`, `scan`, …) is one operation.

    Args:
      known, unknown: trees of arrays, or of their shapes and dtypes.

    Returns:
      `before(known) -> kept`, a list of arrays, and `behind(kept, unknown) -> function(known, unknown)`.

    >>> import jax.numpy as jnp
    >>> before, behind = split(lambda x, w: jnp.sin(x) * w, jnp.ones(3), jnp.ones(()))
    >>> [leaf.shape for leaf in before(jnp.zeros(3))], behind(before(jnp.zeros(3)), jnp.float32(2)).tolist()
    ([(3,)], [0.0, 0.0, 0.0])
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(known, unknown)
    jaxpr, tree = closed.jaxpr, jax.tree.structure(shapes)
    count = len(jax.tree.leaves(known))
    inputs, changing = jaxpr.invars[:count], set(jaxpr.invars[count:])
    first: list[Any] = []
    rest: list[Any] = []
    for equation in jaxpr.eqns:
        behind_it = any(isinstance(v, Var) and v in changing for v in equation.invars)
        (rest if behind_it else first).append(equation)
        if behind_it:
            changing.update(equation.outvars)
    made = {*inputs, *jaxpr.constvars, *(v for equation in first for v in equation.outvars)}
    read = [v for equation in rest for v in equation.invars] + list(jaxpr.outvars)
    kept = list(dict.fromkeys(v for v in read if not isinstance(v, Literal) and v in made))

    def part(invars: list[Var], outvars: list[Any], equations: list[Any], constants: bool) -> Callable[..., list[Any]]:
        constvars, values = (jaxpr.constvars, closed.consts) if constants else ([], [])
        lists = {"constvars": constvars, "invars": invars, "outvars": outvars, "eqns": equations}
        return jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(**lists), values))

    make = part(inputs, kept, first, constants=True)
    finish = part([*kept, *jaxpr.invars[count:]], list(jaxpr.outvars), rest, constants=False)

    def before(known: Any) -> Any:
        return list(make(*jax.tree.leaves(known)))

    def behind(kept: Any, unknown: Any) -> Any:
        return jax.tree.unflatten(tree, finish(*kept, *jax.tree.leaves(unknown)))

    return before, behind
