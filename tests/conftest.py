"""Options and shared set-up of the tests."""

import collections
import gc
import os
import pathlib

import hypothesis
import jax
import pytest
from cifar10_copies import copies, images  # noqa: F401

from fault_injection.machine.environment import available_processors, prepare

HERE = pathlib.Path(__file__).parent
FIXTURES = pytest.StashKey[pathlib.Path]()
QUICK = "--xla_backend_optimization_level=0"
# Files whose slow tests take minutes: they come first, so that at the end no worker is left alone with one of them.
LONGEST = [
    *("replay", "automatic_sharding", "shipped", "campaign_processes", "processes", "scoreboard", "strategies"),
    *("formats", "transformer", "pvf_processes", "layers", "parity", "documentation", "matrix", "lower"),
    *("matrix_of_commands", "training", "workload_page", "resnet18_in_flax", "golden", "recovered_replays"),
]

# Workers share the processors: with more threads than those, they and what they start wait for one another, which costs
# a seventh of all processor time.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    os.environ.setdefault("NPROC", str(max(1, available_processors() // workers)))
# Compiled programs are kept between runs of the tests, and shared with the processes they start.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(HERE.parent / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
prepare()  # as commands do, so that golden runs made here and by processes are the same
jax.config.update("jax_numpy_dtype_promotion", "strict")  # nothing here mixes types unawares


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """`--fixtures DIR` reads parity fixtures from DIR.

    pytest itself has a flag `--fixtures`, which takes no value, so it takes DIR for a folder
    of tests: a folder of `*.json.gz` after that flag is understood here as what it is.
    """
    if "slow" not in config.option.markexpr.split(" and ")[:1]:
        # Compiling takes most of the time of the quick tests.  The slow ones compile as commands do, but for those
        # that ask for `compiled_quickly`.
        os.environ["XLA_FLAGS"] = f"{os.environ['XLA_FLAGS']} {QUICK}"
    config.option.loadscopereorder = False  # pytest-xdist keeps the order that is made below
    config.stash[FIXTURES] = HERE / "fixtures"
    folders = [arg for arg in config.args if any(pathlib.Path(arg).glob("*.json.gz"))]
    if config.option.showfixtures and folders:
        config.option.showfixtures = False
        config.stash[FIXTURES] = pathlib.Path(folders[-1])
        config.args = [arg for arg in config.args if arg not in folders] or [str(HERE)]


def pytest_ignore_collect(collection_path, config):
    """`-m law` and `-m slow` read only files that have such a test: to import the others takes as long as the laws."""
    wanted = config.option.markexpr
    if wanted in ("law", "slow") and collection_path.name.startswith("test_"):
        return f"pytest.mark.{wanted}" not in collection_path.read_text() or None
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The longest files first, the others by how many tests they have."""
    tests = collections.Counter(item.path for item in items)
    longest = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (longest.get(item.path.name, len(longest)), -tests[item.path], item.path))


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The root of the checkout."""
    return HERE.parent


@pytest.fixture(scope="session")
def results(repository) -> pathlib.Path:
    """The results that this project ships."""
    folder = repository / "results"
    if not folder.is_dir():
        pytest.skip("the source distribution leaves out results/, which is large")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder for golden runs, one for the tests of a file."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Let go of a module's compiled programs: those of all slow tests are more than one process can have.

    Each program takes some mappings of memory.  Linux gives a process 65,530, and XLA aborts at that number.
    """
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="module")
def compiled_quickly():
    """For slow tests whose statements no optimisation of a compiler decides: XLA compiles in half the time.

    So it does in the processes that they start, and for the whole file: programs are compared that are compiled alike.
    """
    if QUICK in os.environ["XLA_FLAGS"]:  # as all quick tests are
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
    jax.config.update("jax_disable_most_optimizations", False)


hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.load_profile("here")
