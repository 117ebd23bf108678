"""Published checkpoints, with TensorFlow and gdown themselves, in an environment of their own."""

import hashlib
import http.server
import json
import os
import platform
import re
import subprocess
import sys
import threading
import urllib.parse
import venv

import jax
import numpy as np
import pytest
from conftest import HERE
from write_tensorflow import slot_key, value

from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.commands.main import main
from fault_injection.published import checkpoints as upstream
from fault_injection.published import google_drive as drive
from fault_injection.published.tensorflow_format import state_name
from fault_injection.runs.run_store import RunStore
from fault_injection.seam.trees import leaf_names
from fault_injection.workloads.registry import WORKLOADS, make_workload

LAYOUT = json.loads((HERE / "fixtures" / "published_checkpoint_layout.json").read_text())["workloads"]
STEPS = 49  # of an epoch
TENSORFLOW = "tensorflow-cpu>=2.18" if (sys.platform, platform.machine()) == ("linux", "x86_64") else "tensorflow>=2.18"


@pytest.fixture(scope="module")
def python(tmp_path_factory, repository):
    """The interpreter of a new environment with the extra `upstream`, and TensorFlow, which wrote what is published."""
    folder = tmp_path_factory.mktemp("upstream") / "venv"
    venv.create(folder, with_pip=True)
    executable = folder / "bin" / "python"
    # To compile all of TensorFlow's modules takes longer than to import those that are used.
    install = [executable, "-m", "pip", "install", "-q", "--no-compile", "-e", f"{repository}[upstream]", TENSORFLOW]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode and re.search("NewConnectionError|NameResolution|ConnectTimeout|unreachable", done.stderr):
        pytest.skip("offline: the package index cannot be reached, so TensorFlow cannot be installed")
    assert done.returncode == 0, done.stderr
    return executable


@pytest.fixture(scope="module")
def written(python, repository, tmp_path_factory):
    """A checkpoint of each workload by TensorFlow, in one folder."""
    folder = tmp_path_factory.mktemp("written")
    layout = repository / "tests" / "fixtures" / "published_checkpoint_layout.json"
    workloads = [workload for workload in LAYOUT if workload in WORKLOADS]
    command = [python, "tests/write_tensorflow.py", layout, str(19 * STEPS), folder, *workloads]
    subprocess.run(command, cwd=repository, check=True)
    return folder


def in_its_environment(python, repository, *arguments):
    command = [python, "-m", "fault_injection", "fetch-checkpoints", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(repository)}
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_what_tensorflow_writes_is_read_and_imported_value_by_value(written, tmp_path):
    assert main(["fetch-checkpoints", "--from", str(written), "--cache", str(tmp_path)]) == 0
    for workload in (workload for workload in LAYOUT if workload in WORKLOADS):
        program = make_workload(workload).program(frozenset())
        names = program.state.names
        state = RunStore(tmp_path / "upstream" / workload, program.state.abstract, names).read_checkpoint(19)
        expected = {"opt_state/iterations": np.int32(19 * STEPS)}
        for key, shape in LAYOUT[workload]:
            if not key.startswith(("optimizer/", "data_augmentation/")):
                keys = [key, slot_key(key, "m"), slot_key(key, "v")]
                expected |= {state_name(key): value(key, shape) for key in keys}
        found = dict(zip(leaf_names(state), jax.tree.leaves(state), strict=True))
        assert found.keys() <= expected.keys()
        for name, array in found.items():
            assert array.tobytes() == expected[name].tobytes(), name


