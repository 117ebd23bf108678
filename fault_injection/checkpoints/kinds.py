"""What an array of a checkpoint is, as far as its name says it, and which arrays are its siblings."""

import re
from collections.abc import Collection, Iterable

from ..seam.leaves import SQUARES
from .checkpoint import of_optimizer

# Second moments, as Optax, PyTorch, Keras and TensorFlow call them; short names count in the optimizer alone.
OWN_NAMES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "Adam_1", "velocity_squared", "sum_of_squares")
IN_OPTIMIZERS = (*SQUARES, "v_hat", "vhat", "nu_max", "accumulator", "velocity")
VARIANCES = ("var", "variance", "running_var", "moving_variance", "running_variance")
COUNTERS = ("step", "steps", "count", "iterations", "iteration", "global_step", "num_batches_tracked")
SCALES = ("scale", "scales", "scale_inv")


def parts(name: str) -> list[str]:
    """The words of a name.

    >>> parts("opt_state/v/conv1/kernel"), parts("optimizer.state.exp_avg_sq['w:0']")
    (['opt_state', 'v', 'conv1', 'kernel'], ['optimizer', 'state', 'exp_avg_sq', 'w', '0'])
    """
    return re.findall(r"\w+", name)


def siblings(name: str) -> str:
    """What an array and those of the same role in other layers have in common: numbers are left out.

    >>> siblings("layers/3/attn2/kernel")
    'layers/*/attn*/kernel'
    """
    return re.sub(r"\d+", "*", name)


def never_negative(name: str) -> str | None:
    """The kind of an array whose name says that it has no negative element; None for others.

    A kind is a name up to the word that says it, so that arrays can be asked whether the name is right.

    >>> never_negative("opt_state/v/conv1/kernel"), never_negative("bn1.running_var")
    ('second moments (opt_state/v)', 'running variances')
    >>> never_negative("params/attention/v/kernel") is None
    True
    """
    words = parts(name)
    optimizer = of_optimizer(name)
    for k, word in enumerate(words):
        if word in OWN_NAMES or (optimizer and word in IN_OPTIMIZERS):
            return f"second moments ({'/'.join(words[: k + 1] if optimizer else [word])})"
    if any(word in VARIANCES for word in words[-2:]) and not optimizer:
        return "running variances"
    return None


def counter(name: str) -> bool:
    """Whether the name of an array says that it counts.

    >>> counter("opt_state/0/count"), counter("params/count/kernel")
    (True, False)
    """
    return parts(name)[-1:] != [] and parts(name)[-1] in COUNTERS


def scale_of(name: str, narrow: Iterable[str]) -> str | None:
    """The array of integers or 8-bit numbers that an array scales, by its name; None where it scales none.

    >>> scale_of("fc.weight_scale", ["fc.weight"]), scale_of("fc/scales", ["fc/qweight"]), scale_of("ln/scale", ["a/w"])
    ('fc.weight', 'fc/qweight', None)
    """
    found = re.fullmatch(rf"(.*?)[./_]?({'|'.join(SCALES)})(:0)?", name)
    if not found:
        return None
    stem: str = found[1]
    folder = re.sub(r"[^./]*$", "", name)
    candidates: Collection[str] = list(narrow)
    if stem in candidates:
        return stem
    return next((one for one in candidates if folder and re.sub(r"[^./]*$", "", one) == folder), None)
