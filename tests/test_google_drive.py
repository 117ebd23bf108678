"""Files of a Google Drive folder arrive with checksums, go on where they stopped, and each error is one line."""

import os
import re
import subprocess
import sys
import types

import pytest

from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.published import checkpoints as upstream
from fault_injection.published import google_drive as drive


class Drive:
    """gdown's public interface, over files at hand.

    Attributes:
      files: content by path.
      cut: after how many bytes the next download breaks off.
      error: raised by the next call.
      asked: what was downloaded, with the bytes that were there already.
    """

    def __init__(self, files):
        self.files, self.cut, self.error, self.asked = files, None, None, []
        self.exceptions = types.SimpleNamespace(
            DownloadError=DownloadError, FileURLRetrievalError=FileURLRetrievalError
        )

    def download_folder(self, *, id, output, skip_download, quiet, timeout):
        self._fail()
        assert skip_download and id == upstream.DRIVE["examples"]
        return [types.SimpleNamespace(id=path, path=path, local_path=f"{output}/{path}") for path in self.files]

    def download(self, *, id, output, resume, quiet, progress, timeout, retries):
        self._fail()
        part = f"{output}.part"
        have = os.path.getsize(part) if resume and os.path.exists(part) else 0  # noqa: PTH202, PTH110
        self.asked.append((id, have))
        content = self.files[id]
        with open(part, "ab") as file:  # noqa: PTH123
            file.write(content[have : self.cut])
        progress(len(content), len(content))
        if self.cut is not None:
            self.cut = None
            raise ConnectionCut("HTTPSConnectionPool(host='drive.google.com'): Read timed out.")
        os.rename(part, output)  # noqa: PTH104
        return output

    def _fail(self):
        if self.error is not None:
            raise self.error


class DownloadError(Exception):
    pass


class FileURLRetrievalError(DownloadError):
    pass


class ConnectionCut(OSError):  # as requests.exceptions.RequestException is
    pass


CONTENT = {"a/one.index": b"index", "a/one.data-00000-of-00001": b"data" * 100, "notes.txt": b"notes"}


@pytest.fixture
def gdown(monkeypatch):
    fake = Drive(dict(CONTENT))
    monkeypatch.setitem(sys.modules, "gdown", fake)
    requests = types.SimpleNamespace(exceptions=types.SimpleNamespace(RequestException=ConnectionCut))
    monkeypatch.setitem(sys.modules, "requests", requests)
    return fake


def download(folder, pattern="*"):
    drive.fetch_folder(upstream.DRIVE["examples"], folder, pattern)


def test_files_arrive_with_checksums_and_are_not_fetched_again(gdown, tmp_path):
    download(tmp_path, "a/*")
    download(tmp_path, "a/*")
    assert [name for name, _ in gdown.asked] == ["a/one.index", "a/one.data-00000-of-00001"]
    assert all((tmp_path / name).read_bytes() == CONTENT[name] for name, _ in gdown.asked)
    assert not (tmp_path / "notes.txt").exists()
    done = subprocess.run(["sha256sum", "--check", drive.SUMS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("OK") == 2


def test_a_cut_download_goes_on_where_it_stopped(gdown, tmp_path):
    gdown.cut = 3
    with pytest.raises(InputError, match=r"cannot be reached for a/one\.index \(.*timed out.*same command goes on"):
        download(tmp_path)
    download(tmp_path)
    assert gdown.asked[:2] == [("a/one.index", 0), ("a/one.index", 3)]
    assert (tmp_path / "a" / "one.index").read_bytes() == CONTENT["a/one.index"]


def test_a_file_damaged_since_is_fetched_again_and_another_one_on_drive_refused(gdown, tmp_path, capsys):
    download(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"nodes")
    download(tmp_path)
    assert (tmp_path / "notes.txt").read_bytes() == b"notes"
    assert re.search(r"notes\.txt: the file is no longer the one that SHA256SUMS records", capsys.readouterr().err)
    (tmp_path / "notes.txt").unlink()
    gdown.files["notes.txt"] = b"other"
    with pytest.raises(InputError, match=r"notes\.txt: Google Drive has another file now: .*recorded in"):
        download(tmp_path)
    assert not (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize(
    "error, message",
    [
        (
            FileURLRetrievalError("Too many users\nhave viewed"),
            "does not give .*quota.*Too many users have viewed.*--from",
        ),
        (DownloadError("Failed to retrieve (status code 404)"), "does not give .*status code 404.*--from"),
        (KeyError("content-type"), "gdown does not understand .*KeyError\\('content-type'\\).*upgrade gdown"),
        (ConnectionCut("Max retries exceeded: Name or service not known"), "cannot be reached .*Name or service"),
        (OSError(28, "No space left on device", "x"), "No space left on device"),
    ],
)
def test_each_error_of_drive_and_network_is_one_line(gdown, tmp_path, capsys, error, message):
    gdown.error = error
    assert main(["fetch-checkpoints", "resnet18", "--cache", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and re.search(message, err)


def test_a_pattern_that_fits_nothing_lists_what_there_is(gdown, tmp_path):
    with pytest.raises(InputError, match=r"no file matches --only 'b\*'; there are 3: a/one\.index, "):
        download(tmp_path, "b*")


def test_without_gdown_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(InputError, match=r"need gdown .*pip install -e '\.\[upstream\]'"):
        download(tmp_path)