DAMAGES = [
    lambda index, data: data.write_bytes(data.read_bytes()[:-1000]),
    lambda index, data: data.write_bytes(data.read_bytes()[:5000] + b"!" + data.read_bytes()[5001:]),
    lambda index, data: index.write_bytes(index.read_bytes()[:100]),
]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_partial_checkpoint_is_named(damage, written, tmp_path, capsys):
    files = [tmp_path / f"resnet18_sgd.{suffix}" for suffix in ("index", "data-00000-of-00001")]
    for file in files:
        file.write_bytes((written / file.name).read_bytes())
    damage(*files)
    cache = tmp_path / "cache"
    assert main(["fetch-checkpoints", "resnet18_sgd", "--from", str(tmp_path), "--cache", str(cache)]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'resnet18_sgd'}: not a whole TensorFlow checkpoint (")
    assert not (cache / "upstream").exists()


READ = """
import sys, numpy, tensorflow
reader = tensorflow.train.load_checkpoint(sys.argv[1])
names = reader.get_variable_to_shape_map()
arrays = {name: numpy.asarray(reader.get_tensor(name)) for name in names if not name.startswith("_")}
numpy.savez(sys.argv[2], **{name.replace("/", "|"): array for name, array in arrays.items()})
"""


@pytest.mark.slow
def test_what_tensorflow_wrote_is_altered_so_that_tensorflow_reads_it(python, written, tmp_path):
    """TensorFlow compares each checksum, and gives what the altered copy has: the same but for what was altered."""
    saved, altered = written / "resnet18_sgd.index", tmp_path / "altered"
    assert main(["alter", str(saved), "--out", str(altered), "--count", "9"]) == 0
    subprocess.run([python, "-c", READ, altered / "resnet18_sgd", tmp_path / "read.npz"], check=True)
    one, other = open_checkpoint(saved), open_checkpoint(altered / "resnet18_sgd.index")
    with np.load(tmp_path / "read.npz") as read:
        assert {name.replace("|", "/") for name in read} == set(one.arrays)
        for name in one.arrays:
            assert read[name.replace("/", "|")].tobytes() == other.array(name).tobytes()
    pairs = ((one.array(name), other.array(name)) for name in one.arrays)
    assert sum(int(np.sum(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}"))) for a, b in pairs) == 9


class GoogleDrive(http.server.ThreadingHTTPServer):
    """As much of Google Drive as gdown sees, on 127.0.0.1: the folder `examples` with a folder in it.

    Attributes:
      content: of the one file.
      cuts: after how many bytes each of the next downloads is cut.
      quota: whether downloads are still granted.
      asked: the Range of each download.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), GoogleDriveHandler)
        self.content, self.cuts, self.quota, self.asked = bytes(range(256)) * 8000, [], True, []
        self.url = f"http://127.0.0.1:{self.server_port}"


class GoogleDriveHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        place = urllib.parse.urlsplit(self.path)
        (name,) = urllib.parse.parse_qs(place.query)["id"]
        links = {
            upstream.DRIVE["examples"]: ("drive/folders/" + "f" * 30, "epoch 19"),
            "f" * 30: ("file/d/" + "x" * 30 + "/view", "one.index"),
        }
        if place.path == "/embeddedfolderview":
            link, text = links[name]
            title = "epoch 19" if name == "f" * 30 else "examples"
            self._answer(f'<title>{title}</title><a href="https://drive.google.com/{link}">{text}</a>'.encode())
        elif not self.server.quota:
            self._answer(b'<p class="uc-error-subcaption">Too many users have viewed this file recently.</p>')
        else:
            asked = self.headers["Range"]
            self.server.asked.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            size = len(self.server.content)
            headers = {
                "Content-Disposition": 'attachment; filename="one.index"',
                "Content-Type": "application/octet-stream",
            }
            if asked:
                headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            end = start + self.server.cuts.pop(0) if self.server.cuts else size
            self._answer(self.server.content[start:], 206 if asked else 200, headers, end - start)

    def _answer(self, content, status=200, headers=None, end=None):
        self.send_response(status)
        always = {"Content-Length": str(len(content)), "Content-Type": "text/html"}
        for name, text in (always | (headers or {})).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content[:end])

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_gdown_itself_lists_resumes_and_reports_the_quota(python, repository, tmp_path):
    through_here = """
import sys, requests
get, drive = requests.Session.get, "https://drive.google.com"
requests.Session.get = lambda self, url, **more: get(self, url.replace(drive, sys.argv[1]), **more)
from fault_injection.commands.main import main
sys.exit(main(sys.argv[2:]))
"""
    arguments = ["fetch-checkpoints", "resnet18", "--cache", tmp_path]
    home = {"HOME": str(tmp_path), "PYTHONPATH": str(repository), "no_proxy": "127.0.0.1"}

    def fetched():
        command = [python, "-c", through_here, server.url, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | home)
        assert done.returncode == 2, done.stderr  # what arrives is no checkpoint
        return done.stderr.splitlines()[-1]

    with GoogleDrive() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        server.quota = False
        assert re.search(r"does not give epoch 19/one\.index: .*quota.*Too many users", fetched())
        server.quota, server.cuts = True, [600_000, *[100_000] * 50]
        assert re.search(r"(cannot be reached|does not give) .*epoch 19/one\.index", fetched())
        first, server.asked, server.cuts = server.asked, [], []
        assert "one: not a whole TensorFlow checkpoint" in fetched()
        server.shutdown()
    assert first[0] is None and first[-1] == server.asked[-1] and re.fullmatch(r"bytes=[1-9]\d*-", first[-1])
    path = tmp_path / "upstream" / "drive" / "examples" / "epoch 19" / "one.index"
    assert path.read_bytes() == server.content
    assert (
        f"{hashlib.sha256(server.content).hexdigest()}  epoch 19/one.index\n"
        in (path.parents[1] / drive.SUMS).read_text()
    )
