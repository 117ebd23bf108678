"""The wheel and the source distribution: built, installed, and used as a stranger does, in folders of her own.

Nothing is downloaded: the fresh environment reads the dependencies of the one that runs the tests.
"""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
from whole import some

from fault_injection import __version__

pytestmark = pytest.mark.slow
pytest.importorskip("build")

LEFT_OUT = shutil.ignore_patterns("results", ".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", "out", "build")


@pytest.fixture(scope="module")
def built(repository, tmp_path_factory):
    """The source distribution, and the wheel made of it."""
    copy, out = tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("built")
    shutil.copytree(repository, copy, symlinks=True, ignore=LEFT_OUT)
    ran(["-m", "build", "--no-isolation", "--outdir", out, copy], out)
    (source,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return source, wheel


def ran(words, folder, python=sys.executable, code=0, **variables):
    """What a command prints; it has the exit code that is expected."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSTARTUP")}
    command = [*map(str, [python, *words] if python else words)]
    done = subprocess.run(command, cwd=folder, env=clean | variables, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of the programs of a fresh environment that has the wheel."""
    venv = tmp_path_factory.mktemp("stranger") / "venv"
    ran(["-m", "venv", "--without-pip", venv], venv.parent)
    python = venv / "bin" / "python"
    ran(["-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", built[1]], venv.parent)
    where = ran(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], venv.parent, python).strip()
    (pathlib.Path(where) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin"


@pytest.fixture(scope="module")
def command(installed, tmp_path_factory):
    """Runs `fault-injection`, or `python -m fault_injection`, in a folder."""
    cache = str(tmp_path_factory.mktemp("cache"))

    def run(folder, *words, module=False, code=0, **variables):
        start = [installed / "python", "-m", "fault_injection"] if module else [installed / "fault-injection"]
        return ran([*start, *words], folder, None, code, FAULT_INJECTION_CACHE=cache, **variables)

    return run


def test_the_wheel_installs_one_name(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name.partition("/")[0] for name in wheel.namelist()}
    assert names == {"fault_injection", f"fault_injection-{__version__}.dist-info"}


def test_the_script_says_its_version_and_its_commands(command, tmp_path):
    assert command(tmp_path, "--version") == f"fault-injection {__version__}\n"
    listed = command(tmp_path)
    assert listed.startswith("usage: fault-injection ") and " replay " in listed and " fetch-checkpoints\n" in listed
    assert "usage: python -m fault_injection " in command(tmp_path, module=True)
    assert "(see fault-injection replay --help)" in command(tmp_path, "replay", "--threads", "0", code=2)


def test_a_stream_without_letters_gets_escapes(command, tmp_path):
    for variables in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        for words in (["formats", "--help"], ["sites", "dlrm"]):
            assert command(tmp_path, *words, **variables).isascii()


def test_starters_come_with_the_wheel_and_replace_nothing(command, tmp_path):
    said = command(tmp_path, "init", "my_run.py", "--library", "nnx")
    assert said.splitlines()[-1] == "  fault-injection golden my_run.py:training"
    assert "my_run.py:training" in (text := (tmp_path / "my_run.py").read_text()) and "NAME" not in text
    assert command(tmp_path, "init", "my_run.py", code=2) == "my_run.py: is there already; nothing was written\n"
    assert command(tmp_path, "init", "run.txt", code=2) == "run.txt: expected a name that ends in .py\n"
    assert command(tmp_path, "init", "no/run.py", code=2) == "no: there is no such folder\n"
    assert (tmp_path / "my_run.py").read_text() == text and len([*tmp_path.glob("*.py")]) == 1


def test_examples_come_with_the_wheel_and_replace_nothing(command, installed, tmp_path):
    said = command(tmp_path, "examples", "here")
    assert said.endswith("files copied to here/examples/\n")
    names = {path.relative_to(tmp_path / "here").as_posix() for path in (tmp_path / "here").rglob("*.*")}
    assert names >= {"injections/quick_start.csv", "injections/plans/quick.toml", "examples/llama/my_run.py"}
    checked = command(tmp_path / "here", "replay", "injections/quick_start.csv", "--check")
    assert checked.startswith("In epoch 4, step 5 of resnet18 on digits")
    (tmp_path / "here" / "injections" / "quick_start.csv").write_text("mine")
    said = command(tmp_path, "examples", "here", code=2)
    assert said == "here/injections: is there already; nothing was copied\n"
    assert (tmp_path / "here" / "injections" / "quick_start.csv").read_text() == "mine"


MODELS = """
import jax, jax.numpy as jnp

def step(state, batch):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(state["w"])
    return {"w": state["w"] - 0.1 * gradient}, {"loss": loss}
"""
DATA = """
import numpy as np

def batch(epoch, step):
    x = np.random.default_rng([epoch, step]).normal(size=(8, 3)).astype(np.float32)
    return {"x": x, "y": x @ np.float32([[1], [2], [3]])}
"""
MY_RUN = """
import data
import models

def training(seed: int = 0):
    import numpy as np
    from fault_injection import Measure, Training

    held_back = data.batch(99, 99)
    return Training(
        init=lambda: {"w": np.zeros((3, 1), np.float32)}, step=models.step, batch=data.batch, steps_per_epoch=5,
        epochs=2, evaluate=lambda state: models.step(state, held_back)[1],
        metric=Measure("loss", "lower", chance=14.0, tolerance=0.01),
    )
"""
FAULT = """model,{file}:training
stage,fwrd_inject
fmodel,RD
target_worker,0
target_layer,forward:w
target_epoch,1
target_step,2
inj_pos,3/0
inj_values,1e9
seed,0
"""
PLAN = """workload = "{file}:training"
[faults]
experiments = 4
[run]
exit = "exact"
"""


@pytest.fixture
def folder(tmp_path):
    """A user's folder, whose modules have the names of our rooms; what it does not import itself fails."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name, text in {"models": MODELS, "data": DATA, "my_run": MY_RUN}.items():
        (folder / f"{name}.py").write_text(text)
    for name in ("runs", "campaign", "faults", "commands", "machine", "detection", "seam", "questions"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('the {name}.py of somebody else was imported')\n")
    return folder


@pytest.mark.parametrize(
    ("beside", "module"),
    some(list(itertools.product([True, False], repeat=2)), [(True, False), (False, True)]),
    ids=lambda yes: str(yes),
)
def test_a_folder_with_modules_of_our_names_is_its_users(command, installed, folder, tmp_path, beside, module):
    here = folder if beside else tmp_path
    file = "my_run.py" if beside else "theirs/my_run.py"
    (folder / "fault.csv").write_text(FAULT.format(file=file))
    (folder / "plan.toml").write_text(PLAN.format(file=file))
    place = "" if beside else "theirs/"

    assert "forward:w" in command(here, "sites", f"{file}:training", module=module)
    if beside and module:  # what these say is found again below
        assert "forward:w" in command(here, "replay", f"{place}fault.csv", "--check", module=module)
        assert "4 experiments" in command(here, "campaign", f"{place}plan.toml", "--out", "c", "--check", module=module)
    said = json.loads(command(here, "replay", f"{place}fault.csv", "--json", module=module))
    assert said["folder"] == ("out/fault" if beside else "out/theirs_fault")
    environment = json.loads((here / said["folder"] / "provenance.json").read_text())["environment"]
    assert (environment["version"], environment["commit"]) == (__version__, None)
    command(here, "campaign", f"{place}plan.toml", "--out", "c", "--jobs", 1, module=module)
    command(here, "report", "c", module=module)
    use = "import fault_injection, models; fault_injection.instrument; print(models.__file__)"
    assert ran(["-c", use], folder, installed / "python").strip() == str(folder / "models.py")


def test_a_repository_around_the_installed_package_is_not_its_commit(installed, tmp_path):
    """Its user's virtual environment lies in a repository of its user, which git knows nothing of."""
    venv = installed.parent
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "theirs", "--allow-empty"],
    ):
        subprocess.run(["git", *words], cwd=venv, check=True)
    ask = "from fault_injection.machine.environment import commit; print(commit())"
    assert ran(["-c", ask], tmp_path, installed / "python") == "None\n"


READING = (
    "test_public_api.py and stub",
    "test_injection.py and (here or checking)",
    "test_shipped.py",
    "test_examples.py and (injection_file or scaling)",
    "test_report.py and shipped",
    "test_plan.py and shipped",
)


def test_the_tests_of_the_source_distribution_find_what_they_read(built, repository, tmp_path):
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for name in ("tests", "docs", "injections", "examples", "benchmarks", ".ci"):
        files = (path.relative_to(repository) for path in (repository / name).rglob("*") if path.is_file())
        ours = [path for path in files if path.suffix != ".pyc" and "fetched" not in path.parts]
        assert not [path for path in ours if not (source / path).is_file()]
    # All tests are collected; of those that read what is beside the package, one of each kind runs.
    ran(["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", " or ".join(READING)], source)
