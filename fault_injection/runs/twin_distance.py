"""How far a run's state is from the golden run's after the same step, and how far those of twins are.

A twin is fault-free: its start differs by one unit in the last place, and rounding alone drives it away.  So its
distance after a step is what the training itself makes of the smallest difference there is.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from ..machine.files import DamagedFile, read_arrays, write_arrays
from ..machine.processes import say
from ..seam.digest import magnitude
from ..seam.leaves import State
from .follow import follow
from .golden_run import Golden, Repeats
from .progress import Progress
from .steps import Address, addresses, numbered

DISTANCES = "distances"  # the array of the file


@jax.jit
def distance(one: State, other: State) -> jax.Array:
    """The largest absolute difference in each leaf; NaN where one is not a number, 0 of leaves that hold no numbers.

    >>> distance([jnp.float32([1, 2]), jnp.int32(3)], [jnp.float32([1.5, 2]), jnp.int32(4)])
    Array([0.5, 0. ], dtype=float32)

    Args:
      one, other: states of one structure.

    Returns:
      float32 [leaves], in the order of `jax.tree.leaves`.
    """

    def apart(a: jax.Array, b: jax.Array) -> jax.Array:
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return jnp.zeros((), jnp.float32)
        if a.dtype.itemsize < 4:  # narrow formats do not subtract exactly, and some not at all
            a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return jnp.where(a == b, jnp.zeros_like(a), a - b)  # infinities that are equal are no distance apart

    return magnitude(jax.tree.map(apart, one, other))


def limits_of(distances: np.ndarray) -> np.ndarray:
    """The largest distances, step by step and leaf by leaf, of a run that cannot be told from a twin.

    Twins are not all equally far in all leaves.  So the largest distance among them counts times a factor, by which a
    twin itself is further than all others: of its leaves the one with the largest ratio, and of twins the one with the
    smallest.  It is 1 where that is less, where a leaf of all other twins is the golden run's, or where it would make a
    limit infinite, within which every run lies.

    >>> limits_of(np.float32([[[1, 2, 0]], [[2, 1, 0]], [[1, 6, 0]]])).tolist()
    [[2.0, 6.0, 0.0]]
    >>> limits_of(np.float32([[[1, 2]], [[4, 1]]])).tolist()
    [[8.0, 4.0]]

    Args:
      distances: float32 [twins, steps, leaves], of two twins at least.

    Returns:
      float32 [steps, leaves].
    """
    most, ratios = distances.max(axis=0), []
    for number, one in enumerate(distances):
        others = np.delete(distances, number, axis=0).max(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = np.divide(one, others, out=np.where(one == 0, 0, np.inf).astype(np.float32), where=others > 0)
        ratios.append(ratio.max(axis=1))
    factor = np.min(ratios, axis=0)  # NumPy's extremes of a NaN are NaN
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(most * factor[:, None]).all(axis=1)
    factor = np.where(finite, np.maximum(factor, 1), 1).astype(np.float32)
    limits: np.ndarray = most * factor[:, None]
    return limits


def twin_distances(golden: Golden, twins: int, epochs: int, path: pathlib.Path) -> np.ndarray:
    """The distances of the golden run's twins after each step; kept in a file once they are measured.

    Golden run and twins are taken once more, side by side, and compared with their records.

    Args:
      golden: made, like its twins, up to `epochs`.
      twins: how many there are.
      path: of the file.  A damaged one is named, and made again.

    Returns:
      float32 [twins, steps, leaves], in the order of the training and of the state's leaves.

    Raises:
      NotRepeated: a run did not repeat its record.
    """
    shape = twins, (epochs - golden.first) * golden.program.steps_per_epoch, len(golden.program.state.leaves)
    with golden.store.alone():
        try:
            kept = read_arrays(path).get(DISTANCES)
            if kept is not None and kept.shape == shape and kept.dtype == np.float32:
                return kept
            say(f"{path} has the distances of other runs; it is made again")
        except FileNotFoundError:
            pass
        except DamagedFile as error:
            say(f"{error}; it is made again")
        found = _measured(golden, twins, epochs)
        write_arrays(path, {DISTANCES: found})
    return found


def _measured(golden: Golden, twins: int, epochs: int) -> np.ndarray:
    runs = [golden, *map(golden.twin_run, range(1, twins + 1))]
    program, repeats = golden.program, [Repeats(run) for run in runs]
    states = [run.fetch_state_before(run.first) for run in runs]
    first, last = Address(golden.first, 0), Address(epochs, -1)
    rows = []
    total = (numbered(last, program.steps_per_epoch) - numbered(first, program.steps_per_epoch) + 1) * len(runs)
    with Progress("twins", total) as progress:
        for at in addresses(first, last, program.steps_per_epoch):
            states = [
                follow(program, state, [at], observers=[progress, repeat]).state
                for state, repeat in zip(states, repeats, strict=True)
            ]
            rows.append(np.stack(jax.device_get([distance(twin, states[0]) for twin in states[1:]])))
    return np.stack(rows, axis=1)
