"""The log of an alteration: what was altered, element by element; and its application to another checkpoint.

A log is JSON, with one alteration per line.  Applied, it inverts in each element the bits that it says
were inverted.  So the same log undoes what it did, and in another checkpoint, whose values differ, it is
the *equivalent injection*.  It is written before the checkpoint is, in the state `planned`; such a log is not
believed.  `journal.py` says how the two go together.
"""

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..machine.errors import InputError, did_you_mean
from ..machine.files import read_bounded, read_text, strict_json, sync, write_atomically
from .checkpoint import Altered, Checkpoint, Described

VERSION = 1
LARGEST = 2 * 2**30  # bytes of a log
STATES = "planned", "done"
# Where the state stands: at the beginning, in equally many bytes, so that one write that cannot be torn changes it.
BEGINS = {state: f'{{"version": {VERSION}, "state": "{state}"'.ljust(33).encode() for state in STATES}
EXPECTED = "what `alter --log` writes, or {location: [[indexes, bits], …]}"


class Entry(NamedTuple):
    """One array's alterations as a log has them.

    Attributes:
      name: of the array.
      dtype: of its elements; None where the log does not say.
      places: int64 [n, dimensions], coordinates; [n, 1] row-major positions where `flat`.
      before, after: unsigned [n]; of a published sequence the bits inverted, `before` being 0.
      flat: whether positions are row-major ones.
      from_sign: whether bits are counted from the sign, so that they wait for the width of an element.
    """

    name: str
    dtype: np.dtype | None
    places: np.ndarray
    before: np.ndarray
    after: np.ndarray
    flat: bool = False
    from_sign: bool = False


class Mapped(NamedTuple):
    """Where an array of a log is in a checkpoint of another layout.

    Attributes:
      name: of the array there.
      axes: which axis of the log's array each of its axes is; None where they are the same.
    """

    name: str
    axes: tuple[int, ...] | None = None


class Located(NamedTuple):
    """What a log alters of one array.

    Attributes:
      places: int64 [n], row-major positions in ascending order.
      masks: unsigned [n], the bits inverted.
      before: unsigned [n], the words that the log found there; None where it does not say.
    """

    places: np.ndarray
    masks: np.ndarray
    before: np.ndarray | None


class Applied(NamedTuple):
    """A log applied to a checkpoint.

    Attributes:
      altered: by array.
      before, after: elements that had the bits that the log says they had before, or after; the latter are undone.
    """

    altered: dict[str, Altered]
    before: int
    after: int


def write_log(
    path: pathlib.Path,
    checkpoint: Checkpoint,
    altered: Mapping[str, Altered],
    about: Mapping[str, Any],
    state: str = "done",
) -> None:
    """Write what was altered, or is planned to be.

    Args:
      about: what the alterations were drawn from and where they go, for people to read.
      state: of `STATES`; `mark_done` changes it.
    """
    rows = (row for name, one in altered.items() for row in _rows(name, checkpoint.arrays[name], one))

    def fill(file: Any) -> None:
        head = json.dumps(strict_json(about), ensure_ascii=False)[1:-1]
        file.write(BEGINS[state] + f', {head}{", " if head else ""}"alterations": ['.encode(errors="backslashreplace"))
        between = "\n"
        for row in rows:
            file.write(f"{between}{json.dumps(row, ensure_ascii=False)}".encode(errors="backslashreplace"))
            between = ",\n"
        file.write(b"\n]}\n")

    write_atomically(path, fill)
    sync(path.parent)


def mark_done(path: pathlib.Path) -> None:
    """Say in a log that what it planned was done; raises InputError where others have written it anew."""
    with path.open("r+b") as file:
        if file.read(len(BEGINS["planned"])) != BEGINS["planned"]:
            raise InputError("was changed since `alter` has written it", path)
        file.seek(0)
        file.write(BEGINS["done"])
        file.flush()
        os.fsync(file.fileno())


