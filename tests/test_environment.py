"""A process is set up once; afterwards nothing that bits depend on changes unnoticed."""

import json
import os
import subprocess
import sys

import jax
import pytest

from fault_injection.machine.environment import arithmetic, available_processors, number_of_threads, prepare
from fault_injection.machine.errors import InputError, Untrustworthy


def state():
    options = ("jax_default_matmul_precision", "jax_compilation_cache_dir")
    return dict(os.environ), os.sched_getaffinity(0), [getattr(jax.config, name) for name in options]


def test_setting_up_again_changes_nothing():
    jax.devices()
    before = state()
    assert prepare() == {}
    assert state() == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"threads": 1}, "too late to change the number of threads from 7 to 1: JAX computes already"),
        ({"matrix_precision": "bfloat16"}, "too late to change the matrix precision from float32 to bfloat16"),
        ({"threads": 1, "matrix_precision": "tf32"}, "from 7 to 1, the matrix precision from float32 to tensorfloat32"),
    ],
)
def test_what_bits_depend_on_is_not_changed_once_jax_computes(monkeypatch, arguments, message):
    jax.devices()
    monkeypatch.setenv("NPROC", "7")
    before = state()
    with pytest.raises(Untrustworthy, match=message) as raised:
        prepare(**arguments)
    assert "\n" not in str(raised.value)
    assert state() == before


def test_flags_that_would_not_be_read_any_more_are_refused(monkeypatch):
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    with pytest.raises(Untrustworthy, match="too late to change XLA_FLAGS, to set xla_gpu_deterministic_ops"):
        prepare()


def test_more_threads_than_processors_are_refused():
    with pytest.raises(InputError, match=r"--threads 9999: this process may use \d+ processors"):
        prepare(9999)


SET_UP = """
import json, os
from fault_injection.machine.environment import arithmetic, prepare
changed = [prepare(1, "bfloat16"), prepare(1, "bfloat16")]
described = arithmetic(1)
print(json.dumps([changed, len(os.sched_getaffinity(0)), described["threads"], described["matrix_precision"]]))
"""


def test_a_new_process_says_what_it_changed_and_computes_so(repository, tmp_path):
    """Before JAX computes everything can be set, and provenance names it; threads are a CPU's."""
    known = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=false",
        "FAULT_INJECTION_CACHE": str(tmp_path),
    }
    ours = ("JAX_", "NPROC")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)} | known
    done = subprocess.run(
        [sys.executable, "-c", SET_UP], cwd=repository, env=environment, capture_output=True, text=True, check=True
    )
    (first, second), processors, threads, precision = json.loads(done.stdout)
    assert first == {
        "NPROC": "1",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_gpu_deterministic_ops=true",
        "jax_default_matmul_precision": "bfloat16",
        "jax_compilation_cache_dir": str(tmp_path / "xla" / "1-threads"),
        "jax_persistent_cache_min_compile_time_secs": "0.1",
    }
    assert second == {}
    assert (processors, threads, precision) == (1, 1, "bfloat16")


def test_runs_that_were_compiled_otherwise_are_other_runs(monkeypatch):
    """Without XLA's fusion emitters a step has other bits; what only dumps a program changes none."""

    def described(flags, tpu="", quick=False):
        monkeypatch.setenv("XLA_FLAGS", flags)
        monkeypatch.setenv("LIBTPU_INIT_ARGS", tpu)
        before = jax.config.values["jax_disable_most_optimizations"]
        jax.config.update("jax_disable_most_optimizations", quick)
        found = arithmetic(1)
        jax.config.update("jax_disable_most_optimizations", before)
        return json.dumps(found)

    plain, emitters, level = described(""), "--xla_cpu_use_fusion_emitters=false", "--xla_backend_optimization_level"
    assert described("--xla_force_host_platform_device_count=2 --xla_dump_to=/nowhere") == plain
    assert described(f"{emitters} {level}=0") == described(f"{level}=3  {level}=0  {emitters}")
    assert described(f"{level}=0 {level}=3") == described(f"{level}=3")
    others = {described(emitters), described(f"{level}=0"), described("", tpu=f"{level}=0"), described("", quick=True)}
    assert len({plain, *others}) == 5


IMPORTED_FIRST = """
import os, jax
os.environ |= {"JAX_COMPILATION_CACHE_DIR": "mine", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "7"}
from fault_injection.machine.environment import prepare
prepare()
assert jax.config.jax_compilation_cache_dir == "mine" and jax.config.jax_persistent_cache_min_compile_time_secs == 7
"""


def test_a_cache_of_programs_that_the_person_chose_is_used_even_where_jax_was_imported_before(repository):
    subprocess.run([sys.executable, "-c", IMPORTED_FIRST], cwd=repository, check=True)


def test_a_result_names_what_its_bits_depend_on():
    described = arithmetic(1)
    assert described["jax"] == jax.__version__
    if jax.default_backend() == "cpu":
        assert described["threads"] == number_of_threads() <= available_processors() and described["processor"]
