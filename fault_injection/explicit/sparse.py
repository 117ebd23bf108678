"""Tables of which a step touches some rows alone: their gradients, their update, and what a report says of them.

The optimizer sees the rows that were read as if they were the parameter; so it must keep no history
of gradients.  What a report says of other leaves by looking at all of them is kept up to date here:

- The digest is a sum over elements (`digest.digest`), so the rows that changed say by how much it
  does.  It is the digest of the whole table, to the bit.
- The largest absolute value is that of all values that the table has had.  It is not finite exactly
  where the table is not: a gradient step makes nothing finite again.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models.arrays import Params
from ..models.largest import by_bits
from ..models.operations.lookup import coalesced
from ..models.operations.operation import SparseGradient
from ..seam.digest import ODD, digest, magnitude

CHUNK = 1 << 22  # elements looked at together on the host
Tables = dict[str, dict[str, Any]]  # by parameter, such as `emb_0/table`: its `digest` and `largest`
Rows = Mapping[str, jax.Array]  # by parameter: int32 [n], distinct; the number of the table's rows for none


def initial(params: Mapping[str, Any], names: frozenset[str]) -> Tables:
    """What is kept of each table: `digest`, uint32, and `largest`, float32; of shapes, shapes.

    Args:
      names: of the tables, such as `emb_0/table`.

    >>> initial({"emb_0": {"table": np.float32([[1, -2]])}}, frozenset({"emb_0/table"}))["emb_0/table"]["largest"]
    np.float32(2.0)
    """
    found: Tables = {}
    for name in sorted(names):
        table = parameter(params, name)
        if isinstance(table, jax.ShapeDtypeStruct):
            found[name] = {key: jax.ShapeDtypeStruct((), kind) for key, kind in _KEPT.items()}
            continue
        flat, total, largest = np.asarray(table).reshape(-1), np.uint32(0), np.float32(0)
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            position = np.arange(start, start + part.size, dtype=np.uint64).astype(np.uint32)
            weighted = part.view(np.uint32) * (position * np.uint32(ODD) | np.uint32(1))
            total = np.uint32((int(total) + int(weighted.sum(dtype=np.uint64))) % 2**32)
            largest = np.maximum(largest, np.abs(part).max())
        found[name] = {"digest": total, "largest": largest}
    return found


def looked_at(params: Params, tables: Tables) -> Tables:
    """What is kept of each table, where it was changed in another way than `written`."""
    found = {}
    for name, kept in tables.items():
        table = [parameter(params, name)]
        found[name] = {
            "digest": digest(table)[0],
            "largest": by_bits(jnp.maximum, kept["largest"], magnitude(table)[0]),
        }
    return found


_KEPT = {"digest": np.dtype(np.uint32), "largest": np.dtype(np.float32)}


def apart(grads: Params, rows: Rows) -> tuple[Params, dict[str, SparseGradient]]:
    """The gradients of whole parameters, and those of rows of tables."""
    tables = {name: SparseGradient(read, parameter(grads, name)) for name, read in rows.items()}
    kept: Params = {}
    for layer, leaves in grads.items():
        if others := {leaf: value for leaf, value in leaves.items() if f"{layer}/{leaf}" not in rows}:
            kept[layer] = others
    return kept, tables


def joined(
    grads: Params, tables: Mapping[str, SparseGradient], params: Params, axis: str, devices: int
) -> tuple[Params, Rows]:
    """All gradients in one tree, and the rows of those of tables, which are summed over the devices of `axis` here."""
    rows = {}
    for name, found in tables.items():
        if devices > 1:
            every = [lax.all_gather(part, axis, tiled=True) for part in found]
            found = coalesced(every[0], every[1], len(parameter(params, name)))
        rows[name] = found.rows
        grads = with_parameter(grads, name, found.values)
    # In the parameters' order, in which they are named.
    return {layer: grads[layer] for layer in params}, rows


def read(params: Params, rows: Rows) -> Params:
    """The parameters with, of each table, those rows alone; 0 for none."""
    for name, chosen in rows.items():
        params = with_parameter(params, name, parameter(params, name).at[chosen].get(mode="fill", fill_value=0))
    return params


def written(
    params: Params, before: Params, after: Params, tables: Tables, rows: Rows
) -> tuple[Params, Tables, dict[str, tuple[jax.Array, jax.Array]]]:
    """The parameters after a step.

    Args:
      params: before the step, with whole tables.
      before, after: with the rows of each table alone, as `read` gave them and as the optimizer made them.
      tables: what is kept of each, before the step.

    Returns:
      `after` with whole tables; what is kept of each; and what a report has of them, digest and
      magnitude by the names of the state's leaves.
    """
    kept, known = {}, {}
    for name, chosen in rows.items():
        table, old, new = (parameter(tree, name) for tree in (params, before, after))
        flags: dict[str, Any] = {"mode": "drop", "unique_indices": True}
        after = with_parameter(after, name, table.at[chosen].set(new, **flags))
        total = tables[name]["digest"] + _moved(chosen, old, new, len(table))
        largest = by_bits(jnp.maximum, tables[name]["largest"], magnitude([new])[0])
        kept[name] = {"digest": total, "largest": largest}
        known[f"params/{name}"] = total, largest
    return after, kept, known


def whole_tables(grads: Params, params: Params, rows: Rows) -> dict[str, jax.Array]:
    """The gradients of whole tables, by name: for those who ask, since it takes as long as a table is large."""
    return {
        name: jnp.zeros_like(parameter(params, name)).at[chosen].set(parameter(grads, name), mode="drop")
        for name, chosen in rows.items()
    }


def _moved(rows: jax.Array, old: jax.Array, new: jax.Array, count: int) -> jax.Array:
    """By how much the digest of a table of `count` rows changes where its rows [n] become `new` [n,C]."""
    difference = lax.bitcast_convert_type(new, jnp.uint32) - lax.bitcast_convert_type(old, jnp.uint32)
    width = jnp.uint32(old.shape[1])
    position = rows.astype(jnp.uint32)[:, None] * width + jnp.arange(old.shape[1], dtype=jnp.uint32)
    weighted = difference * ((position * jnp.uint32(ODD)) | jnp.uint32(1))
    return jnp.sum(jnp.where(rows[:, None] < count, weighted, 0), dtype=jnp.uint32)


def parameter(tree: Mapping[str, Any], name: str) -> Any:
    """The parameter of a name, such as `fc/kernel`."""
    layer, leaf = name.split("/")
    return tree[layer][leaf]


def with_parameter(tree: Params, name: str, value: jax.Array) -> Params:
    """The parameters with another array of that name."""
    layer, leaf = name.split("/")
    return tree | {layer: tree.get(layer, {}) | {leaf: value}}
