"""A download appears whole under its name or not at all, goes on where it stopped, and says what went wrong."""

import hashlib
import http.server
import resource
import threading

import numpy as np
import pytest

from fault_injection.data import download
from fault_injection.machine.errors import InputError

CONTENT = np.random.default_rng(1).integers(0, 256, 3 * download.CHUNK + 12_345, np.uint8).tobytes()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT at /file on 127.0.0.1.

    Attributes:
      ranges: whether it knows Range.
      cuts: after how many bytes each of the next answers is cut.
      asked: the Range of each request, or None.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges, self.cuts, self.asked = True, [], []
        self.url = f"http://127.0.0.1:{self.server_port}/file"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if self.path != "/file" or start >= len(CONTENT):
            self.send_error(404 if self.path != "/file" else 416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        end = start + self.server.cuts.pop(0) if self.server.cuts else len(CONTENT)
        self.wfile.write(CONTENT[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetch(server, path, md5=MD5, more=0, url=None):
    download.download(url or server.url, path, md5, len(CONTENT) + more)


def test_a_download_appears_whole_and_is_not_repeated(server, tmp_path):
    path = tmp_path / "data" / "file"
    fetch(server, path)
    fetch(server, path)
    assert path.read_bytes() == CONTENT and server.asked == [None]
    assert list(path.parent.iterdir()) == [path]


def test_a_connection_cut_in_the_middle_is_resumed(server, tmp_path):
    server.cuts = [1_500_000, 700_000]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1500000-", "bytes=2200000-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_later_run_goes_on_where_one_stopped(server, tmp_path, ranges):
    server.ranges = ranges
    (tmp_path / ".file.partial").write_bytes(CONTENT[:1000])
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_wrong_checksum_is_named_and_the_partial_file_removed(server, tmp_path):
    for partial in (b"", b"wrong" * 100, bytes(len(CONTENT) + 7)):
        (tmp_path / ".file.partial").write_bytes(partial)
        if len(partial) == 500:
            with pytest.raises(InputError, match=rf"\.file\.partial has MD5 \w+, expected {MD5}; it is removed"):
                fetch(server, tmp_path / "file")
        else:
            with pytest.raises(InputError, match="expected 0123; it is removed"):
                fetch(server, tmp_path / "file", md5="0123")
        assert not list(tmp_path.iterdir())
    fetch(server, tmp_path / "file")


def test_a_file_shorter_than_expected_is_named(server, tmp_path):
    with pytest.raises(InputError, match="it is removed"):
        fetch(server, tmp_path / "file", md5="0123", more=1)
    assert not list(tmp_path.iterdir())


def test_an_absent_file_and_an_unreachable_host_are_named(server, tmp_path):
    with pytest.raises(download.Unreachable, match=r"/other cannot be downloaded \(status 404, Not Found\)"):
        fetch(server, tmp_path / "file", url=server.url.replace("/file", "/other"))
    with pytest.raises(download.Unreachable, match="Connection refused"):
        fetch(server, tmp_path / "file", url="http://127.0.0.1:9/file")
    assert not list(tmp_path.iterdir())


def test_two_downloads_at_once_are_one(server, tmp_path):
    threads = [threading.Thread(target=fetch, args=(server, tmp_path / "file")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None] and list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_without_space_the_partial_file_stays_and_is_gone_on_with(server, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        with pytest.raises(OSError, match=r"\.file\.partial"):
            fetch(server, tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "file").exists()
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
