"""What the pickle in a file of `torch.save` says: which tensors there are, and where in which storage each one lies.

The pickle is read as data (`data/plain_pickle.py`).  It may name what tensors and plain values need, and nothing else.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..data.plain_pickle import PERSISTENT, Recorded

DEEPEST = 100  # containers in each other
TEXT = 1 << 20  # values that are compared as text
# Types of storages, and of tensors that name theirs (`_rebuild_tensor_v3`).
TYPES = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bool": np.dtype(bool),
    "complex32": np.dtype("V4"),
    "complex64": np.dtype("<c8"),
    "complex128": np.dtype("<c16"),
    "bits16": np.dtype("V2"),
    **{f"{kind}{8 * width}": np.dtype(f"<{kind[0]}{width}") for kind in ("int", "uint") for width in (1, 2, 4, 8)},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu")},
    **dict.fromkeys(("float4_e2m1fn_x2", "bits8", "bits1x8", "bits2x4", "bits4x2"), np.dtype("V1")),
    **dict.fromkeys(("quint4x2", "quint2x4"), np.dtype("V1")),
    **{f"{kind}{width}": np.dtype("V1") for kind in ("int", "uint") for width in range(1, 8)},
}
STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "QInt8": "int8",
    "QUInt8": "uint8",
    "QInt32": "int32",
    "QUInt4x2": "quint4x2",
    "QUInt2x4": "quint2x4",
}
UNTYPED = "torch.storage.UntypedStorage"
STORAGE_NAMES = {
    **{f"{module}.{name}Storage": TYPES[kind] for name, kind in STORAGES.items() for module in ("torch", "torch.cuda")},
    UNTYPED: np.dtype("u1"),
}
TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor")
TYPED_TENSOR = "torch._utils._rebuild_tensor_v3"
PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
SUBCLASS = "torch._tensor._rebuild_from_type_v2"
SPARSE = "torch._utils._rebuild_sparse_tensor"
MAPPINGS = ("collections.OrderedDict", "collections.defaultdict", "collections.Counter")
SPACES = ("argparse.Namespace", "types.SimpleNamespace")
KNOWN = frozenset(
    (
        *(*STORAGE_NAMES, *TENSORS, TYPED_TENSOR, *PARAMETERS, SUBCLASS, SPARSE, *MAPPINGS, *SPACES),
        *(f"torch.{name}" for name in (*TYPES, "qint8", "quint8", "qint32", "Size", "device", "Tensor")),
        *(f"torch.per_{name}" for name in ("tensor_affine", "tensor_symmetric", "channel_affine", "channel_symmetric")),
        *("torch.per_channel_affine_float_qparams", "torch.serialization._get_layout"),
        *("torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "torch.torch_version.TorchVersion"),
        *("torch._utils._rebuild_meta_tensor_no_storage", "_codecs.encode"),
        *(f"builtins.{name}" for name in ("set", "frozenset", "bytearray", "complex", "slice", "object", "list")),
        *(f"builtins.{name}" for name in ("int", "float", "str", "bool", "bytes", "tuple", "range", "dict")),
        *(f"datetime.{name}" for name in ("datetime", "date", "time", "timedelta", "timezone")),
        *(f"{module}.{flavour}{kind}Path" for module in ("pathlib", "pathlib._local")
          for flavour in ("", "Pure") for kind in ("", "Posix", "Windows")),
        *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
        *(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")),
        *("numpy.ndarray", "numpy.dtype", "copyreg._reconstructor"),
    )
)  # fmt: skip


class Storage(NamedTuple):
    """A run of bytes that tensors lie in.

    Attributes:
      key: the name of its member in the archive.
      size: how many bytes it has.
      dtype: of its elements, in the byte order of little-endian machines.
    """

    key: str
    size: int
    dtype: np.dtype


class Tensor(NamedTuple):
    """Where a tensor lies.

    Attributes:
      begin: of its first element in its storage, in elements of its type.
      shape, strides: in elements.
      dtype: of its elements.
    """

    storage: Storage
    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype


class Plain(NamedTuple):
    """What is no tensor.

    Attributes:
      kind: what it is, in words.
      value: of the pickle.
    """

    kind: str
    value: Any


def leaves(value: Any, most: int) -> Iterator[tuple[tuple[object, ...], Tensor | Plain]]:
    """The tensors and other values in a pickle, with their paths.

    Args:
      value: as `read_as_data` gives it.
      most: how many there may be: a few instructions can put a container into itself a million times.

    Raises:
      ValueError: a tensor reaches beyond its storage, or containers are too many or too deep.
    """
    for number, found in enumerate(_walk(value, ())):
        if number > most:
            raise ValueError(f"containers in each other have more than {most:,} entries")
        yield found


def _walk(value: Any, keys: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], Tensor | Plain]]:
    if len(keys) > DEEPEST:
        raise ValueError(f"containers are nested more than {DEEPEST} deep")
    entries = _entries(value)
    if entries is not None:
        if not entries:
            yield keys or ("value",), Plain(f"an empty {type(value).__name__}", value)
        for key, child in entries:
            yield from _walk(child, (*keys, key))
        return
    keys = keys or ("tensor",)
    if isinstance(value, Recorded) and value.name == SPARSE and len(value.arguments or ()) == 2:
        assert value.arguments is not None
        for number, part in enumerate(value.arguments[1]):
            yield from _walk(part, (*keys, number))
        return
    tensor = _tensor(value)
    if tensor is not None:
        yield keys, tensor
    else:
        kind = value.name if isinstance(value, Recorded) else f"Python {type(value).__name__}"
        yield keys, Plain(f"a {kind}", value)


def _entries(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container has, by key; None of what is none, or of a list of plain values, which is one leaf."""
    if type(value) is dict:
        return list(value.items())
    if type(value) in (list, tuple):
        scalars = all(isinstance(one, int | float | str | bytes | None) for one in value)
        return None if scalars else list(enumerate(value))
    if not isinstance(value, Recorded):
        return None
    if value.name in MAPPINGS and value.arguments is not None:
        state = list(value.state.items()) if type(value.state) is dict else []  # such as `_metadata`, and then its tree
        plain = [(key, Recorded(f"{type(one).__name__} of attributes", (one,))) for key, one in state]
        old = value.arguments[0] if value.arguments and value.name == MAPPINGS[0] else []  # pairs, of Python 2
        return [*((key, one) for key, one in old), *value.items, *plain]
    if value.name in SPACES and type(value.state) is dict:
        return list(value.state.items())
    return None


