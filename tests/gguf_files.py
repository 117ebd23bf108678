"""Files of GGUF, written by the format's description (docs/gguf.md of ggml), in either byte order."""

import pathlib
import struct
from collections.abc import Mapping

import ml_dtypes
import numpy as np

TYPES = {"float32": 0, "float16": 1, "int8": 24, "int16": 25, "int32": 26, "int64": 27, "float64": 28, "bfloat16": 30}
Q8_0 = 8  # blocks of a float16 and 32 bytes


def write_gguf(path: pathlib.Path, arrays: Mapping[str, np.ndarray], order: str = "<", alignment: int = 32) -> None:
    """A file of arrays, and of one tensor in blocks, with metadata of every kind of value."""
    text = lambda one: struct.pack(f"{order}Q", len(one.encode())) + one.encode()  # noqa: E731
    value = lambda key, kind, raw: text(key) + struct.pack(f"{order}I", kind) + raw  # noqa: E731
    of_strings = struct.pack(f"{order}IQ", 8, 2) + text("a") + text("größe")
    nested = struct.pack(f"{order}IQ", 9, 2) + 2 * struct.pack(f"{order}IQ2H", 2, 2, 1, 2)
    metadata = [
        value("general.architecture", 8, text("llama")),
        value("general.alignment", 4, struct.pack(f"{order}I", alignment)),
        value("tokens", 9, of_strings),
        value("nested", 9, nested),
        value("eps", 6, struct.pack(f"{order}f", 1e-5)),
        value("flag", 7, b"\1"),
    ]
    tensors, data = [], b""
    blocks = np.arange(2 * 34, dtype=np.uint8)
    for name, array in {**arrays, "blocks": blocks}.items():
        data += bytes(-len(data) % alignment)
        packed = name == "blocks"
        shape = (64,) if packed else array.shape
        kind = Q8_0 if packed else TYPES[array.dtype.name]
        dims = struct.pack(f"{order}I{len(shape)}Q", len(shape), *shape[::-1])
        tensors.append(text(name) + dims + struct.pack(f"{order}IQ", kind, len(data)))
        swapped = order == ">" and not packed
        data += (array.view(f"u{array.itemsize}").byteswap() if swapped else array).tobytes()
    head = b"GGUF" + struct.pack(f"{order}IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata + tensors)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)


def of_models(seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of every type that GGUF has for single numbers."""
    rng = np.random.default_rng(seed)
    return {
        "token_embd.weight": rng.normal(size=(11, 4)).astype(np.float32),
        "blk.0.attn_q.weight": rng.normal(size=(3, 5, 7)).astype(np.float16),
        "blk.0.ffn.weight": rng.normal(size=(6, 5)).astype(ml_dtypes.bfloat16),
        "rope": rng.normal(size=9),
        "counts": rng.integers(-9, 9, 5).astype(np.int32),
        "bytes": rng.integers(-9, 9, (2, 3)).astype(np.int8),
    }
