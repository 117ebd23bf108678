"""Lookups of rows of a table, and their gradients."""

import dataclasses

import jax
import jax.numpy as jnp

from ..fault import Operand
from .operation import Operation, SparseGradient, Summed


@dataclasses.dataclass(frozen=True)
class Lookup(Operation):
    """y = table[tokens]. tokens [R,b,…] integers, table [V,C] -> y [R,b,…,C].

    A token outside the table, which only a fault makes, reads the row nearest to it.

    >>> Lookup().compute(jnp.array([[1, 7]]), jnp.array([[0.5], [2.0]])).tolist()
    [[[2.0], [2.0]]]
    """

    def compute(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        return self.product(tokens, table)

    def operands(self, tokens: jax.Array, table: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """tokens [b,…] of one worker; the table [V,C]."""
        return tokens[r], table

    def product(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        """y [b,…,C] of one worker."""
        return table[_rows(tokens, len(table))]


@dataclasses.dataclass(frozen=True)
class LookupGradWt(Summed):
    """dtable: each row is the sum of dy over the tokens that read it, of all workers.

    tokens [R,b,…] integers, dy [R,b,…,C] -> [V,C].

    >>> LookupGradWt(2).compute(jnp.array([[1, 1]]), jnp.array([[[0.5], [2.0]]])).tolist()
    [[0.0], [2.5]]
    """

    gradient = Operand.WEIGHT

    vocabulary: int  # V

    def compute(self, tokens: jax.Array, dy: jax.Array) -> jax.Array:
        return self.product(tokens, dy)

    def operands(self, tokens: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """tokens [b,…] and dy [b,…,C] of one worker."""
        return tokens[r], dy[r]

    def product(self, tokens: jax.Array, dy: jax.Array) -> jax.Array:
        """dtable [V,C] of one worker."""
        zero = jnp.zeros((self.vocabulary, dy.shape[-1]), dy.dtype)
        return zero.at[_rows(tokens, self.vocabulary)].add(dy)


class SparseLookupGradWt(LookupGradWt):
    """dtable as `LookupGradWt`, but what every step computes are the rows that tokens read, not the whole table.

    A fault acts on the published form, which is the whole table: only a step whose fault strikes
    here computes that.  The executable of such a step has `more` further places, one for each
    element of its fault: that many rows that no token reads can be changed.

    tokens [R,b,…] integers, dy [R,b,…,C] -> n = R·b·… rows of [V,C].

    >>> found = SparseLookupGradWt(9).compute(jnp.array([[7, 1, 7]]), jnp.array([[[0.5], [2.0], [1.0]]]))
    >>> found.rows.tolist(), found.values.tolist()
    ([1, 7, 9], [[2.0], [1.5], [0.0]])
    """

    def compute(self, tokens: jax.Array, dy: jax.Array) -> SparseGradient:  # type: ignore[override]
        """dtable, summed over all workers, in the order of the tokens."""
        return coalesced(_rows(tokens, self.vocabulary).reshape(-1), dy.reshape(-1, dy.shape[-1]), self.vocabulary)

    def with_room(self, gradient: SparseGradient, more: int) -> SparseGradient:
        """The same gradient with `more` empty places."""
        rows = jnp.pad(gradient.rows, (0, more), constant_values=self.vocabulary)
        return SparseGradient(rows, jnp.pad(gradient.values, ((0, more), (0, 0))))

    def whole(self, gradient: SparseGradient) -> jax.Array:
        """The whole table's gradient [V,C]."""
        zero = jnp.zeros((self.vocabulary, gradient.values.shape[-1]), gradient.values.dtype)
        return zero.at[gradient.rows].set(gradient.values, mode="drop")

    def replaced(self, gradient: SparseGradient, at: jax.Array, by: jax.Array) -> SparseGradient:
        """The gradient with the elements of `by` [V,C] in place of its own where `at` [V,C]; it has room for them."""
        table = jnp.where(at, by, self.whole(gradient))
        known = jnp.any(at, -1).at[gradient.rows].set(True, mode="drop")
        rows = jnp.nonzero(known, size=len(gradient.rows), fill_value=self.vocabulary)[0].astype(jnp.int32)
        return SparseGradient(rows, table.at[rows].get(mode="fill", fill_value=0))


def coalesced(rows: jax.Array, values: jax.Array, vocabulary: int) -> SparseGradient:
    """The gradient of the rows [n] of a table of `vocabulary` rows: the sum of the values [n,C] of each, in order.

    A row that is `vocabulary` is none, and its value 0.

    >>> coalesced(jnp.array([2, 0, 2]), jnp.array([[1.0], [2.0], [3.0]]), 4).values.tolist()
    [[2.0], [4.0], [0.0]]
    """
    distinct, place = jnp.unique(rows, size=len(rows), fill_value=vocabulary, return_inverse=True)
    return SparseGradient(distinct.astype(jnp.int32), jnp.zeros_like(values).at[place].add(values))


def _rows(tokens: jax.Array, vocabulary: int) -> jax.Array:
    """The rows of a table that tokens read: where a token lies outside, the nearest one."""
    return jnp.clip(tokens, 0, vocabulary - 1)
