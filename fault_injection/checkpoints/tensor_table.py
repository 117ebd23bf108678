"""The index of a TensorFlow checkpoint: a table of LevelDB's form, whose values are messages of Protocol Buffers.

Facts of the form: https://github.com/google/leveldb/blob/main/doc/table_format.md, and `tensor_bundle.proto` of
TensorFlow.  A block is entries in the order of their keys, of which each leaves out what it shares with the key before
it; then where keys are whole; then a byte for its compression, and a CRC-32C.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ..machine.extras import import_extra

MAGIC = bytes.fromhex("57fb808b247547db")  # ends the file
FOOTER = 48  # bytes
TRAILER = 5  # bytes behind a block: its compression, and its checksum

Crc = Callable[[int, bytes], int]


def crc32c(path: pathlib.Path) -> Crc:
    """What continues a CRC-32C, `(crc, content) -> crc`; raises InputError where the package for it is missing."""
    extend: Crc = import_extra("google_crc32c", "checkpoints", "TensorFlow's checkpoints", path).extend
    return extend


def masked(crc: int) -> bytes:
    """A CRC-32C as the files have it: rotated by 15 bits, plus a constant, so that a CRC of CRCs is none.

    >>> masked(0).hex()
    'd8ea82a2'
    """
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class Block(NamedTuple):
    """A block of a table: its first byte in the file, and its bytes without the trailer."""

    begin: int
    size: int


class TableEntry(NamedTuple):
    """An entry of a table.

    Attributes:
      key: whole.
      begin, end: where in the file its value is.
      block: in which it is.
    """

    key: bytes
    begin: int
    end: int
    block: Block


def read_table(content: bytes, crc: Crc) -> list[TableEntry]:
    """The entries of a table, in their order, each block's checksum compared.

    Raises:
      ValueError: it is damaged, or compressed.
    """
    if len(content) < FOOTER or content[-8:] != MAGIC:
        raise ValueError("it does not end as a table does")
    footer = content[-FOOTER:-8]
    _, at = _handle(footer, 0)  # of what says which other blocks there are, none of which TensorFlow writes
    top, _ = _handle(footer, at)
    found: list[TableEntry] = []
    for pointer in _entries(content, top, crc):
        block, end = _handle(content[pointer.begin : pointer.end], 0)
        if end != pointer.end - pointer.begin:
            raise ValueError("a block's place is no place")
        found += _entries(content, block, crc)
        if len(found) > len(content):
            raise ValueError("its blocks lie in each other")
    if any(one.key >= other.key for one, other in itertools.pairwise(found)):
        raise ValueError("its keys are not in order")
    return found


def renew_block(content: bytearray, block: Block, crc: Crc) -> None:
    """Renew the checksum of a block that was altered, in place."""
    end = block.begin + block.size + 1
    content[end : end + 4] = masked(crc(0, bytes(content[block.begin : end])))


def _entries(content: bytes, block: Block, crc: Crc) -> Iterator[TableEntry]:
    """The entries of one block."""
    end = block.begin + block.size
    if end + TRAILER > len(content) - FOOTER:
        raise ValueError("a block reaches beyond the end")
    if content[end]:
        raise ValueError("a block is compressed, which TensorFlow does not do")
    if masked(crc(0, content[block.begin : end + 1])) != content[end + 1 : end + TRAILER]:
        raise ValueError(f"the checksum of the block at byte {block.begin} does not match")
    wholes = int.from_bytes(content[end - 4 : end], "little") if block.size >= 4 else -1
    last = end - 4 * (wholes + 1)
    if wholes < 0 or last < block.begin:
        raise ValueError("a block has no end")
    at, key = block.begin, b""
    while at < last:
        shared, at = varint(content, at)
        own, at = varint(content, at)
        size, at = varint(content, at)
        if shared > len(key) or at + own + size > last:
            raise ValueError("an entry reaches beyond its block")
        key = key[:shared] + content[at : at + own]
        yield TableEntry(key, at + own, at + own + size, block)
        at += own + size


def _handle(content: bytes, at: int) -> tuple[Block, int]:
    """Where a block is, and where that ends."""
    begin, at = varint(content, at)
    size, at = varint(content, at)
    return Block(begin, size), at


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends; raises ValueError where it does not end.

    >>> varint(b"\\xac\\x02", 0)
    (300, 2)
    """
    value = 0
    for k in range(10):
        if at + k >= len(content):
            break
        value |= (content[at + k] & 0x7F) << 7 * k
        if content[at + k] < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + k + 1
    raise ValueError("a number has no end")


def fields(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int | bytes, int]]:
    """The fields of a message: number, value, and where the value begins; a value of 4 bytes stays bytes.

    Raises:
      ValueError: it is no message.
    """
    at = begin
    while at < end:
        tag, at = varint(content, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            start = at
            value, at = varint(content, at)
            yield number, value, start
            continue
        if wire == 2:
            size, at = varint(content, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("a value is no message")
        if at + size > end:
            raise ValueError("a field reaches beyond its message")
        yield number, content[at : at + size], at
        at += size


def numbers(found: Mapping[int, object], *keys: int) -> list[int]:
    """Fields that are whole numbers, 0 where they are missing; raises ValueError where one is none."""
    values = [found.get(key, 0) for key in keys]
    if not all(isinstance(value, int) and 0 <= value < 1 << 63 for value in values):
        raise ValueError("a number is none, or is negative")
    return [value for value in values if isinstance(value, int)]
