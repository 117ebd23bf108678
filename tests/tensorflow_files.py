"""Writes TensorFlow's checkpoints by hand, with a CRC-32C of its own: an oracle for what reads and alters them."""

import pathlib
import struct

TYPES = {"float32": 1, "float64": 2, "int32": 3, "complex64": 8, "int64": 9, "bool": 10, "bfloat16": 14, "float16": 19}


def crc32c(content: bytes) -> int:
    """Bit by bit, as the polynomial is defined."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(content: bytes) -> int:
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def number(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def field(key: int, value: int | bytes) -> bytes:
    """A field of a message; a number that is 0 is left out."""
    if isinstance(value, bytes):
        return number(key << 3 | 2) + number(len(value)) + value
    return number(key << 3) + number(value) if value else b""


def entry(kind: int, shape: tuple[int, ...], shard: int, offset: int, content: bytes) -> bytes:
    sizes = b"".join(field(2, field(1, size)) for size in shape)
    places = field(3, shard) + field(4, offset) + field(5, len(content))
    return field(1, kind) + field(2, sizes) + places + number(6 << 3 | 5) + struct.pack("<I", masked(content))


def block(entries: list[tuple[bytes, bytes]], whole_every: int) -> bytes:
    found, wholes, before = b"", [], b""
    for place, (key, value) in enumerate(entries):
        shared = 0
        if place % whole_every == 0:
            wholes.append(len(found))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        found += number(shared) + number(len(key) - shared) + number(len(value)) + key[shared:] + value
        before = key
    return found + b"".join(struct.pack("<I", at) for at in wholes or [0]) + struct.pack("<I", len(wholes or [0]))


def table(values: dict[bytes, bytes], per_block: int = 3, whole_every: int = 2) -> bytes:
    """A table of sorted entries, in blocks of some."""
    ordered, content, pointers = sorted(values.items()), b"", []

    def put(one: bytes) -> bytes:
        nonlocal content
        handle = number(len(content)) + number(len(one))
        content += one + b"\0" + struct.pack("<I", masked(one + b"\0"))
        return handle

    for start in range(0, len(ordered), per_block):
        part = ordered[start : start + per_block]
        pointers.append((part[-1][0] + b"\0", put(block(part, whole_every))))
    footer = put(block([], 1)) + put(block(pointers, 1))
    return content + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def write_tensorflow(prefix: pathlib.Path, arrays, shards: int = 1, big: bool = False, others=None) -> None:
    """Write arrays by their names, and `others` (name: type, shape, bytes) besides, in files of data and an index."""
    data, values = [bytearray() for _ in range(shards)], {b"": field(1, shards) + field(2, int(big))}
    every = {
        name: (
            TYPES[array.dtype.name],
            array.shape,
            (array.astype(array.dtype.newbyteorder(">")) if big else array).tobytes(),
        )
        for name, array in arrays.items()
    }
    for place, (name, (kind, shape, content)) in enumerate(sorted({**every, **(others or {})}.items())):
        shard = place % shards
        values[name.encode()] = entry(kind, shape, shard, len(data[shard]), content)
        data[shard] += content
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}").write_bytes(content)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(values))
