"""The sites of a jaxpr: where they are, what they are to the training, and their names.

A name says the role of a product and the parameter that it reads, such as `forward:params/fc/kernel`.  It is found
by following values through casts, layout changes, slices, calls and loops, so it does not depend on lines or on how
functions are called.
"""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from .jax_internals import (
    CLOSED,
    DRAWN,
    PARTS,
    RECOMPUTED,
    RELAID,
    TRANSPOSED,
    Body,
    bodies,
    closed_bodies,
    is_literal,
    line,
    manual_axes,
    mark,
    meshes_of_shardings,
    scan_operands,
    strikable,
)


class Value(NamedTuple):
    """What is known of an array while a jaxpr is followed.

    Attributes:
      id: the same for arrays that hold the same values, up to type and layout.
      label: what it comes from: an argument's path, or the name of the last product on the way.
      product: number of that product; −1 where there is none.
      fed: whether it depends on the batch.
      late: whether it depends on the backward pass.
    """

    id: int
    label: str = ""
    product: int = -1
    fed: bool = False
    late: bool = False


class Around(NamedTuple):
    """What surrounds an equation.

    Attributes:
      backward: whether differentiation made it.
      recomputed: whether a checkpoint makes it again.
      turns: of the loops around it, the outermost first.
      axes: mesh axes over which it runs once each.
      workers: how many devices run it, each with operands of its own.
      conditional: whether a step may leave it out: it stands in a branch, or in a loop that may end before it.
    """

    backward: bool = False
    recomputed: bool = False
    turns: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    workers: int = 1
    conditional: bool = False


