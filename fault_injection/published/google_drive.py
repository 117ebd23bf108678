"""Files of a public Google Drive folder: resumed where cut, and held against checksums recorded at their arrival."""

import hashlib
import importlib
import pathlib
import types
from fnmatch import fnmatch

from tqdm import tqdm

from ..machine.errors import InputError
from ..machine.files import only_writer, write_text
from ..machine.processes import say

SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
TIMEOUT = 30  # seconds without a byte
RETRIES = 3  # of a file after a cut, within one command


def fetch_folder(drive_id: str, folder: pathlib.Path, pattern: str = "*") -> None:
    """Bring a Drive folder's files whose path fits `pattern` to `folder`; those there already are checked.

    A cut download goes on where it stopped, in this call or a later one.  Drive publishes no
    checksums, so that of the first whole download is recorded in `SHA256SUMS`; a file that
    differs from it later is fetched again.

    Raises:
      InputError: gdown is missing, the network or Drive gives no file, none fits the pattern,
        or Drive holds another file than the one recorded.
      OSError: a file cannot be written, for lack of space for example.
    """
    gdown = extra("gdown")
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder / ".lock"):  # two of gdown's partial files of one name could not be told apart
        listed = _asked(
            "the folder's list of files",
            drive_id,
            lambda: gdown.download_folder(
                id=drive_id, output=str(folder), skip_download=True, quiet=True, timeout=TIMEOUT
            ),
        )
        files = [file for file in listed if fnmatch(file.path, pattern)]
        if not files:
            some = ", ".join(file.path for file in listed[:5]) or "no file at all"
            raise InputError(f"no file fits --only {pattern!r}; there are {len(listed)}: {some} …", _url(drive_id))
        for number, file in enumerate(files, 1):
            say(f"{number} of {len(files)}: {file.path}")
            _fetch(gdown, drive_id, file.id, folder, file.path)


def _fetch(gdown, drive_id, file_id, folder, name):
    path, sums = folder / name, read_sums(folder)
    if path.exists() and name in sums and sha256(path) != sums[name]:
        say(f"{path}: no longer what {SUMS} records; it is removed, and fetched again")
        path.unlink()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tqdm(desc=path.name, unit="B", unit_scale=True, delay=0.5, leave=False) as bar:

            def show(have, total):
                bar.total = total
                bar.update(have - bar.n)

            _asked(
                name,
                drive_id,
                lambda: gdown.download(
                    id=file_id,
                    output=str(path),
                    resume=True,
                    quiet=True,
                    progress=show,
                    timeout=TIMEOUT,
                    retries=RETRIES,
                ),
            )
    found = sha256(path)  # gdown renames a file when it is whole
    if sums.setdefault(name, found) != found:
        path.unlink()
        expected = f"expected {sums[name]} as recorded in {folder / SUMS}"
        raise InputError(f"Google Drive has another file now: SHA-256 {found}, {expected}; it is removed", path)
    write_text(folder / SUMS, "".join(f"{value}  {key}\n" for key, value in sorted(sums.items())))


def _asked(what, drive_id, call):
    """What `call` returns; gdown's and the network's errors as one line."""
    gdown, requests = extra("gdown"), extra("requests")
    later = (
        "The same command goes on where it stopped; or download the folder with a browser, and give its place with "
        f"--from: {_url(drive_id)}"
    )
    try:
        return call()
    except gdown.exceptions.FileURLRetrievalError as error:
        reason = "as a rule the quota of downloads of this file is used up, for up to a day, or it is public no more"
        raise InputError(f"Google Drive does not give {what}: {reason} ({_short(error)}). {later}") from None
    except gdown.exceptions.DownloadError as error:
        raise InputError(f"Google Drive does not give {what} ({_short(error)}). {later}") from None
    except requests.exceptions.RequestException as error:  # before OSError, of which it is one
        raise InputError(f"Google Drive cannot be reached for {what} ({_short(error)}). {later}") from None
    except (KeyError, AttributeError, AssertionError, TypeError, ValueError) as error:  # it reads web pages
        upgrade = "the pages may have changed: pip install --upgrade gdown"
        raise InputError(f"gdown does not understand what it got for {what} ({error!r}); {upgrade}. {later}") from None


def _short(error) -> str:
    cause = str(error).rpartition("(Caused by ")[2]  # what requests wraps up
    return " ".join(cause.split())[:200] or type(error).__name__


def _url(drive_id) -> str:
    return f"https://drive.google.com/drive/folders/{drive_id}"


def read_sums(folder: pathlib.Path) -> dict[str, str]:
    """The recorded checksums, by path within the folder; raises InputError where a line is something else."""
    file = folder / SUMS
    if not file.exists():
        return {}
    sums = {}
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        value, separator, name = line.partition("  ")
        if not separator or len(value) != 64:
            raise InputError("expected a SHA-256, two spaces and a path; delete it to record anew", file, number)
        sums[name] = value
    return sums


def check_sums(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Hold a file in `folder` against its recorded checksum, if there is one; raises InputError."""
    expected = read_sums(folder).get(path.relative_to(folder).as_posix())
    if expected is not None and (found := sha256(path)) != expected:
        raise InputError(f"SHA-256 {found}, expected {expected} as recorded in {folder / SUMS}", path)


def sha256(path: pathlib.Path) -> str:
    """Of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extra(module: str) -> types.ModuleType:
    """A module of the extra `upstream`; raises InputError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"published checkpoints need {module} ({error}): pip install -e '.[upstream]'") from None
