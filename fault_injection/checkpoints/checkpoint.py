"""A checkpoint on disk: named arrays whose elements are read, and replaced, without loading the rest.

Elements are *words* here: unsigned integers of an element's width, with the element's bits.  An index
counts an array's elements in row-major order, whatever the order on disk.
"""

import abc
import contextlib
import errno
import itertools
import math
import pathlib
import re
import types
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..machine.errors import InputError

PIECE = 1 << 20  # bytes that are in memory together; more are slower, since each piece is allocated
OPTIMIZER = (
    *("opt_state", "optimizer", "optimizer_state", "optimizer_weights", "opt"),
    *("optimizer_states", "optimizer_state_dict"),  # as Lightning's and PyTorch's own examples save them
)


PACKED = ("float4_e2m1fn", "int4", "uint4")  # types of which two elements may share a byte


class Described(NamedTuple):
    """An array, without its elements.

    Attributes:
      shape: of the array.
      dtype: of its elements, in the byte order of this machine.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def word(self) -> np.dtype:
        """The type of its words."""
        return np.dtype(f"u{self.dtype.itemsize}")

    @property
    def width(self) -> int:
        """How many bits an element has; the lowest ones of its word, where that is wider.

        >>> Described((3,), np.dtype(np.float32)).width, Described((3,), np.dtype(ml_dtypes.float4_e2m1fn)).width
        (32, 4)
        """
        return width_of(self.dtype)

    @property
    def text(self) -> str:
        """Its type and shape, as `float32 [3, 4]`."""
        return f"{self.dtype.name} {list(self.shape)}"

    @property
    def floating(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return is_float(self.dtype)


class Raw(NamedTuple):
    """What a checkpoint has besides arrays that can be altered; its bits alone are compared.

    Attributes:
      text: its type and shape, as `complex64 [3]`.
      elements: how many it has.
      width: bits of an element; 0 where it is one value of any length.
      padding: how many of these, the last ones, mean nothing.
      compared: whether its bits say whether two are alike; those of a pickle, or of pointers, do not.
    """

    text: str
    elements: int = 1
    width: int = 0
    padding: int = 0
    compared: bool = True

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: np.dtype) -> "Raw":
        """An array of a type that NumPy knows."""
        text, elements = f"{dtype if dtype.kind == 'V' else dtype.name} {list(shape)}", math.prod(shape)
        if dtype.byteorder == ">":
            text = f"big-endian {text}"
        if dtype.hasobject:
            return cls(text, elements, compared=False)
        if dtype.char == "g" and np.finfo(dtype).nmant == 63:  # ten bytes; the others are whatever was in memory
            return cls(text, elements, 8 * dtype.itemsize, 8 * (dtype.itemsize - 10))
        if dtype.char == "G" and np.finfo(dtype).nmant == 63:  # two of these
            return cls(text, 2 * elements, 4 * dtype.itemsize, 4 * (dtype.itemsize - 20))
        return cls(text, elements, 8 * dtype.itemsize)


class Altered(NamedTuple):
    """Alterations of one array.

    Attributes:
      places: int64 [n], row-major positions, distinct and in ascending order.
      before, after: unsigned [n], its words.
    """

    places: np.ndarray
    before: np.ndarray
    after: np.ndarray


Changes = Mapping[str, Altered]  # by array


class Checkpoint(abc.ABC):
    """A checkpoint that was opened.

    Attributes:
      path: the file or folder.
      format: what kind it is, such as `safetensors`.
      arrays: what it has of arrays that can be read as numbers, by name, in its own order.
      raw: what it has besides, by name; it is copied, never altered.
    """

    format: str
    path: pathlib.Path
    arrays: Mapping[str, Described]
    raw: Mapping[str, Raw] = types.MappingProxyType({})

    @property
    def others(self) -> tuple[str, ...]:
        """Names of what it has besides arrays of numbers."""
        return tuple(self.raw)

    @abc.abstractmethod
    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        """Unsigned [n]: the words of some elements, int64 [n] in ascending order."""

    @abc.abstractmethod
    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """All words of an array in their order, in flat pieces of at most `PIECE` bytes."""

    @abc.abstractmethod
    def content(self, name: str) -> Iterator[bytes]:
        """The bytes of one of `raw` that is compared, in pieces."""

    @abc.abstractmethod
    def write(self, out: pathlib.Path, changes: Changes) -> None:
        """Write a copy with some elements replaced; it is whole or absent, and checksums in it are renewed.

        Args:
          out: a file or folder; a file that is there is replaced at once, a folder must not be there.

        Raises:
          OSError: it cannot be written.
        """

    def repeated(self, names: Mapping[str, object]) -> Mapping[str, np.ndarray | None]:
        """Elements of these arrays that are elements of another one of them, or earlier ones, too: they count once.

        Returns:
          Of the arrays that have some, row-major positions, int64 [n] in ascending order; None for all of them.
        """
        return {}

    def sharing(self, changes: Changes) -> Mapping[str, tuple[str, ...]]:
        """Of each altered array, the others that change with it, since they have the same elements."""
        return {}

    def struck_twice(self, changes: Changes) -> str | None:
        """Arrays in which one element that they share would be altered twice, in words; None where none would."""
        return None

    def array(self, name: str) -> np.ndarray:
        """An array, whole."""
        described = self.arrays[name]
        pieces = [*self.pieces(name)] or [np.empty(0, described.word)]
        return np.concatenate(pieces).view(described.dtype).reshape(described.shape)


Block = tuple[int | slice, ...]


def blocks(array: Described) -> Iterator[Block]:
    """Parts of an array in row-major order, each of at most `PIECE` bytes.

    >>> list(blocks(Described((3, PIECE // 8), np.dtype(np.float32))))
    [(slice(0, 2, None),), (slice(2, 3, None),)]
    >>> [part[0] for part in blocks(Described((2, PIECE), np.dtype(np.float32)))]
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    if not array.shape or not array.size:
        yield () if array.size else (slice(0, 0),) * len(array.shape)
        return
    most = PIECE // array.dtype.itemsize
    axis = next(k for k in range(len(array.shape)) if math.prod(array.shape[k + 1 :]) <= most)
    rows = most // math.prod(array.shape[axis + 1 :])
    for lead in itertools.product(*map(range, array.shape[:axis])):
        for start in range(0, array.shape[axis], rows):
            yield (*lead, slice(start, min(start + rows, array.shape[axis])))


def unique_name(keys: Sequence[object], taken: Container[str]) -> str:
    """The name of a leaf: its keys, with `/`; where another leaf has that name, keys as Python writes them.

    >>> unique_name(["layers", 0, "w"], ()), unique_name(["layers", 0, "w"], ["layers/0/w"])
    ('layers/0/w', "'layers'/0/'w'")
    """
    name = "/".join(map(str, keys))
    return name if name not in taken else "/".join(map(repr, keys))


def replaced(pieces: Iterable[np.ndarray], places: np.ndarray, words: np.ndarray) -> Iterator[np.ndarray]:
    """Pieces of an array with some of its words replaced, in place; `places` [n] count through the pieces."""
    begin = 0
    for piece in pieces:
        here = (begin <= places) & (places < begin + len(piece))
        piece[places[here] - begin] = words[here]
        begin += len(piece)
        yield piece


def width_of(dtype: np.dtype) -> int:
    """How many bits of an element mean something.

    >>> width_of(np.dtype(bool)), width_of(np.dtype(ml_dtypes.int4)), width_of(np.dtype(np.uint16))
    (8, 4, 16)
    """
    if dtype.type.__module__ != "ml_dtypes":
        return 8 * dtype.itemsize
    return int((ml_dtypes.finfo if "float" in dtype.name else ml_dtypes.iinfo)(dtype).bits)


def is_float(dtype: np.dtype) -> bool:
    """Whether a type is one of floating-point numbers with a sign that fill their bytes.

    >>> is_float(np.dtype(np.float16)), is_float(np.dtype(ml_dtypes.bfloat16)), is_float(np.dtype("V2"))
    (True, True, False)
    """
    if dtype.type.__module__ != "ml_dtypes":
        return dtype.kind == "f"
    # One of 4 or 6 bits leaves bits of its byte without a meaning, and one that is a bare exponent has no sign.
    return "float" in dtype.name and not is_scale(dtype) and ml_dtypes.finfo(dtype).bits == 8 * dtype.itemsize


def is_scale(dtype: np.dtype) -> bool:
    """Whether a type is one of powers of two without a sign, as the scales of blocks are; one of its numbers is NaN.

    >>> is_scale(np.dtype(ml_dtypes.float8_e8m0fnu)), is_scale(np.dtype(ml_dtypes.float8_e4m3fn))
    (True, False)
    """
    return "e8m0" in dtype.name


def is_number(dtype: np.dtype) -> bool:
    """Whether a type is one of numbers or truth values, of 4 to 64 bits.

    >>> is_number(np.dtype(bool)), is_number(np.dtype(complex)), is_number(np.dtype("S4"))
    (True, False, False)
    """
    if dtype.type.__module__ == "ml_dtypes" and not is_float(dtype):
        return dtype.name in PACKED or is_scale(dtype)
    return (dtype.kind in "iub" or is_float(dtype)) and dtype.itemsize in (1, 2, 4, 8)


def of_optimizer(name: str) -> bool:
    """Whether an array belongs to the optimizer, by its name: one of its parts is one of `OPTIMIZER`.

    >>> of_optimizer("opt_state/m/conv1/kernel"), of_optimizer("params/conv1/kernel"), of_optimizer("['opt'][0].mu")
    (True, False, True)
    """
    return any(part in OPTIMIZER for part in re.findall(r"\w+", name))


@contextlib.contextmanager
def reading(path: pathlib.Path, format: str) -> Iterator[None]:
    """Inside this context, whatever a reader stumbles over becomes one line: damage can surface anywhere in it.

    Raises:
      InputError: in place of the reader's own errors.
      OSError: of the system, such as a file that may not be read.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a place before the file
            raise
        why = str(error).partition(" [source locations=")[0] or type(error).__name__  # which TensorStore adds
        raise InputError(f"no sound {format} checkpoint: {why}", path) from None
