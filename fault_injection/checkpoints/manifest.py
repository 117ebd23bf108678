"""Digests of a checkpoint's arrays, kept beside it: they say later whether any bit has changed, and in which array.

A digest is of an array's words, little-endian and in row-major order: the same arrays have the same digests in every
format.
"""

import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..machine.errors import InputError
from ..machine.files import read_bounded, write_json
from .checkpoint import Checkpoint

VERSION = 1
LARGEST = 1 << 30  # bytes of a manifest
Entry = tuple[str, str | None]  # type and shape, and the digest; None where the bits say nothing


class Verified(NamedTuple):
    """How a checkpoint compares with a manifest.

    Attributes:
      same: how many of its arrays have the digest, what is no array included.
      changed: names of those whose bits differ.
      unlike: what has another type or shape, in words.
      missing: what the manifest has and the checkpoint has not.
      new: what the checkpoint has and the manifest has not.
      not_compared: what no digest is kept of, such as Python objects.
    """

    same: int
    changed: tuple[str, ...]
    unlike: tuple[str, ...]
    missing: tuple[str, ...]
    new: tuple[str, ...]
    not_compared: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing differs of what was compared."""
        return not (self.changed or self.unlike or self.missing or self.new)


def digests(checkpoint: Checkpoint) -> dict[str, Entry]:
    """Type, shape and digest of all that a checkpoint has, by name; one piece is in memory at a time.

    Raises:
      InputError: it cannot be read.
    """
    found: dict[str, Entry] = {}
    for name, array in checkpoint.arrays.items():
        little = array.word.newbyteorder("<")
        found[name] = array.text, _sha256(piece.astype(little).tobytes() for piece in checkpoint.pieces(name))
    for name, raw in checkpoint.raw.items():
        found[name] = raw.text, _sha256(checkpoint.content(name)) if raw.compared else None
    return found


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def write_manifest(path: pathlib.Path, checkpoint: Checkpoint) -> dict[str, Entry]:
    """Write the digests of a checkpoint as JSON; a file that is there is replaced.  Returns them.

    Raises:
      InputError: the checkpoint cannot be read.
      OSError: the manifest cannot be written.
    """
    entries = digests(checkpoint)
    arrays = {name: {"is": text, "sha256": digest} for name, (text, digest) in entries.items()}
    known = {"manifest": VERSION, "checkpoint": checkpoint.path.name, "format": checkpoint.format, "arrays": arrays}
    write_json(path, {**known, "sha256": _of(known)})
    return entries


def _of(known: Mapping[str, Any]) -> str:
    """The digest of a manifest itself: one that is damaged must not accuse a checkpoint."""
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode(errors="replace")).hexdigest()


def read_manifest(path: pathlib.Path) -> dict[str, Entry]:
    """The entries of a manifest.

    Raises:
      InputError: it is damaged, or no manifest.
    """
    try:
        known = json.loads(read_bounded(path, LARGEST).decode())
        said = known.pop("sha256")
        if known["manifest"] != VERSION:
            raise InputError(f"is a manifest of version {str(known['manifest'])[:20]}; expected {VERSION}", path)
        entries = {name: (str(one["is"]), one["sha256"]) for name, one in known["arrays"].items()}
        sound = said == _of(known)
    except OSError as error:
        raise InputError(error.strerror or str(error), path) from None
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise InputError("is no manifest; expected what `fault-injection manifest` writes", path) from None
    if not sound:
        raise InputError("is damaged: it has not its own digest; take another copy of the manifest", path)
    return entries


def verify(checkpoint: Checkpoint, expected: Mapping[str, Entry]) -> Verified:
    """Compare a checkpoint with the entries of a manifest, whatever the formats.

    Raises:
      InputError: the checkpoint cannot be read.
    """
    found = digests(checkpoint)
    common = [name for name in expected if name in found]
    unlike = [name for name in common if expected[name][0] != found[name][0]]
    alike = [name for name in common if name not in set(unlike)]
    compared = [name for name in alike if None not in (expected[name][1], found[name][1])]
    changed = tuple(name for name in compared if expected[name][1] != found[name][1])
    return Verified(
        len(compared) - len(changed),
        changed,
        tuple(f"{name}: {expected[name][0]} in the manifest, {found[name][0]} here" for name in unlike),
        tuple(name for name in expected if name not in found),
        tuple(name for name in found if name not in expected),
        tuple(name for name in alike if name not in set(compared)),
    )