def _tensor(value: Any) -> Tensor | None:
    """Where a tensor lies; None where it is none, or lies in no storage."""
    match value:
        case Recorded(name=name) if name == PERSISTENT:
            storage = _storage(value)
            return Tensor(storage, 0, (storage.size // storage.dtype.itemsize,), (1,), storage.dtype)
        case Recorded(name=name, arguments=(inner, *_)) if name in PARAMETERS:
            return _tensor(inner)
        case Recorded(name=name, arguments=(Recorded(name=how, arguments=None), Recorded(), tuple(inner), _)) if (
            name == SUBCLASS
        ):
            return _tensor(Recorded(how, inner))
        case Recorded(name=name, arguments=(stored, begin, shape, strides, *_)) if name in TENSORS:
            storage = _storage(stored)
            return _checked(Tensor(storage, begin, _sizes(shape), _sizes(strides), storage.dtype))
        case Recorded(name=name, arguments=(stored, begin, shape, strides, _, _, Recorded(name=kind), *_)) if (
            name == TYPED_TENSOR and kind.removeprefix("torch.") in TYPES
        ):
            dtype = TYPES[kind.removeprefix("torch.")]
            return _checked(Tensor(_storage(stored), begin, _sizes(shape), _sizes(strides), dtype))
    return None


def _sizes(value: Any) -> tuple[int, ...]:
    """A shape: a tuple, or a `torch.Size`, which is called with one."""
    if isinstance(value, Recorded) and value.arguments and len(value.arguments) == 1:
        value = value.arguments[0]
    if not isinstance(value, tuple | list) or not all(type(n) is int and 0 <= n < 2**62 for n in value):
        raise ValueError("a tensor's shape or strides are no whole numbers")
    return tuple(value)


def _storage(value: Any) -> Storage:
    match value:
        case Recorded(name=name, arguments=(("storage", Recorded(name=kind), str(key), _, int(count), *_),)) if (
            name == PERSISTENT and kind in STORAGE_NAMES and 0 <= count < 2**62
        ):
            dtype = STORAGE_NAMES[kind]
            return Storage(key, count * dtype.itemsize, dtype)
    raise ValueError("a tensor has no storage of a known type")


def _checked(tensor: Tensor) -> Tensor:
    """The tensor, if it lies within its storage; raises ValueError."""
    if type(tensor.begin) is not int or tensor.begin < 0 or len(tensor.shape) != len(tensor.strides):
        raise ValueError("a tensor has no place in its storage, or other dimensions than strides")
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
    end = (tensor.begin + 1 + last) * tensor.dtype.itemsize
    if math.prod(tensor.shape) and end > tensor.storage.size:
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} ends at byte {end:,} of storage {tensor.storage.key}, "
            f"which has {tensor.storage.size:,}"
        )
    if math.prod(tensor.shape) >= 2**62:
        raise ValueError(f"a tensor has the shape {list(tensor.shape)}")
    return tensor


def as_text(value: Any) -> bytes | None:
    """A plain value as text that is equal for equal values; None where it is too large, or holds itself."""
    left = [TEXT]

    def text(one: Any, depth: int) -> str:
        left[0] -= 1
        if left[0] < 0 or depth > DEEPEST:
            raise ValueError
        if isinstance(one, Recorded):
            parts = [text(part, depth + 1) for part in (one.arguments, one.state, one.items)]
            return f"{one.name}({', '.join(parts)})"
        if isinstance(one, dict):
            return f"{{{', '.join(f'{text(k, depth + 1)}: {text(v, depth + 1)}' for k, v in one.items())}}}"
        if isinstance(one, list | tuple):
            return f"{type(one).__name__}[{', '.join(text(part, depth + 1) for part in one)}]"
        if isinstance(one, set | frozenset):
            return f"{type(one).__name__}[{', '.join(sorted(text(part, depth + 1) for part in one))}]"
        return one.hex() if isinstance(one, float | bytes | bytearray) else ascii(one)

    try:
        return text(value, 0).encode()
    except ValueError:
        return None
