"""What a step's products are to the training, and their names, such as `forward:params/fc/kernel`.

A product of the backward pass is the gradient of an operand of a product before it.  Differentiation multiplies the
cotangent of that product with its other operand: so the other operand says which product it was.  Where several
products have this operand, as many layers that read one input, the gradient belongs to the parameter that its
elements are added to; else to the product whose other gradient reads the same cotangent; else to the last.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from .jaxpr_sites import FoundProduct, Value, together


class Derived(NamedTuple):
    """A product that a gradient was derived from.

    Attributes:
      product: its number.
      operand: which of its two operands the gradient is of; None where the gradient is none: it is the product again.
    """

    product: int
    operand: int | None


def roles(
    products: Sequence[FoundProduct],
    moved: Mapping[int, Value],
    read: Collection[str],
    fixed: Collection[str] = (),
) -> list[tuple[str, str]]:
    """The role of each product, and what it is named after.

    Args:
      products: as a `Follower` found them.
      moved, read: as it found them.
      fixed: paths of leaves that the step leaves as they are.
    """
    found: list[tuple[str, str]] = []
    origin = _derived(products, moved)
    begun = next((number for number, one in enumerate(products) if one.backward), len(products))

    def named(value: Value) -> str:
        return found[value.product][1] if value.product >= 0 else value.label

    def own(product: FoundProduct) -> str:
        """The parameter; of two activations, the products before them."""
        if product.weight is not None:
            return product.operands[product.weight].label
        short = [named(one).partition("@")[0] for one in product.operands]
        return "@".join(part for part in short if part) or product.equation.primitive.name

    def gradient(number: int, product: FoundProduct) -> tuple[str, str]:
        derived = origin.get(number)
        if derived is None:  # a derivative that is written by hand, and reads other things than the product did
            if number in moved:
                return "grad_wt", moved[number].label
            return "grad_in", own(product)
        of = products[derived.product]
        if derived.operand is None:
            return "recompute", found[derived.product][1]
        target, other = of.operands[derived.operand], of.operands[1 - derived.operand]
        if target.whole:
            label = moved[number].label if _moves(moved.get(number), target) else target.label
            if label in fixed and target.origins:  # a product of trained parameters was added to it
                label = together([one.label for one in products[max(target.origins)].operands])
            return "grad_wt", label
        if other.whole:
            return "grad_in", other.label
        return "grad_wt" if derived.operand and not of.backward else "grad_in", found[derived.product][1]

    def update(product: FoundProduct) -> str:
        """The parameters whose gradients it multiplies; without such, the leaves of the state."""
        gradients = [found[one][1] for value in product.operands for one in sorted(value.origins)]
        labels = [named(value) for value in product.operands if value.label]
        return together(gradients or [one for one in labels if one in read] or labels) or own(product)

    for number, product in enumerate(products):
        if product.around.recomputed:
            found.append(("recompute", own(product)))
        elif product.backward:
            found.append(gradient(number, product))
        elif product.around.differentiated or not _of_optimizer(product, number > begun, found):
            found.append(("forward", own(product)))
        else:
            found.append(("update", update(product)))
    return found


def _of_optimizer(product: FoundProduct, after: bool, found: Sequence[tuple[str, str]]) -> bool:
    """Whether a product that is not differentiated multiplies gradients, or leaves of the state after a gradient.

    Args:
      after: whether it comes after a product of the backward pass.
      found: roles of the products before it.
    """
    if not any(one.late for one in product.operands):
        return after and not any(one.fed for one in product.operands)
    last = max(one.product for one in product.operands)
    return last < 0 or found[last][0] not in ("forward", "recompute")


def _derived(products: Sequence[FoundProduct], moved: Mapping[int, Value]) -> dict[int, Derived]:
    """What each product of the backward pass was derived from, as far as that is known."""
    certain: dict[int, Derived] = {}
    open_: dict[int, list[tuple[Derived, Value]]] = {}  # candidates, each with its cotangent
    reading: dict[int, list[Derived]] = defaultdict(list)  # by ids and roots of the other operand
    pairs: dict[int, set[int]] = defaultdict(set)  # products by their cotangents
    taken: set[Derived] = set()

    def take(number: int, some: Sequence[tuple[Derived, Value]]) -> None:
        free = [one for one in some if one[0] not in taken] or some
        derived, cotangent = max(free, key=lambda one: one[0].product)
        certain[number] = derived
        taken.add(derived)
        pairs[cotangent.root].add(derived.product)

    for number, product in enumerate(products):
        if product.backward:
            if (again := _repeated(products, reading, product)) is not None:
                certain[number] = Derived(again, None)
            elif some := _candidates(products, reading, product):
                wanted = {products[one.product].operands[one.operand or 0].id for one, _ in some}
                if len(wanted) == 1:
                    take(number, some)
                else:
                    open_[number] = some
        for place, operand in enumerate(product.operands):
            for key in {operand.id, operand.root}:
                reading[key].append(Derived(number, 1 - place))
    for number, some in open_.items():
        if number in moved:
            some = [
                one for one in some if _moves(moved[number], products[one[0].product].operands[one[0].operand or 0])
            ] or some
        take(number, [one for one in some if one[0].product in pairs[one[1].root]] or some)
    return certain


def _moves(moved: Value | None, target: Value) -> bool:
    """Whether a parameter that a gradient is added to is what the gradient is of, or an element-wise part of it."""
    return moved is not None and moved.label in target.leaves and moved.size == target.size


def _repeated(
    products: Sequence[FoundProduct], reading: Mapping[int, Sequence[Derived]], product: FoundProduct
) -> int | None:
    """The forward product that one of the backward pass computes again, if there is one."""
    if any(one.late for one in product.operands):
        return None
    ids, shape = sorted(one.id for one in product.operands), _sizes(product)[2]
    for one in reversed(reading.get(product.operands[0].id, ())):
        before = products[one.product]
        if not before.backward and sorted(each.id for each in before.operands) == ids and _sizes(before)[2] == shape:
            return one.product
    return None


def _candidates(
    products: Sequence[FoundProduct], reading: Mapping[int, Sequence[Derived]], product: FoundProduct
) -> list[tuple[Derived, Value]]:
    """What a product of the backward pass may be derived from, each with its cotangent: what fits best.

    It has been turned round once more; the sizes of the gradient and of the cotangent are those of the operand and of
    the result; and the other operand is the same array, or else is computed from the same (as quantised once more).
    """
    ranked: dict[tuple[bool, bool, bool], list[tuple[Derived, Value]]] = defaultdict(list)
    for place, (kept, cotangent) in enumerate((product.operands, product.operands[::-1])):
        for one in {*reading.get(kept.id, ()), *reading.get(kept.root, ())}:
            before = products[one.product]
            assert one.operand is not None
            other = before.operands[1 - one.operand]
            sizes = _sizes(before)
            fits = (_sizes(product)[2], _sizes(product)[1 - place]) == (sizes[one.operand], sizes[2])
            if other.id == kept.id or (other.root == kept.root and fits):
                turned = before.around.recomputed or before.around.transposed == product.around.transposed - 1
                ranked[not turned, not fits, other.id != kept.id].append((one, cotangent))
    return ranked[min(ranked)] if ranked else []


def _sizes(product: FoundProduct) -> list[int]:
    """Elements of the two operands and of the result."""
    return [math.prod(one.shape) for one in product.tensors]


def names(roles: Sequence[tuple[str, str]]) -> list[str]:
    """A name for each product: its role, what it is named after, and which one it is where there are several.

    Args:
      roles: as `roles` gives them.

    Characters that an injection file or a plan reads as something else become underscores.

    >>> import jax, jax.numpy as jnp
    >>> from fault_injection.any_step.jax_internals import PRODUCTS, opened
    >>> from fault_injection.any_step.jaxpr_sites import Follower
    >>> jaxpr = jax.make_jaxpr(lambda w, x: jnp.tanh(x @ w) @ w.T)(jnp.ones((3, 2)), jnp.ones((4, 3)))
    >>> follower = Follower(PRODUCTS, turns=1)
    >>> _ = follower.follow(opened(jaxpr), [follower.fresh("fc/kernel"), follower.fresh("batch", fed=True)])
    >>> names(roles(follower.products, follower.moved, follower.read))
    ['forward:fc/kernel', 'forward:fc/kernel#2']
    """
    count: dict[str, int] = {}
    found = []
    for role, label in roles:
        name = f"{role}:{re.sub(r'[^A-Za-z0-9_./@-]+', '_', label)}"
        count[name] = count.get(name, 0) + 1
        found.append(name if count[name] == 1 else f"{name}#{count[name]}")
    return found