def _rows(name: str, array: Described, altered: Altered) -> Iterator[dict[str, Any]]:
    places = np.stack(np.unravel_index(altered.places, array.shape), 1).tolist() if array.shape else [[]]
    digits = -(-array.width // 4)
    for place, before, after in zip(places, altered.before.tolist(), altered.after.tolist(), strict=True):
        yield {
            "name": name,
            "index": place,
            "dtype": array.dtype.name,
            "before": f"{before:0{digits}x}",
            "after": f"{after:0{digits}x}",
        }


def read_log(path: pathlib.Path) -> list[Entry]:
    """Read a log of ours, or a sequence saved by the published tool: `{location: [[indexes, bits], …]}`.

    The published tool counts bits from the sign, and so are they read here.  Its indexes are coordinates.  Two columns
    are read too, `{location: [[index, …], [bits, …]]}`, where an index may be a row-major position.

    Raises:
      InputError: it is neither, or alters nothing, or says what was planned and perhaps not done.
    """
    document, found = read_document(path)
    if document.get("state") == "planned":
        raise InputError(
            "says what was planned, and not that it was done; give the command `alter` that wrote it again", path
        )
    if not any(len(entry.places) for entry in found):
        raise InputError("the log alters nothing", path)
    return found


def read_document(path: pathlib.Path) -> tuple[dict[str, Any], list[Entry]]:
    """A log as JSON, in whatever state, and what it alters; raises InputError where it is none."""
    try:
        document = json.loads(read_bounded(path, LARGEST).decode())
        if not isinstance(document, dict):
            raise ValueError("expected an object")
        if "alterations" not in document:
            return {}, [_published(name.lstrip("/"), parts) for name, parts in document.items()]
        if document.get("version") != VERSION:
            raise ValueError(f"version {document.get('version')!r}, expected {VERSION}")
        if document.get("state", "done") not in STATES:  # before there were states, a log meant that it was done
            raise ValueError(f"state {document['state']!r}, expected one of {', '.join(STATES)}")
        return document, _ours(document["alterations"])
    except OSError as error:
        raise InputError(error.strerror or str(error), path) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        why = f"an alteration has no {error}" if isinstance(error, KeyError) else str(error)[:200]
        raise InputError(f"not a log of alterations: {why}; expected {EXPECTED}", path) from None


def _ours(rows: list[dict[str, Any]]) -> list[Entry]:
    by_array: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_array.setdefault((str(row["name"]), str(row["dtype"])), []).append(row)
    found = []
    for (name, kind), of_array in by_array.items():
        dtype = np.dtype(getattr(ml_dtypes, kind, kind))
        before, after = (
            np.array([int(row[when], 16) for row in of_array], np.dtype(f"u{dtype.itemsize}"))
            for when in ("before", "after")
        )
        found.append(Entry(name, dtype, _places([row["index"] for row in of_array]), before, after))
    return found


def _published(name: str, rows: list[Any]) -> Entry:
    if not isinstance(rows, list):
        raise ValueError(f"{name}: expected a list of pairs of indexes and bits")
    if all(isinstance(row, list) and len(row) == 2 and all(isinstance(one, list) for one in row) for row in rows):
        indexes, bits = [row[0] for row in rows], [row[1] for row in rows]
    elif len(rows) == 2:
        indexes, bits = rows
    else:
        raise ValueError(f"{name}: expected pairs of indexes and bits")
    if len(indexes) != len(bits):
        raise ValueError(f"{name} has {len(indexes)} indexes and {len(bits)} bits")
    if [] in indexes:
        raise ValueError(f"{name}: an entry has no index, and its element would be drawn anew")
    flat = all(isinstance(place, int) for place in indexes)
    index = _places([[place] for place in indexes] if flat else indexes)
    each = [[bit] if isinstance(bit, int) else bit for bit in bits]
    if any(type(bit) is not int or not 0 <= bit < 64 for of_one in each for bit in of_one):
        raise ValueError(f"{name}: expected bits from 0 to 63")
    masks = np.array([sum(1 << bit for bit in set(of_one)) for of_one in each], np.uint64)
    return Entry(name, None, index, np.zeros_like(masks), masks, flat, from_sign=True)


def _places(rows: list[list[int]]) -> np.ndarray:
    if any(type(n) is not int or n < 0 for row in rows for n in row) or len({len(row) for row in rows}) > 1:
        raise ValueError("an index is a list of whole numbers from 0, as many as the array has dimensions")
    return np.array(rows, np.int64).reshape(len(rows), -1)


def read_mapping(path: pathlib.Path) -> dict[str, Mapped]:
    """Read where the arrays of a log are in another layout: `{"fc/kernel": "fc.weight"}`, or with axes.

    With axes it is `{"fc/kernel": {"name": "fc.weight", "axes": [1, 0]}}`: axis i of the array there is axis
    `axes[i]` of the log's.

    Raises:
      InputError: it is no such file.
    """
    try:
        found = {}
        for name, there in json.loads(read_text(path)).items():
            if isinstance(there, str):
                found[name] = Mapped(there)
                continue
            axes = tuple(there["axes"])
            if set(there) != {"name", "axes"} or sorted(axes) != list(range(len(axes))):
                raise ValueError(f"{name}: expected a name, and axes that are a permutation")
            found[name] = Mapped(str(there["name"]), axes)
        return found
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = f"an array has no {error}" if isinstance(error, KeyError) else str(error)[:200]
        expected = 'expected {"name": "name there"} or {"name": {"name": "name there", "axes": [1, 0]}}'
        raise InputError(f"not a mapping of names: {why}; {expected}", path) from None


def apply(entries: list[Entry], checkpoint: Checkpoint, mapping: Mapping[str, Mapped]) -> Applied:
    """What a log does to a checkpoint.

    Raises:
      InputError: an array is missing, or has another type or shape; or a place stands in the log twice.
    """
    altered, before, after = {}, 0, 0
    for name, one in located(entries, checkpoint.arrays, mapping, checkpoint.path).items():
        words = checkpoint.words(name, one.places)
        altered[name] = Altered(one.places, words, words ^ one.masks)
        if one.before is not None:
            before += int(np.sum(words == one.before))
            after += int(np.sum(words == one.before ^ one.masks))
    if (twice := checkpoint.struck_twice(altered)) is not None:
        raise InputError(f"the log alters an element twice that is shared here: {twice}", checkpoint.path)
    return Applied(altered, before, after)


def located(
    entries: list[Entry], arrays: Mapping[str, Described], mapping: Mapping[str, Mapped], path: pathlib.Path
) -> dict[str, Located]:
    """What a log alters of these arrays, by array.

    Args:
      path: of the checkpoint with these arrays, or of the log; for messages.

    Raises:
      InputError: an array is missing, or has another type or shape; or a place stands in the log twice.
    """
    found: dict[str, Located] = {}
    for entry in entries:
        to = mapping.get(entry.name, Mapped(entry.name))
        if to.name not in arrays:
            raise InputError(f"has no array {to.name!r}, which the log alters{did_you_mean(to.name, arrays)}", path)
        array = arrays[to.name]
        if entry.dtype is not None and entry.dtype != array.dtype:
            raise InputError(f"{to.name} is {array.dtype.name} here, and {entry.dtype.name} in the log", path)
        if array.dtype == bool:
            raise InputError(f"{to.name} is {array.text}; truth values are never altered", path)
        if to.name in found:
            raise InputError(f"{to.name}: two arrays of the log are this one here", path)
        index = _positions(entry, to, array, path)
        if len(np.unique(index)) < len(index):
            raise InputError(f"{to.name}: the log alters an element twice", path)
        masks = _of_width(entry, array, path) if entry.from_sign else entry.before ^ entry.after
        if (masks.astype(np.uint64) >> np.uint64(array.width - 1) > 1).any():
            raise InputError(f"{to.name} has {array.width} bits, and the log inverts a higher one", path)
        order = np.argsort(index)
        before = None if entry.from_sign else entry.before[order].astype(array.word)
        found[to.name] = Located(index[order], masks[order].astype(array.word), before)
    return found


def _positions(entry: Entry, to: Mapped, array: Described, path: pathlib.Path) -> np.ndarray:
    """int64 [n]: row-major positions in the array."""
    index = entry.places
    if entry.flat:
        if to.axes is not None:
            raise InputError(f"{to.name}: axes need coordinates, and the log has positions", path)
        if len(index) and index.max() >= array.size:
            raise InputError(f"{to.name}: the log alters element {index.max()}, there are {array.size}", path)
        return index[:, 0]
    if to.axes is not None:
        if len(to.axes) != index.shape[1]:
            raise InputError(f"{to.name}: {len(to.axes)} axes in the mapping, {index.shape[1]} in the log", path)
        index = index[:, list(to.axes)]
    shape = np.array(array.shape, np.int64)
    if index.shape[1] != len(shape) or (len(index) and (index >= shape).any()):
        raise InputError(f"{to.name} has the shape {list(array.shape)}, and the log an element beside it", path)
    return np.ravel_multi_index(tuple(index.T), array.shape) if len(shape) else np.zeros(len(index), np.int64)


def _of_width(entry: Entry, array: Described, path: pathlib.Path) -> np.ndarray:
    """uint64 [n]: masks whose bits were counted from the sign."""
    width = array.width
    masks = entry.after.tolist()
    if any(mask >> width for mask in masks):
        raise InputError(f"{entry.name} has {width} bits, and the log inverts a higher one", path)
    return np.array([int(f"{mask:0{width}b}"[::-1], 2) for mask in masks], np.uint64)
