"""A file from the network: with progress, resumed where it was cut, checked before it appears."""

import hashlib
import http.client
import pathlib
import urllib.error
import urllib.request
from collections.abc import Iterator

from tqdm import tqdm

from ..machine.errors import InputError
from ..machine.files import named, only_writer

CHUNK = 2**20
TIMEOUT = 30  # seconds without a byte


class Unreachable(Exception):
    """The server cannot be reached, or does not give the file; the message says which and why."""


def download(url: str, path: pathlib.Path, md5: str, size: int) -> None:
    """Bring the file at `url` to `path`; there already, it is left alone.

    It grows as `.NAME.partial` beside `path`, which the next call goes on with after a cut.
    Of several processes one downloads, and the others wait for it.

    Args:
      md5: of the file, in hexadecimal digits, as published with it.
      size: of the file, in bytes.

    Raises:
      Unreachable: the network does not give it.
      InputError: what arrived is not the file expected; it is removed.
      OSError: it cannot be written, for lack of space for example.
    """
    partial = path.with_name(f".{path.name}.partial")
    with named(partial), only_writer(partial) as file:
        if path.exists():  # another process has brought it meanwhile
            partial.unlink()
            return
        have = file.seek(0, 2)
        if have > size:
            have = 0
        label = f"downloading {path.name}"
        try:
            with tqdm(total=size, initial=have, unit="B", unit_scale=True, desc=label, delay=0.5) as bar:
                while have < size:  # again after a cut
                    before = have
                    for start, chunk in _chunks(url, have):
                        file.seek(start)
                        file.write(chunk)
                        file.flush()
                        have = start + len(chunk)
                        bar.update(have - bar.n)
                    if have == before:  # the server has no more
                        break
        except Unreachable:
            if not have:
                partial.unlink()
            raise
        file.truncate(have)
        found = _md5(file)
        if found != md5:
            partial.unlink()
            raise InputError(f"{partial}: MD5 {found} of what was downloaded, expected {md5}; it is removed", url)
        partial.replace(path)


def _chunks(url: str, start: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file from `start` on, each chunk with its place, until the end or a cut.

    A server that does not know ranges sends the file from its beginning.

    Raises:
      Unreachable: it ended before one byte came, unless there are no more.
    """
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    began = False
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            at = start if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
            while chunk := response.read(CHUNK):
                yield at, chunk
                began = True
                at += len(chunk)
    except (OSError, http.client.HTTPException) as error:
        code = getattr(error, "code", None)  # of an answer without the file
        if not began and code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            status = f"status {code}, " if code else ""
            reason = getattr(error, "reason", error) or type(error).__name__
            raise Unreachable(f"{url}: {status}{reason}") from None


def _md5(file) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "md5").hexdigest()
