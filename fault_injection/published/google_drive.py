"""Files of a public Google Drive folder: resumed where they were cut, and compared with recorded checksums."""

import hashlib
import pathlib
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

from ..machine.errors import InputError
from ..machine.extras import import_extra
from ..machine.files import only_writer, write_text
from ..machine.processes import say
from ..machine.progress_bar import progress_bar

NEEDED = ("upstream", "published checkpoints")
SUMS = "SHA256SUMS"  # in the format of `sha256sum --check`
DRIVE_TIMEOUT = 30  # seconds without a byte
RETRIES = 3  # of a file after a cut, within one command


def fetch_folder(drive_id: str, folder: pathlib.Path, pattern: str = "*") -> None:
    """Download the files of a Drive folder whose paths match `pattern`; check those that are there already.

    A cut download goes on where it stopped, in this call or a later one.  Drive publishes no
    checksums, so the checksum of the first whole download is recorded in `SHA256SUMS`.  A file
    that later differs from its checksum is fetched again.

    Args:
      drive_id: of the Drive folder.
      folder: on this machine; it is made where it is missing.
      pattern: as of a shell, for paths within the folder.

    Raises:
      InputError: gdown is missing, the network or Drive gives no file, no file matches the
        pattern, or Drive holds another file than the recorded one.
      OSError: a file cannot be written, for example for lack of space.
    """
    gdown = import_extra("gdown", *NEEDED)
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder / ".lock"):  # two of gdown's partial files of one name could not be told apart
        listed = _asked(
            "the folder's list of files",
            drive_id,
            lambda: gdown.download_folder(
                id=drive_id, output=str(folder), skip_download=True, quiet=True, timeout=DRIVE_TIMEOUT
            ),
        )
        files = [file for file in listed if fnmatch(file.path, pattern)]
        if not files:
            some = ", ".join(file.path for file in listed[:5]) or "no file at all"
            raise InputError(f"no file matches --only {pattern!r}; there are {len(listed)}: {some} …", _url(drive_id))
        for number, file in enumerate(files, 1):
            say(f"{number} of {len(files)}: {file.path}")
            _fetch(drive_id, file.id, folder, file.path)


def _fetch(drive_id: str, file_id: str, folder: pathlib.Path, name: str) -> None:
    """Download one file, unless it is there, and compare it with its checksum or record that."""
    path, sums = folder / name, read_sums(folder)
    if path.exists() and name in sums and sha256(path) != sums[name]:
        say(f"{path}: the file is no longer the one that {SUMS} records; it is removed and fetched again")
        path.unlink()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with progress_bar(desc=path.name, unit="B", unit_scale=True, delay=0.5, leave=False) as bar:

            def show(have: int, total: int | None) -> None:
                bar.total = total
                bar.update(have - bar.n)

            gdown = import_extra("gdown", *NEEDED)
            options = {"resume": True, "quiet": True, "progress": show, "timeout": DRIVE_TIMEOUT, "retries": RETRIES}
            _asked(name, drive_id, lambda: gdown.download(id=file_id, output=str(path), **options))
    found = sha256(path)  # gdown has renamed the file, so it is whole
    if sums.setdefault(name, found) != found:
        path.unlink()
        expected = f"expected {sums[name]} as recorded in {folder / SUMS}"
        raise InputError(f"Google Drive has another file now: SHA-256 {found}, {expected}; it is removed", path)
    write_text(folder / SUMS, "".join(f"{value}  {key}\n" for key, value in sorted(sums.items())))


def _asked(what: str, drive_id: str, call: Callable[[], Any]) -> Any:
    """What `call` returns; errors of gdown and of the network become one line, an InputError.

    Args:
      what: was asked for, in words.
    """
    gdown, requests = import_extra("gdown", *NEEDED), import_extra("requests", *NEEDED)
    later = (
        "The same command goes on where it stopped; or download the folder with a browser and name its place with "
        f"--from: {_url(drive_id)}"
    )
    try:
        return call()
    except gdown.exceptions.FileURLRetrievalError as error:
        reason = "probably its quota of downloads is used up, for up to a day, or it is no longer public"
        raise InputError(f"Google Drive does not give {what}: {reason} ({_short(error)}). {later}") from None
    except gdown.exceptions.DownloadError as error:
        raise InputError(f"Google Drive does not give {what} ({_short(error)}). {later}") from None
    except requests.exceptions.RequestException as error:  # it is an OSError, so it goes first
        raise InputError(f"Google Drive cannot be reached for {what} ({_short(error)}). {later}") from None
    except (KeyError, AttributeError, AssertionError, TypeError, ValueError) as error:  # gdown reads web pages
        upgrade = "the pages may have changed: pip install --upgrade gdown"
        raise InputError(f"gdown does not understand the answer for {what} ({error!r}); {upgrade}. {later}") from None


def _short(error: Exception) -> str:
    """An error in at most 200 characters, without the layers that requests puts around it."""
    cause = str(error).rpartition("(Caused by ")[2]
    return " ".join(cause.split())[:200] or type(error).__name__


def _url(drive_id: str) -> str:
    return f"https://drive.google.com/drive/folders/{drive_id}"


def read_sums(folder: pathlib.Path) -> dict[str, str]:
    """The recorded checksums, by path within the folder; raises InputError where a line is not one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_sums(pathlib.Path(folder))
    {}
    """
    file = folder / SUMS
    if not file.exists():
        return {}
    sums = {}
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        value, separator, name = line.partition("  ")
        if not separator or len(value) != 64:
            raise InputError("expected a SHA-256, two spaces and a path; delete the file to record anew", file, number)
        sums[name] = value
    return sums


def check_sums(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Compare a file in `folder` with its recorded checksum, if there is one; raises InputError where they differ."""
    expected = read_sums(folder).get(path.relative_to(folder).as_posix())
    if expected is not None and (found := sha256(path)) != expected:
        raise InputError(f"SHA-256 {found}, expected {expected} as recorded in {folder / SUMS}", path)


def sha256(path: pathlib.Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
