"""An alteration and its log, written so that they agree whatever ends the command: a signal, a kill, a loss of power.

First the log is written, in the state `planned`; then the checkpoint, which is replaced or made at once; then the
log's state becomes `done`.  Where no log is asked for, a file beside the checkpoint is the log, and is removed at the
end.  A log that was left `planned` says, together with the checkpoint, whether the alteration has happened: so the same
command, given again, finishes or starts anew, and never alters twice.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..machine.errors import InputError
from ..machine.files import strict_json, sync
from ..machine.termination import unbroken
from .checkpoint import Altered, Changes, Checkpoint
from .formats import open_checkpoint
from .log import located, mark_done, read_document, read_log, write_log


def beside(path: pathlib.Path) -> pathlib.Path:
    """What takes the place of a log that was not asked for, until a checkpoint is altered."""
    return path.with_name(f".{path.name}.alteration")


def check_ended(path: pathlib.Path) -> None:
    """Raise InputError where an `alter` of a checkpoint without a log was killed, and nobody has given it again."""
    if beside(path.resolve()).exists():
        raise InputError("an `alter` of it has not ended; give its command again, which finishes it", path)


def check_log(checkpoint: Checkpoint, log: pathlib.Path) -> None:
    """Raise InputError where a checkpoint is not what a log says that it became."""
    for name, one in located(read_log(log), checkpoint.arrays, {}, checkpoint.path).items():
        if one.before is None:
            raise InputError("does not say what elements became; expected what `alter --log` writes", log)
        differ = np.flatnonzero(checkpoint.words(name, one.places) != one.before ^ one.masks)
        if len(differ):
            where = list(map(int, np.unravel_index(one.places[differ[0]], checkpoint.arrays[name].shape)))
            what = f"{len(differ)} of {len(one.places)} elements of {name}, such as {where}, are not what {log} says"
            raise InputError(f"{what} that they became", checkpoint.path)


class Journal(NamedTuple):
    """Where an alteration is written to, and where that is noted.

    Attributes:
      out: the altered checkpoint.
      log: asked for; None where none was.
      about: which alteration it is: what a log has besides the elements altered.
    """

    out: pathlib.Path
    log: pathlib.Path | None
    about: Mapping[str, Any]

    @property
    def beside(self) -> pathlib.Path:
        """What takes the place of a log that was not asked for, until the alteration is done."""
        return beside(self.out)

    @property
    def path(self) -> pathlib.Path:
        """The log, or what takes its place."""
        return self.log or self.beside

    def written(self, checkpoint: Checkpoint) -> dict[str, Altered] | None:
        """What the same command has altered already and said so; None where it has altered nothing.

        Args:
          checkpoint: what is to be altered.

        Raises:
          InputError: another command has written there, or it is not known whether it has.
        """
        if self.log is not None and self.beside.exists():
            raise InputError("is what an `alter` without --log has left; give that again, or remove it", self.beside)
        if not self.path.exists() and not self.path.is_symlink():
            if self.out.is_symlink() or (self.out.exists() and self.about["in_place"] is False):
                raise InputError("exists already; choose another with --out", self.out)
            return None
        document, entries = self._same_command()
        if not self.out.exists():
            if document["state"] == "done":
                raise InputError(f"--log exists already, and {self.out} does not; choose another file", self.path)
            return None
        now = open_checkpoint(self.out)
        # A log has the name of what was altered; another file may have this name by now.
        source = {} if self.about["in_place"] else located(entries, checkpoint.arrays, {}, checkpoint.path)
        altered, before, after = {}, True, True
        for name, one in located(entries, now.arrays, {}, self.out).items():
            assert one.before is not None  # only logs of ours are of this command
            words, changed = now.words(name, one.places), one.before ^ one.masks
            if name in source and not np.array_equal(checkpoint.words(name, source[name].places), one.before):
                raise InputError(f"exists already, altered from another {checkpoint.path.name}", self.out)
            before, after = before and np.array_equal(words, one.before), after and np.array_equal(words, changed)
            altered[name] = Altered(one.places, one.before, changed)
        if after:
            if document["state"] == "planned":
                sync(self.out.parent)
                mark_done(self.path)
            return altered
        if before and document["state"] == "planned" and self.about["in_place"]:
            return None
        what = "was done" if document["state"] == "done" else "was planned"
        raise InputError(f"the log exists already, and what it says {what} is not in {self.out}", self.path)

    def _same_command(self) -> tuple[dict[str, Any], Any]:
        """The log that is there, if it is of the same alteration."""
        refusal = "--log exists already; choose another file"
        try:
            document, entries = read_document(self.path)
        except InputError:
            raise InputError(refusal if self.log else "is no file of ours; remove it", self.path) from None
        here = json.loads(json.dumps(strict_json(self.about)))
        if "state" not in document or any(document.get(key) != value for key, value in here.items()):
            left = "is what another `alter` has left that did not end; give that again, or remove it"
            raise InputError(refusal if self.log else left, self.path)
        return document, entries

    def write(self, checkpoint: Checkpoint, altered: Changes) -> None:
        """Alter a checkpoint, and note it: both or neither, and whoever reads the log can tell.

        Raises:
          OSError: something cannot be written; nothing is altered.
        """
        with unbroken():
            write_log(self.path, checkpoint, altered, self.about, "planned")
            try:
                checkpoint.write(self.out, altered)
            except Exception:  # before anything was replaced
                self.path.unlink()
                raise
            sync(self.out.parent)
            if self.log is not None:
                mark_done(self.path)

    def forget(self) -> None:
        """Remove what took the place of a log: the alteration is done, and the person was told."""
        if self.log is None:
            self.beside.unlink(missing_ok=True)
