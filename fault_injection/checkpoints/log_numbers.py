"""The numbers of a log of a training, as a checkpoint has arrays: each tensor is a vector of float32.

So what alters checkpoints alters logs.  A copy is the log's own text with one number, or a few, written anew.
"""

import functools
import json
import pathlib
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ..logs import json_lines, trainer_state
from ..logs.families import read_log
from ..logs.log import Log
from ..machine.errors import InputError
from ..machine.files import write_atomically
from .checkpoint import PIECE, Changes, Checkpoint, Described, Raw

TOKEN = re.compile(r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE)
COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+(?:e[+-]?[0-9]+)?", re.IGNORECASE)  # 2,31, where the point is a comma
JSON = (json_lines.NAME, trainer_state.NAME)
TRIES = 20  # places of a number in the text that are looked at


class Token(NamedTuple):
    """A number in the text of a log's file, from `start` to `end`, characters; `comma`: whether its point is one."""

    file: pathlib.Path
    start: int
    end: int
    comma: bool


class LogNumbers(Checkpoint):
    """A log that was read; see `Checkpoint`.  Tensors whose numbers are not found in its text are among `raw`.

    Args:
      path: a file or a folder of any family of text.

    Raises:
      InputError: it is no log, or has no text.
    """

    format = "log"

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.log = read_log(path)
        self._rows = {name: np.flatnonzero(self.log.tensor == i) for i, name in enumerate(self.log.tensors)}
        found, left = {}, {}
        for name, rows in self._rows.items():
            whole = all(_key(value) in self._tokens for value in self.log.values[rows].tolist())
            described = Described((len(rows),), np.dtype(np.float32))
            if whole:
                found[name] = described
            else:
                left[name] = Raw(f"{described.text} written in a form that is not found in the text")
        self.arrays: Mapping[str, Described] = found
        self.raw: Mapping[str, Raw] = left

    @functools.cached_property
    def _texts(self) -> dict[pathlib.Path, tuple[str, str]]:
        """The text of each file, and its encoding."""
        files = [self.path] if self.path.is_file() else sorted(one for one in self.path.rglob("*") if one.is_file())
        found = {}
        for file in files:
            raw = file.read_bytes()
            encoding = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
            try:
                found[file] = raw.decode(encoding), encoding
            except UnicodeDecodeError:
                if self.path.is_file():
                    raise InputError("is no text; only logs that are text can be altered", file) from None
        return found

    @functools.cached_property
    def _tokens(self) -> dict[float | str, list[Token]]:
        """The numbers of the text by their value."""
        found: dict[float | str, list[Token]] = {}
        for file, (text, _) in self._texts.items():
            for pattern in (TOKEN, COMMA):
                for match in pattern.finditer(text):
                    token = Token(file, *match.span(), comma=pattern is COMMA)
                    found.setdefault(_key(float(match[0].replace(",", "."))), []).append(token)
        return found

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return self.log.values[self._rows[name][index]].astype(np.float32).view(np.uint32)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        count, step = len(self._rows[name]), PIECE // 4
        for start in range(0, count, step):
            yield self.words(name, np.arange(start, min(start + step, count)))

    def content(self, name: str) -> Iterator[bytes]:
        yield self.log.values[self._rows[name]].tobytes()

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        """Write a copy of the log with some numbers replaced.

        Raises:
          InputError: no place in the text is the number's alone.
          OSError: it cannot be written.
        """
        if self.path.is_dir():
            shutil.copytree(self.path, out)
        else:
            _write(out, self.path.read_bytes())
        done: dict[int, float] = {}
        edits: list[tuple[Token, str]] = []
        for name, altered in changes.items():
            for row, word in zip(self._rows[name][altered.places].tolist(), altered.after, strict=True):
                value = float(word.view(np.float32))
                done[row] = value
                for token in self._nearest(row, name):
                    new = (token, _written(value, token, self.log.family in JSON))
                    self._edit(out, [*edits, new])
                    if self._reads(out, done):
                        edits.append(new)
                        break
                else:
                    step, shown = self.log.steps[row], self.log.values[row]
                    raise InputError(f"step {step}: no place in the text is that of {shown:g} of {name}", self.path)

    def _nearest(self, row: int, name: str) -> list[Token]:
        """Places where a row's number may stand, the likeliest first."""
        starts, line = self._lines, int(self.log.lines[row])

        def distance(token: Token) -> tuple[bool, float]:
            other = self.path.is_dir() and not token.file.as_posix().endswith(name)
            at = starts[token.file][min(line, len(starts[token.file])) - 1] if line else 0
            expected = at if line else len(self._texts[token.file][0]) * row / len(self.log.steps)
            return other, abs(token.start - expected)

        return sorted(self._tokens[_key(float(self.log.values[row]))], key=distance)[:TRIES]

    @functools.cached_property
    def _lines(self) -> dict[pathlib.Path, list[int]]:
        """Where each line of each text begins."""
        ends = re.compile(r"\r\n|\r|\n")
        return {file: [0, *(m.end() for m in ends.finditer(text))] for file, (text, _) in self._texts.items()}

    def _edit(self, out: pathlib.Path, edits: list[tuple[Token, str]]) -> None:
        """Write the files of the copy that have edits."""
        for file in {token.file for token, _ in edits}:
            text, encoding = self._texts[file]
            for token, new in sorted(edits, reverse=True):
                if token.file == file:
                    text = text[: token.start] + new + text[token.end :]
            target = out / file.relative_to(self.path) if self.path.is_dir() else out
            _write(target, text.encode(encoding))

    def _reads(self, out: pathlib.Path, done: Mapping[int, float]) -> bool:
        """Whether a copy is read as the log in which these rows alone have other values."""
        expected = self.log.values.copy()
        expected[list(done)] = list(done.values())
        try:
            found = read_log(out)
        except InputError:
            return False
        return _alike(found, self.log) and _same_numbers(found.values, expected)


def _write(path: pathlib.Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def _alike(one: Log, other: Log) -> bool:
    """Whether two logs have the same rows, whatever their values."""
    same = (one.tensors, one.last) == (other.tensors, other.last) and (one.times is None) == (other.times is None)
    arrays = [(one.steps, other.steps), (one.tensor, other.tensor)]
    if one.times is not None and other.times is not None:
        arrays.append((one.times, other.times))
    return same and all(np.array_equal(a, b) for a, b in arrays)


def _same_numbers(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether all bits are the same; of a NaN a text has no bits."""
    same = (one.view(np.int64) == other.view(np.int64)) | (np.isnan(one) & np.isnan(other))
    return bool(same.all())


def _key(value: float) -> float | str:
    """A number as the key of a mapping: all NaNs are one, and a zero with a sign is another than one without."""
    if value != value:
        return "nan"
    return value if value else str(value)


def _written(value: float, token: Token, json_text: bool) -> str:
    """A number as the text has numbers."""
    if token.comma:
        return repr(value).replace(".", ",")
    return json.dumps(value) if json_text else repr(value)
