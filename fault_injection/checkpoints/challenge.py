"""A mutation test of a safeguard: does a command notice a checkpoint, or a log, in which one bit was flipped?

An attempt alters a copy as `alter --count 1 --seed S` does, with a seed of its own, and runs the command on it.  What
came of it is written to a file before the next attempt begins, so that a challenge that was stopped goes on.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..machine.errors import InputError
from ..machine.files import only_writer
from .alteration import Selection, draw_alteration
from .checkpoint import Altered, Changes, Checkpoint
from .manifest import digests

STORE, OUTPUT, COPY, PLACE = "attempts.jsonl", "output.txt", "copy", "{}"
LARGEST_OUTPUT = 1 << 24  # bytes of a command's output, the last ones, in which a pattern is looked for
VERDICTS = NOTICED, UNNOTICED, TIMED_OUT = "noticed", "unnoticed", "timed out"


class Answer(NamedTuple):
    """What a command did.

    Attributes:
      verdict: one of `VERDICTS`.
      code: its exit code, negative for a signal; None where its time was over.
      seconds: how long it took.
      why: what noticed: the exit code, or the line that fits the pattern.
    """

    verdict: str
    code: int | None
    seconds: float
    why: str


class Attempt(NamedTuple):
    """One alteration, and the command's answer.

    Attributes:
      number: from 0; the alteration is drawn with the challenge's seed plus it.
      array, element, bit: what was flipped; bit 0 is the least significant.
      before, after: the element's words, in hexadecimal.
    """

    number: int
    array: str
    element: list[int]
    bit: int
    before: str
    after: str
    verdict: str
    code: int | None
    seconds: float
    why: str


@dataclasses.dataclass(frozen=True)
class Challenge:
    """What is asked.

    Attributes:
      command: with `{}` where the altered checkpoint's path belongs; it is split as a shell does, but no shell runs it.
      wanted: what is drawn in each attempt; its count is 1, and the number of the attempt is added to its seed.
      noticed: a pattern that a line of the output fits where the command has noticed; None for the exit code alone.
      seconds: the time limit of a run.
    """

    command: str
    wanted: Selection
    noticed: str | None = None
    seconds: float = 600.0

    def words(self, path: pathlib.Path) -> list[str]:
        """The command's words for an altered checkpoint.

        Raises:
          InputError: it has no `{}`, or an open quotation.
        """
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise InputError(f"--command {self.command[:60]!r}: {error}") from None
        if not any(PLACE in word for word in words):
            raise InputError(f"--command {self.command[:60]!r}; expected {PLACE} where the altered file's path belongs")
        return [word.replace(PLACE, str(path)) for word in words]


def attempts(checkpoint: Checkpoint, asked: Challenge, out: pathlib.Path, count: int) -> Iterator[Attempt]:
    """The attempts of a challenge: those that are in `out` already, then new ones, up to `count`.

    First the command runs on a copy that is not altered.

    Args:
      out: a folder: the attempts, the command's last output, and a folder of its own for the altered copy.  Nothing
        else in it is touched.

    Raises:
      InputError: the command cannot be run, or notices the copy that is not altered; the folder has another
        challenge's attempts, or something else where these would be; or another process is at work there.
      OSError: something cannot be written.
    """
    given, store, copies = checkpoint.path.resolve(), out / STORE, out.resolve() / COPY
    if out.resolve().is_relative_to(given) or given.is_relative_to(copies):
        raise InputError("--out is where the checkpoint is; choose another folder", out)
    begun = store.is_file() and store.stat().st_size
    for there in (copies, out / OUTPUT):
        if not begun and os.path.lexists(there):
            raise InputError("is there, and not of a challenge; choose another --out", there)
    path = copies / given.name
    words = asked.words(path)
    with only_writer(store, refuse="another challenge is at work there") as file:
        about = _about(checkpoint, asked)
        done = _read(file, about, store)
        if len(done) < count and not done:
            file.seek(0)
            file.truncate()
            _append(file, about)  # first: what it says is what the copy belongs to
            _check(checkpoint, asked, words, path)
        yield from done[:count]
        for number in range(len(done), count):
            one = dataclasses.replace(asked.wanted, count=1, seed=asked.wanted.seed + number)
            altered = draw_alteration(checkpoint, one)
            ((name, change),) = altered.items()
            _place(checkpoint, path, altered)
            answer = _answer(asked, words, path)
            found = Attempt(number, name, *_flip(checkpoint, name, change), *answer)
            _append(file, found._asdict())
            yield found
        _clear(path)
        with contextlib.suppress(OSError):  # the command has left something beside it, or nothing was copied
            copies.rmdir()


def _flip(checkpoint: Checkpoint, name: str, change: Altered) -> tuple[list[int], int, str, str]:
    """Where an array was altered, which bit, and the words before and after."""
    array, before, after = checkpoint.arrays[name], int(change.before[0]), int(change.after[0])
    element = [*map(int, np.unravel_index(change.places[0], array.shape))] if array.shape else []
    digits = 2 * array.dtype.itemsize
    return element, (before ^ after).bit_length() - 1, f"{before:0{digits}x}", f"{after:0{digits}x}"


def _about(checkpoint: Checkpoint, asked: Challenge) -> dict[str, Any]:
    """What a folder of attempts belongs to: the checkpoint by its content."""
    content = hashlib.sha256(json.dumps(digests(checkpoint)).encode(errors="replace")).hexdigest()
    return json.loads(json.dumps({"checkpoint": content, **dataclasses.asdict(asked)}))


def _read(file: BinaryIO, about: dict[str, Any], path: pathlib.Path) -> list[Attempt]:
    """The attempts of a file; a last line that a kill cut off is taken away."""
    file.seek(0)
    lines = file.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        file.truncate(sum(map(len, lines[:-1])))
        lines.pop()
    file.seek(0, os.SEEK_END)
    if not lines:
        return []
    try:
        head, *rest = [json.loads(line) for line in lines]
        done = [Attempt(**one) for one in rest]
        sound = [one.number for one in done] == list(range(len(done))) and head.keys() == about.keys()
        sound = sound and all(one.verdict in VERDICTS and isinstance(one.array, str) for one in done)
        sound = sound and all(type(one.bit) is int for one in done)
    except (ValueError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise InputError("is damaged; remove it, or choose another --out", path)
    if not done:  # the command was not content with what is sound, and is another one now
        return []
    differ = [name for name in about if head.get(name) != about[name]]
    if differ:
        raise InputError(f"has attempts of another challenge ({', '.join(differ)} differ); choose another --out", path)
    return done


def _append(file: BinaryIO, value: dict[str, Any]) -> None:
    file.write(json.dumps(value).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _check(checkpoint: Checkpoint, asked: Challenge, words: list[str], path: pathlib.Path) -> None:
    """Refuse a command that is not content with what is sound."""
    _place(checkpoint, path, {})
    answer = _answer(asked, words, path)
    if answer.verdict != UNNOTICED:
        what = f"{answer.verdict}: {answer.why}" if answer.why else answer.verdict
        remedy = f"see {path.parent.parent / OUTPUT}"
        raise InputError(f"--command: the copy that is not altered is {what}; expected exit code 0; {remedy}")


def _place(checkpoint: Checkpoint, path: pathlib.Path, altered: Changes) -> None:
    """Write a copy where the one before it was, whatever the command made of that."""
    _clear(path)
    checkpoint.write(path, altered)


def _clear(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _answer(asked: Challenge, words: list[str], path: pathlib.Path) -> Answer:
    """Run the command; what it starts is ended with it when its time is over."""
    output, begin = path.parent.parent / OUTPUT, time.monotonic()
    with output.open("wb") as file:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise InputError(f"--command: {words[0]!r} cannot be run: {error}") from None
        try:
            code = process.wait(asked.seconds)
        except subprocess.TimeoutExpired:
            return Answer(TIMED_OUT, None, round(time.monotonic() - begin, 3), f"after {asked.seconds:g} s")
        finally:
            _end(process)
    seconds = round(time.monotonic() - begin, 3)
    if code:
        return Answer(NOTICED, code, seconds, f"exit code {code}")
    line = _fitting(asked.noticed, output) if asked.noticed is not None else None
    return Answer(UNNOTICED if line is None else NOTICED, code, seconds, "" if line is None else line)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started: it is the leader of a group of processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _fitting(pattern: str, output: pathlib.Path) -> str | None:
    """The first line of the output's end that a pattern fits, at most 200 characters of it."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - LARGEST_OUTPUT))
        text = file.read().decode(errors="replace")
    return next((line.strip()[:200] for line in text.splitlines() if re.search(pattern, line)), None)
