"""A file from the network: shown while it arrives, resumed where it was cut, checked before it appears."""

import hashlib
import http.client
import pathlib
import urllib.error
import urllib.request
from collections.abc import Iterator

from ..machine.errors import InputError
from ..machine.files import named, only_writer
from ..machine.progress_bar import progress_bar

CHUNK = 2**20
TIMEOUT = 30  # seconds without a byte


class Unreachable(Exception):
    """The server cannot be reached, or does not give the file."""


def download(url: str, path: pathlib.Path, md5: str, size: int) -> None:
    """Download the file at `url` to `path`, unless it is there already.

    The file grows as `.NAME.partial` beside `path`.  After a cut, the next call goes on with
    it.  Where several processes ask for one file, one downloads and the others wait for it.

    Args:
      url: of the file.
      path: where the file appears once it is whole and checked.
      md5: published checksum of the file, in hexadecimal digits.
      size: of the file, in bytes.

    Raises:
      Unreachable: the network does not give the file.
      InputError: another file arrived; it is removed.
      OSError: the file cannot be written, for example for lack of space.
    """
    partial = path.with_name(f".{path.name}.partial")
    with named(partial), only_writer(partial) as file:
        if path.exists():  # another process has downloaded it meanwhile
            partial.unlink()
            return
        have = file.seek(0, 2)
        if have > size:
            have = 0
        label = f"downloading {path.name}"
        try:
            with progress_bar(total=size, initial=have, unit="B", unit_scale=True, desc=label, delay=0.5) as bar:
                while have < size:  # once more after each cut
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
        file.seek(0)
        found = hashlib.file_digest(file, "md5").hexdigest()
        if found != md5:
            partial.unlink()
            raise InputError(f"the file downloaded to {partial} has MD5 {found}, expected {md5}; it is removed", url)
        partial.replace(path)


def _chunks(url: str, start: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file from `start` on, until the end or a cut.

    Yields:
      Each chunk, after its place in the file.  A server that does not know ranges sends the
      file from its beginning.

    Raises:
      Unreachable: no byte came, although there should be more.
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
            raise Unreachable(f"{url} cannot be downloaded ({status}{reason})") from None
