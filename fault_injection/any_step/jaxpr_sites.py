"""The sites of a jaxpr: where they are, and what is known of what they read.

Values are followed through casts, layout changes, slices, calls and loops.  `site_names` makes roles and names of it.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .jax_internals import (
    CLOSED,
    COLLECTIVES,
    DIFFERENTIATED,
    DRAWN,
    PARTS,
    PLACED,
    PUT_TOGETHER,
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

MOST_ORIGINS = 256  # of one value that are kept: more are those of a stream that all layers add to
MOST_ROUNDS = 4  # in which a loop is followed until what its turns carry on is known


class Value(NamedTuple):
    """What is known of an array while a jaxpr is followed.

    Attributes:
      id: the same for arrays that hold the same values, up to type and layout.
      root: of the last value that this one alone is computed from: quantised weights have that of the weights.
      label: what it comes from: an argument's path, or a provisional name of the last product on the way.
      leaves: paths of all the leaves of the state that it is computed from, if it is computed from nothing else.
      size: elements of the argument that it is named after.
      product: number of that product; −1 where there is none.
      fed: whether it depends on the batch.
      late: whether it depends on the backward pass.  Parameters that are updated do not count as late: what comes
        after them is another forward pass.
      origins: numbers of the products whose elements are its elements, or summands of them.
      mixed: whether these elements lie beside each other, as in a flattened gradient.
    """

    id: int
    root: int
    label: str = ""
    leaves: frozenset[str] = frozenset()
    size: int = 0
    product: int = -1
    fed: bool = False
    late: bool = False
    origins: frozenset[int] = frozenset()
    mixed: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is an argument of the state, or computed from such: what a weight is."""
        return bool(self.label) and not self.fed and not self.late and self.product < 0

    @property
    def known(self) -> bool:
        """Whether it is more than a constant."""
        return bool(self.label) or self.fed or self.late


class Around(NamedTuple):
    """What surrounds an equation.

    Attributes:
      differentiated: whether what it computes is differentiated.
      transposed: how often differentiation turned it round: a product of the backward pass is derived from one that
        has been turned round once less.
      recomputed: whether a checkpoint makes it again.
      turns: of the loops around it, the outermost first.
      axes: mesh axes over which it runs once each.
      workers: how many devices run it, each with operands of its own.
      conditional: whether a step may leave it out: it stands in a branch, or in a loop that may end before it.
    """

    differentiated: bool = False
    transposed: int = 0
    recomputed: bool = False
    turns: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    workers: int = 1
    conditional: bool = False

    @property
    def backward(self) -> bool:
        """Whether differentiation made it, and not a checkpoint again."""
        return self.transposed > 0 and not self.recomputed


