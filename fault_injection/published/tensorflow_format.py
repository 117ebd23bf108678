"""TensorFlow checkpoints of the published artifact: read, and given our names by rules.

The checkpoints are object-based: a key is the path of attributes that leads to a variable.
The keys of five workloads are known (`tests/fixtures/published_checkpoint_layout.json`);
nfnet's are not.
"""

import pathlib
import re
from typing import NamedTuple

import jax
import numpy as np

from ..checkpoints.tensor_table import crc32c
from ..checkpoints.tensorflow import open_tensorflow
from ..machine.errors import InputError
from ..seam.leaves import State
from ..seam.trees import leaf_names

KEY = re.compile(r"(?P<variable>.+?)(/\.OPTIMIZER_SLOT/optimizer/(?P<slot>\w+))?/\.ATTRIBUTES/VARIABLE_VALUE")
# Keys that are not part of a state: the graph of objects, the number of saves, the random
# generators of augmentation, and the optimizer's settings, which belong to the workload.
OTHER = re.compile(r"_CHECKPOINTABLE_OBJECT_GRAPH|save_counter/.*|data_augmentation/.*|optimizer/(?!iter/).*")
# Applied in this order, the rules turn the path of a variable into ours: layer, `/`, parameter.
RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"/(?:bias_layer|layers)(?=/)", ""),
        (r"^layer(\d+)/basics/", r"basicblock_\1/basic/"),
        (r"/downsample_conv/", "/downsample/"),
        (r"^(?=(?:conv|conv_p|bn|dense_block_\d+|transition_\d+)/)", "densenet/"),
        (r"/bottle_necks/", "/bottleneck/"),
        (r"/depthwise_kernel$", "/kernel"),
        (r"/moving_mean$", "/mean"),
        (r"/moving_variance$", "/var"),
    )
]
ITERATIONS = "opt_state/iterations"


def state_name(key: str) -> str | None:
    """Our name of an array in a TensorFlow checkpoint: a leaf of the state, as in `leaf_names`.

    Args:
      key: of the array in the checkpoint.

    Returns:
      None where the key is not part of a state.

    >>> state_name("layer2/basics/0/conv1/bias_layer/bias/.ATTRIBUTES/VARIABLE_VALUE")
    'params/basicblock_2_basic_0_conv1/bias'
    """
    match = KEY.fullmatch(key)
    if OTHER.fullmatch(key) or match is None:
        return None
    path, slot = match["variable"], match["slot"]
    if path == "optimizer/iter":
        return ITERATIONS
    for pattern, replacement in RULES:
        path = pattern.sub(replacement, path)
    layer, _, name = path.rpartition("/")
    room = f"opt_state/{slot}" if slot else "stats" if name in ("mean", "var") else "params"
    return f"{room}/{layer.replace('/', '_')}/{name}"


class Named(NamedTuple):
    """A checkpoint's arrays under our names.

    Attributes:
      keys: the checkpoint's key of each array, by our name.
      arrays: by our name.
      settings: the optimizer's, such as the learning rate.
      unknown: keys that follow no rule.
    """

    keys: dict[str, str]
    arrays: dict[str, np.ndarray]
    settings: dict[str, float]
    unknown: list[str]

    @property
    def has_optimizer(self) -> bool:
        """Whether at least a part of the optimizer was saved."""
        return any(name.startswith("opt_state/") for name in self.arrays)


def read_tensorflow(prefix: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the arrays of a TensorFlow checkpoint, by key; of what is no array of numbers, a text that says what it is.

    Args:
      prefix: path of the checkpoint without `.index`.

    Raises:
      InputError: google-crc32c is missing, or the checkpoint is damaged or not whole.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    crc32c(index)  # whose package may be missing, which is no damage
    try:
        found = open_tensorflow(index)
        return {**found.whole(), **{key: np.array(raw.text) for key, raw in found.raw.items()}}
    except (InputError, OSError) as error:
        raise InputError(f"not a whole TensorFlow checkpoint ({str(error)[-200:]})", prefix) from None


def name_variables(variables: dict[str, np.ndarray]) -> Named:
    """Give the arrays of a checkpoint our names; nothing is checked yet.

    >>> name_variables({"fc/bias/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(10, np.float32)}).arrays.keys()
    dict_keys(['params/fc/bias'])
    """
    keys: dict[str, str] = {}
    arrays: dict[str, np.ndarray] = {}
    settings: dict[str, float] = {}
    unknown: list[str] = []
    for key, array in variables.items():
        name = state_name(key)
        if name is not None:
            keys[name], arrays[name] = key, array
        elif key.startswith("optimizer/") and array.ndim == 0:
            settings[key.split("/")[1]] = float(array)
        elif not OTHER.fullmatch(key):
            unknown.append(key)
    return Named(keys, arrays, settings, unknown)


def mismatches(named: Named, abstract: State) -> list[str]:
    """Where a checkpoint differs from the state of a workload: one line each.  A missing optimizer does not count."""
    expected = dict(zip(leaf_names(abstract), jax.tree.leaves(abstract), strict=True))
    found = [f"{key}: unknown" for key in named.unknown]
    for name, array in named.arrays.items():
        key, leaf = named.keys[name], expected.get(name)
        kind = "int64" if name == ITERATIONS else "float32"
        if leaf is None:
            found.append(f"{key}: the state has no {name}")
        elif array.shape != leaf.shape or array.dtype != kind:
            is_, wanted = (f"{t} {list(s)}" for t, s in ((array.dtype, array.shape), (kind, leaf.shape)))
            found.append(f"{key}: {is_}, expected {wanted} as {name}")
        elif name == ITERATIONS and not 0 <= array < 2**31:
            found.append(f"{key}: {array}, expected a number of steps")
    for name in expected.keys() - named.arrays.keys():
        if named.has_optimizer or not name.startswith("opt_state/"):
            found.append(f"{name}: no variable for it")
    return sorted(found)


def to_state(named: Named, abstract: State, iteration: int) -> State:
    """The state that a checkpoint holds, on the host.

    Args:
      named: a checkpoint without mismatches.
      abstract: shapes and types of the state.
      iteration: the optimizer's, where the optimizer was not saved.  Its moments are zero then.
    """
    initial = {ITERATIONS: iteration}
    leaves, structure = jax.tree.flatten(abstract)
    arrays = [
        named.arrays.get(name, np.full(leaf.shape, initial.get(name, 0))).astype(leaf.dtype)
        for name, leaf in zip(leaf_names(abstract), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)
