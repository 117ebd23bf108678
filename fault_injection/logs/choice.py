"""Which tensors of a log a detector is to look at: a loss, the norm of the gradient, its largest values, or all."""

import pathlib
import re
from collections.abc import Sequence

from ..machine.errors import InputError, did_you_mean
from .log import Log

# How trackers and trainers call them, the first that is there being taken; compared by `words`.
LOSSES = ("loss", "lm loss", "total loss", "loss step", "global avg loss", "avg loss", "loss avg", "mean loss")
NORMS = (
    *("grad norm", "gradient norm", "gnorm", "global grad norm", "total grad norm", "global gradient norm"),
    *("grad norm step", "norm grad", "total norm", "norm"),
)
PREFIXES = {"train", "training", "trainer", "metrics"}  # words before a name, which add nothing to it
OTHERS = {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "aux", "balancing", "balance"}
OTHERS |= {"scale", "scaler", "scaling", "lossscale"}  # of mixed precision
LARGEST = {"max", "largest", "absmax", "maximum", "amax"}
LISTED = 8  # names in a message


def words(name: str) -> tuple[str, ...]:
    """The words of a tensor's name, without the run that a panel of W&B puts before it.

    >>> words("run-7 - train/gradNorm_total")
    ('train', 'grad', 'norm', 'total')
    """
    name = re.sub(r"([a-z])([A-Z])", r"\1 \2", name.rpartition(" - ")[2])
    return tuple(re.findall(r"[a-z]+|[0-9]+", name.lower()))


def bare(name: str) -> str:
    """The words of a name as one text, without words such as `train` at its beginning.

    >>> bare("train/loss"), bare("loss_metrics/global_avg_loss")
    ('loss', 'loss metrics global avg loss')
    """
    found = words(name)
    while len(found) > 1 and found[0] in PREFIXES:
        found = found[1:]
    return " ".join(found)


def is_loss(name: str) -> bool:
    """Whether a tensor is called as a loss of training.

    >>> is_loss("train_loss"), is_loss("val_loss"), is_loss("loss scale")
    (True, False, False)
    """
    found = words(name)
    return bool({"loss", "nll", "perplexity", "ppl"} & set(found)) and not OTHERS & set(found)


def is_norm(name: str) -> bool:
    """Whether a tensor is called as a norm of the gradient.

    >>> is_norm("grad_norm"), is_norm("gnorm"), is_norm("param_norm")
    (True, True, False)
    """
    found = words(name)
    return "gnorm" in found or ("norm" in found and any(word.startswith("grad") for word in found))


def is_largest(name: str) -> bool:
    """Whether a tensor is called as the largest absolute value of a gradient.

    >>> is_largest("largest/gradients/w"), is_largest("grad_norm")
    (True, False)
    """
    found = words(name)
    return bool({"max", "largest", "absmax", "maximum", "amax"} & set(found)) and any(
        w.startswith("grad") for w in found
    )


def chosen(log: Log, kind: str, wanted: Sequence[str], path: pathlib.Path) -> tuple[str, ...]:
    """The names of the tensors that a detector looks at.

    Args:
      kind: what it watches, as `signals.KINDS` calls it; empty for everything.
      wanted: what the person names: tensors, of which some may be the log's columns of values.

    Raises:
      InputError: a name is none of the log's, or only the person can tell which tensor it is.
    """
    wanted = [name for name in wanted if name in log.tensors or name != log.column]
    if wanted:
        unknown = [name for name in wanted if name not in log.tensors]
        if unknown:
            raise InputError(
                f"--value {unknown[0][:60]!r}: no such values{did_you_mean(unknown[0], log.tensors)}", path
            )
        return tuple(wanted)
    if log.as_given or not kind or len(log.tensors) == 1:
        return log.tensors
    if kind == "loss":
        found = _one(log.tensors, LOSSES, [name for name in log.tensors if is_loss(name)])
    elif kind == "gradient_norm":
        found = _one(log.tensors, NORMS, [name for name in log.tensors if is_norm(name)])
    else:
        of_kind = is_norm if kind.startswith("norm") else is_largest
        found = tuple(name for name in log.tensors if of_kind(name))
        if not found and kind.startswith("norm"):
            found = _one(log.tensors, NORMS, [])
    if not found:
        what = {"loss": "a loss", "gradient_norm": "the norm of the gradient"}.get(kind, "the gradient")
        raise InputError(f"which of these is {what}? --value NAME chooses: {_listed(log.tensors)}", path)
    return found


def _one(names: Sequence[str], known: Sequence[str], similar: list[str]) -> tuple[str, ...]:
    """The tensors of the best name; several of one name are those of several runs, or ranks."""
    for each in known:
        found = tuple(name for name in names if bare(name) == each)
        if found:
            return found
    for name in known:  # of several ranks, `rank0/loss`
        found = tuple(each for each in similar if re.fullmatch(rf"rank [0-9]+ (train )?{name}", " ".join(words(each))))
        if found:
            return found
    return tuple(similar) if len({bare(name) for name in similar}) == 1 else ()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(repr(name[:60]) for name in names[:LISTED]) + more