class FoundProduct(NamedTuple):
    """One operation that can be struck, as it is found.

    Attributes:
      equation: of the jaxpr.
      operands: its first two operands.
      label: what it is named after.
      weight: which of the two operands is the parameter, or stands for it; None where neither does.
      around: what surrounds it.
    """

    equation: Any
    operands: tuple[Value, Value]
    label: str
    weight: int | None
    around: Around

    @property
    def backward(self) -> bool:
        """Whether differentiation made it, and not a checkpoint again."""
        return self.around.backward and not self.around.recomputed

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Shape and dtype of its two operands and of its result, in one turn of one worker."""
        return tuple(atom.aval for atom in (*self.equation.invars[:2], self.equation.outvars[0]))


class Follower:
    """Follows values through a jaxpr, and lists its products in the order in which they are numbered.

    Attributes:
      products: found so far.
      closed: what computes products and cannot be struck, one text each.
      meshes: over which parts of it run.
    """

    def __init__(self, kinds: frozenset[str], turns: int):
        self.products: list[FoundProduct] = []
        self.closed: list[str] = []
        self.meshes: list[Any] = []
        self._kinds, self._turns, self._ids = kinds, turns, itertools.count()

    def fresh(self, label: str = "", fed: bool = False) -> Value:
        """A value that equals no other."""
        return Value(next(self._ids), label, fed=fed)

    def follow(self, body: Body, values: Sequence[Value], around: Around = Around()) -> list[Value]:  # noqa: B008
        """What is known of the results of a body, given what is known of its arguments."""
        jaxpr = body.jaxpr
        known = dict(zip(jaxpr.invars, values, strict=True)) | {var: self.fresh() for var in jaxpr.constvars}

        def read(atom: Any) -> Value:
            return self.fresh() if is_literal(atom) else known[atom]

        for equation in jaxpr.eqns:
            marked = mark(equation)
            here = around._replace(
                backward=around.backward or TRANSPOSED in marked,
                recomputed=around.recomputed or RECOMPUTED in marked,
            )
            results = self._results(equation, [read(atom) for atom in equation.invars], here)
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, equation: Any, values: list[Value], around: Around) -> list[Value]:
        name, params = equation.primitive.name, equation.params
        if strikable(equation, self._kinds):
            return [self._product(equation, values, around)]
        self._close(equation)
        self.meshes += meshes_of_shardings(params)
        if name in RELAID and len(values) == len(equation.outvars):
            return values
        if name in PARTS:
            return [values[0]._replace(id=next(self._ids), fed=any(one.fed for one in values))]
        if name in DRAWN:
            return [self.fresh(fed=True) for _ in equation.outvars]
        inside = bodies(equation)
        if name == "scan":
            constants, carried = scan_operands(params)
            here = around._replace(turns=(*around.turns, params["length"]))
            return self._loop(inside[0], values, constants, constants + carried, here)
        if name == "while":
            values, turns = values[params["cond_nconsts"] :], (*around.turns, self._turns)
            consts = params["body_nconsts"]
            here = around._replace(turns=turns, conditional=True)
            return self._loop(inside[0], values, consts, len(values), here)
        if name == "cond" and inside:
            each = [self.follow(body, values[1:], around._replace(conditional=True)) for body in inside]
            return [self._joined(list(branches), around) for branches in zip(*each, strict=True)]
        if name == "shard_map":
            mesh, axes = params["mesh"], manual_axes(params)
            self.meshes.append(mesh)
            workers = around.workers
            for axis in axes:
                workers *= mesh.shape[axis]
            return self.follow(inside[0], values, around._replace(axes=(*around.axes, *axes), workers=workers))
        if inside:
            return self.follow(inside[0], values, around)
        return [self._joined(values, around) for _ in equation.outvars]

    def _joined(self, values: list[Value], around: Around) -> Value:
        """A new value that is computed from others: it is named after the last product on the way to it."""
        nearest = max(values, key=lambda one: (one.product, bool(one.label)), default=Value(0))
        return Value(
            next(self._ids),
            nearest.label,
            nearest.product,
            fed=any(one.fed for one in values),
            late=(around.backward and not around.recomputed) or any(one.late for one in values),
        )

    def _loop(self, body: Body, values: list[Value], consts: int, carried: int, around: Around) -> list[Value]:
        """A loop.  A carried value counts as known only if it is known on entry and after one turn."""
        init = values[consts:carried]
        lists: list[list[Any]] = [self.products, self.closed, self.meshes]
        found = [*map(len, lists)]
        after = self.follow(body, values, around)
        for listed, count in zip(lists, found, strict=True):
            del listed[count:]
        carry = []
        for first, made in zip(init, after[: len(init)], strict=True):
            # Weights that a loop updates keep their name; activations that begin as a parameter do not.
            keeps = made.id == first.id or (made.late and not first.late) or not made.fed
            same = first if made.id == first.id else first._replace(id=next(self._ids))
            carry.append(same._replace(fed=first.fed or (made.fed and not keeps), late=first.late))
        return self.follow(body, [*values[:consts], *carry, *values[carried:]], around)

    def _product(self, equation: Any, values: list[Value], around: Around) -> Value:
        operands = values[0], values[1]
        whole = [bool(one.label) and not one.fed and not one.late and one.product < 0 for one in operands]
        weight = 1 if whole[1] else 0 if whole[0] else None
        short = [one.label.partition("@")[0] for one in operands]
        label = operands[weight].label if weight is not None else "@".join(part for part in short if part)
        product = FoundProduct(equation, operands, label or equation.primitive.name, weight, around)
        self.products.append(product)
        late = product.backward or any(one.late for one in operands)
        fed = any(one.fed for one in operands)
        return Value(next(self._ids), product.label, len(self.products) - 1, fed, late)

    def _close(self, equation: Any) -> None:
        """List an equation that computes products of its own."""
        name = equation.primitive.name

        def products(body: Body) -> int:
            inner = [one for each in body.jaxpr.eqns for one in (*bodies(each), *closed_bodies(each))]
            return sum(one.primitive.name in self._kinds for one in body.jaxpr.eqns) + sum(map(products, inner))

        if name in CLOSED or name in self._kinds or any(map(products, closed_bodies(equation))):
            what = "the condition of a while loop" if name == "while" else name
            if name in self._kinds:
                what = f"{name} of {equation.outvars[0].aval.str_short()}"
            at = line(equation)
            self.closed.append(f"{what} ({at})" if at else what)


def roles(products: Sequence[FoundProduct]) -> list[tuple[str, str]]:
    """The role of each product, and what it is named after.

    A product of the backward pass is known by what it shares with one before it: with the weight, it is the
    gradient of the input.  What is left is the gradient of a weight: of the product whose gradient of the input
    reads the same cotangent; else of one that has the same input; else of one whose weight has the size of the
    gradient.
    """
    found: list[tuple[str, str]] = []
    before: list[FoundProduct] = []  # of the forward pass and of checkpoints, as far as they come earlier
    by_cotangent: dict[int, str] = {}
    waiting: list[int] = []
    for number, product in enumerate(products):
        if not product.backward:
            late = any(one.late for one in product.operands) and not product.around.recomputed
            found.append(("recompute" if product.around.recomputed else "update" if late else "forward", product.label))
            if not late:
                before.append(product)
            continue
        ids = [one.id for one in product.operands]
        match = next((one for one in reversed(before) if _weight(one).id in ids), None)
        if match is not None and _input(match).id not in ids:
            cotangent = ids[1 - ids.index(_weight(match).id)]
            by_cotangent[cotangent] = match.label
            found.append(("grad_in", match.label))
            continue
        found.append(("grad_wt", product.label))
        waiting.append(number)
    taken: set[str] = set()
    for number in waiting:
        ids = [one.id for one in products[number].operands]
        known = [by_cotangent[one] for one in ids if one in by_cotangent]
        # Without a cotangent that is known: the first layer has no gradient of its input.
        size = math.prod(products[number].tensors[-1].shape)
        by_input = [one for one in reversed(before) if _input(one).id in ids]
        by_size = [one for one in reversed(before) if math.prod(one.tensors[_weight_number(one)].shape) == size]
        near = [one.label for one in by_input or by_size if one.label not in taken]
        label = (known or near or [products[number].label])[0]
        taken.add(label)
        found[number] = ("grad_wt", label)
    return found


def _weight_number(product: FoundProduct) -> int:
    return 1 if product.weight is None else product.weight


def _weight(product: FoundProduct) -> Value:
    return product.operands[_weight_number(product)]


def _input(product: FoundProduct) -> Value:
    return product.operands[1 - _weight_number(product)]


def names(roles: Sequence[tuple[str, str]]) -> list[str]:
    """A name for each product: its role, what it is named after, and which one it is where there are several.

    Args:
      roles: as `roles` gives them.

    Characters that an injection file or a plan reads as something else become underscores.

    >>> import jax, jax.numpy as jnp
    >>> from fault_injection.any_step.jax_internals import PRODUCTS, opened
    >>> jaxpr = jax.make_jaxpr(lambda w, x: jnp.tanh(x @ w) @ w.T)(jnp.ones((3, 2)), jnp.ones((4, 3)))
    >>> follower = Follower(PRODUCTS, turns=1)
    >>> _ = follower.follow(opened(jaxpr), [follower.fresh("fc/kernel"), follower.fresh("batch", fed=True)])
    >>> names(roles(follower.products))
    ['forward:fc/kernel', 'forward:fc/kernel#2']
    """
    count: dict[str, int] = {}
    found = []
    for role, label in roles:
        name = f"{role}:{re.sub(r'[^A-Za-z0-9_./@-]+', '_', label)}"
        count[name] = count.get(name, 0) + 1
        found.append(name if count[name] == 1 else f"{name}#{count[name]}")
    return found