class FoundProduct(NamedTuple):
    """One operation that can be struck, as it is found.

    Attributes:
      equation: of the jaxpr.
      operands: its first two operands.
      weight: which of the two operands is the parameter, or stands for it; None where neither does.
      around: what surrounds it.
    """

    equation: Any
    operands: tuple[Value, Value]
    weight: int | None
    around: Around

    @property
    def backward(self) -> bool:
        """Whether differentiation made it, and not a checkpoint again."""
        return self.around.backward

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
      read: labels of the arguments that something differentiated is computed from.
      moved: of a product, what is known of the first of these arguments that its elements are added to.
    """

    def __init__(self, kinds: frozenset[str], turns: int):
        self.products: list[FoundProduct] = []
        self.closed: list[str] = []
        self.meshes: list[Any] = []
        self.read: set[str] = set()
        self.moved: dict[int, Value] = {}
        self._kinds, self._turns, self._ids = kinds, turns, itertools.count()
        self._same: dict[Any, list[int]] = {}  # ids of the results of equations, by what they compute

    def fresh(self, label: str = "", fed: bool = False, size: int = 0) -> Value:
        """A value that equals no other; that of an argument has a label."""
        number = next(self._ids)
        return Value(number, number, label, frozenset({label} if label and not fed else ()), size, fed=fed)

    def follow(self, body: Body, values: Sequence[Value], around: Around = Around()) -> list[Value]:  # noqa: B008
        """What is known of the results of a body, given what is known of its arguments."""
        jaxpr = body.jaxpr
        known = dict(zip(jaxpr.invars, values, strict=True)) | {var: self.fresh() for var in jaxpr.constvars}

        def read(atom: Any) -> Value:
            return self.fresh() if is_literal(atom) else known[atom]

        for equation in jaxpr.eqns:
            marked = mark(equation)
            here = around._replace(
                differentiated=around.differentiated or DIFFERENTIATED in marked,
                transposed=around.transposed + marked.count(TRANSPOSED),
                recomputed=around.recomputed or RECOMPUTED in marked,
            )
            given = [read(atom) for atom in equation.invars]
            if here.differentiated:
                self.read.update(one.label for one in given if one.label and one.product < 0 and not one.late)
            known.update(zip(equation.outvars, self._results(equation, given, here), strict=True))
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
            return [self._part(equation, values, around)]
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
            return [self._joined(list(some), around, next(self._ids)) for some in zip(*each, strict=True)]
        if name == "shard_map":
            mesh, axes = params["mesh"], manual_axes(params)
            self.meshes.append(mesh)
            workers = around.workers
            for axis in axes:
                workers *= mesh.shape[axis]
            return self.follow(inside[0], values, around._replace(axes=(*around.axes, *axes), workers=workers))
        if inside:
            return self.follow(inside[0], values, around)
        if name in COLLECTIVES and len(values) == len(equation.outvars):
            return [self._joined([one], around, next(self._ids)) for one in values]
        return self._computed(equation, values, around)

    def _ids_of(self, equation: Any, values: Sequence[Value]) -> list[int]:
        """The ids of an equation's results: those of one before it that computes the same."""
        shapes = tuple(getattr(atom.aval, "shape", ()) for atom in equation.outvars)
        given = [
            str(atom.val) if is_literal(atom) else one.id for atom, one in zip(equation.invars, values, strict=True)
        ]
        key = (equation.primitive.name, tuple(given), shapes, tuple(equation.params.items()))
        fresh = [next(self._ids) for _ in equation.outvars]
        try:
            return fresh if equation.effects else self._same.setdefault(key, fresh)
        except TypeError:  # a parameter cannot be compared
            return fresh

    def _part(self, equation: Any, values: list[Value], around: Around) -> Value:
        """A part of the first operand, or this operand again and again."""
        whole, (id_,) = values[0], self._ids_of(equation, values)
        late = whole.late or (around.backward and not whole.known)
        part = whole._replace(id=id_, fed=any(one.fed for one in values), late=late)
        more = _elements(equation.outvars[0]) > _elements(equation.invars[0])
        return part._replace(origins=frozenset()) if more and equation.primitive.name == "broadcast_in_dim" else part

    def _computed(self, equation: Any, values: list[Value], around: Around) -> list[Value]:
        """New values that are computed from others."""
        found = []
        for atom, id_ in zip(equation.outvars, self._ids_of(equation, values), strict=True):
            least = 0 if equation.primitive.name in PLACED else _elements(atom)
            alike = [least <= _elements(one) for one in equation.invars]
            one = self._joined(values, around, id_, alike)
            parts = [part for part in values if part.known]
            if equation.primitive.name in PUT_TOGETHER and len(parts) > 1:
                whole = all(part.whole for part in parts)
                label = together([part.label for part in parts]) if whole else one.label
                size = _elements(atom) if whole else one.size
                several = sum(bool(part.origins) for part in parts) > 1
                one = one._replace(label=label, size=size, mixed=one.mixed or several)
            found.append(one)
        return found

    def _joined(self, values: list[Value], around: Around, id_: int, alike: Sequence[bool] = ()) -> Value:
        """A new value that is computed from others: it is named after the last product on the way to it.

        What a gradient is added to keeps its name: a parameter is a parameter after it has been updated.

        Args:
          id_: of the new value.
          alike: of each of the others, whether its elements are the new one's, or summands of them; by default, all.
        """
        if values and all(one.id == values[0].id for one in values[1:]) and not alike:
            return values[0]
        like = [one for one, is_alike in zip(values, alike or [True] * len(values), strict=True) if is_alike]
        origins, mixed = frozenset().union(*(one.origins for one in like)), any(one.mixed for one in like)
        given = [one for one in like if one.label and one.product < 0 and not one.late]
        kept = max(given, key=lambda one: (one.label in self.read, one.size), default=None)
        late = any(one.late for one in values)
        if late and not around.backward and kept is not None and kept.label in self.read:
            for number in () if mixed else origins:
                self.moved.setdefault(number, kept)
            return kept._replace(id=id_, root=id_, origins=frozenset(), mixed=False)
        known = [one for one in values if one.known]
        roots = {one.root for one in known}
        fed = any(one.fed for one in values)
        nearest = max(values, key=lambda one: (one.product, bool(one.label)), default=self.fresh())
        named = kept if kept is not None and not fed and not late else nearest
        return Value(
            id_,
            roots.pop() if len(roots) == 1 else id_,
            named.label,
            frozenset() if fed or late else frozenset().union(*(one.leaves for one in known)),
            named.size,
            named.product,
            fed=fed,
            late=late or (around.backward and not known),
            origins=origins if len(origins) <= MOST_ORIGINS else frozenset(),
            mixed=mixed,
        )

    def _loop(self, body: Body, values: list[Value], consts: int, carried: int, around: Around) -> list[Value]:
        """A loop.  A carried value counts as known only if it is known on entry and after each turn."""
        init = carry = values[consts:carried]
        lists: list[list[Any]] = [self.products, self.closed, self.meshes]
        found = [*map(len, lists)]
        for _ in range(MOST_ROUNDS):
            after = self.follow(body, [*values[:consts], *carry, *values[carried:]], around)
            turned = [_carried(*each) for each in zip(init, after[: len(init)], strict=True)]
            changes = [first.id != made.id for first, made in zip(carry, after[: len(init)], strict=True)]
            if not any(changes) or (carry is not init and [one.fed for one in turned] == [one.fed for one in carry]):
                return after
            for listed, count in zip(lists, found, strict=True):
                del listed[count:]
            fresh = [(next(self._ids),) * 2 if changed else None for changed in changes]
            carry = [
                one if ids is None else one._replace(id=ids[0], root=ids[1])
                for one, ids in zip(turned, fresh, strict=True)
            ]
        return self.follow(body, [*values[:consts], *carry, *values[carried:]], around)

    def _product(self, equation: Any, values: list[Value], around: Around) -> Value:
        operands = values[0], values[1]
        # Of two weights, a matrix goes before a vector that it is multiplied with.
        first, second = (atom.aval.ndim for atom in equation.invars[:2])
        before = (1, 0) if second >= first else (0, 1)
        weight = next((place for place in before if operands[place].whole), None)
        short = [one.label.partition("@")[0] for one in operands]
        label = operands[weight].label if weight is not None else "@".join(part for part in short if part)
        product = FoundProduct(equation, operands, weight, around)
        self.products.append(product)
        number, late, fed = len(self.products) - 1, any(one.late for one in operands), any(one.fed for one in operands)
        passed = frozenset() if around.differentiated else operands[0].origins | operands[1].origins
        leaves = frozenset() if fed or late else operands[0].leaves | operands[1].leaves
        (id_,) = self._ids_of(equation, values)
        return Value(
            id_,
            id_,
            label or equation.primitive.name,
            leaves,
            0,
            number,
            fed=fed,
            late=late or product.backward,
            origins=passed | {number},
            mixed=any(one.mixed for one in operands),
        )

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


def _carried(first: Value, made: Value) -> Value:
    """What is known of a value that a loop carries on, from its first and from what a turn makes of it."""
    # Weights that a loop updates keep their name; activations that begin as a parameter do not.
    keeps = made.id == first.id or (made.late and not first.late) or not made.fed
    return first._replace(fed=first.fed or (made.fed and not keeps))


def _elements(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def together(labels: Sequence[str]) -> str:
    """The name of what is put together of several: all of their names, or the first and the last of many.

    >>> together(["q", "k", "q"]), together(["w0", "w1", "w2", "w3"])
    ('q@k', 'w0@w3')
    """
    found = list(dict.fromkeys(labels))
    return "@".join(found if len(found) <= 3 else [found[0], found[-1]])
