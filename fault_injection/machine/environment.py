"""The machine and the libraries: set up once, described wherever bits depend on them.

Bits repeat for one kind and number of devices, one number of threads, one version of each
library, one precision of matrix products and one set of flags of the compiler.  A golden run is
filed under all of these, and the provenance of a result names them.
"""

import functools
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

import numpy as np

from ..version import __version__
from .errors import InputError, Untrustworthy
from .termination import hold_back

# Names of matrix precisions, ours and JAX's.
MATRIX_PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}
DETERMINISTIC = "xla_gpu_deterministic_ops"
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # variables that say how to compile; the second is read on TPUs
IDLE_FLAGS = ("--xla_force_host_platform_device_count", "--xla_dump")  # they change nothing that is compiled
JAX_OPTIONS = (  # on which bits depend
    *("jax_disable_most_optimizations", "jax_optimization_level", "jax_exec_time_optimization_effort"),
    *("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable"),
)
HUGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1000000000000"


def cache_folder() -> pathlib.Path:
    """Where golden runs and compiled programs are kept: `$FAULT_INJECTION_CACHE`, else `~/.cache/fault_injection`."""
    folder = os.environ.get("FAULT_INJECTION_CACHE")
    return pathlib.Path(folder) if folder else pathlib.Path.home() / ".cache" / "fault_injection"


def data_folder() -> pathlib.Path:
    """Where datasets are looked for: `$FAULT_INJECTION_DATA`, else `data` in the cache."""
    return pathlib.Path(os.environ.get("FAULT_INJECTION_DATA") or cache_folder() / "data")


def prepare(threads: int | None = None, matrix_precision: str = "float32", bind: bool = True) -> dict[str, str]:
    """Set up this process for computing; to be called at its start, before JAX's first computation.

    It changes, where they are not so already:

    - the environment variables `NPROC` (number of threads) and `XLA_FLAGS` (deterministic
      operations on GPUs).  XLA reads them when JAX's backend is made, and child processes
      inherit them.
    - the processors that this process may use, where `threads` is given and `bind` is true.
    - JAX's options `jax_default_matmul_precision`, `jax_compilation_cache_dir` and
      `jax_persistent_cache_min_compile_time_secs`.  Where `$JAX_COMPILATION_CACHE_DIR` is set,
      the last two have the values of JAX's own variables.

    A second call with the same arguments changes nothing.

    Args:
      threads: CPU threads to compute with.  None leaves their number as it is: by default one
        for each processor that this process may use.
      matrix_precision: key of `MATRIX_PRECISIONS`: what the operands of every matrix product and convolution
        are rounded to.  TPUs use `bfloat16` unless told otherwise.
      bind: whether to bind this process to the first `threads` of its processors.  The bits
        are the same without it.

    Returns:
      The variables and options that it changed, with their new values.

    Raises:
      InputError: this process may use fewer processors than `threads`.
      Untrustworthy: JAX's backend exists already (tracing makes it, too), and a number of
        threads, a flag or a precision would change.  The backend would keep the old one,
        while results would be filed under the new one.  Nothing is changed then.
    """
    if threads is not None and threads > available_processors():
        raise InputError(f"--threads {threads}: this process may use {available_processors()} processors")
    if late := _too_late(threads, MATRIX_PRECISIONS[matrix_precision]):
        raise Untrustworthy(f"too late to change {', '.join(late)}: JAX computes already; start a new process")

    changed: dict[str, str] = {}
    if threads is not None:
        if os.environ.get("NPROC") != str(threads):
            changed["NPROC"] = str(threads)
        if bind and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if DETERMINISTIC not in (flags := os.environ.get("XLA_FLAGS", "")):
        changed["XLA_FLAGS"] = f"{flags} --{DETERMINISTIC}=true".strip()
    os.environ |= changed

    options: dict[str, str | float] = {"jax_default_matmul_precision": MATRIX_PRECISIONS[matrix_precision]}
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        # JAX reads its variables when it is imported, which may have been before they were set.
        options["jax_compilation_cache_dir"] = os.environ["JAX_COMPILATION_CACHE_DIR"]
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" in os.environ:
            seconds = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
            options["jax_persistent_cache_min_compile_time_secs"] = seconds
    else:
        # XLA compiles for a number of threads, which JAX leaves out of the key of a compiled program.
        options["jax_compilation_cache_dir"] = str(cache_folder() / "xla" / f"{number_of_threads()}-threads")
        options["jax_persistent_cache_min_compile_time_secs"] = 0.1
    import jax  # commands that compute nothing do without it

    for name, value in options.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
            changed[name] = str(value)
    return changed


def _too_late(threads: int | None, rounding: str) -> list[str]:
    """What would have to change, and no longer can because JAX's backend has read it."""
    import jax
    from jax._src import xla_bridge

    if not xla_bridge.backends_are_initialized():  # there is no public function that tells
        return []
    late = []
    if threads not in (None, number_of_threads()):
        late.append(f"the number of threads from {number_of_threads()} to {threads}")
    now = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if rounding != now:
        late.append(f"the matrix precision from {now} to {rounding}")
    if DETERMINISTIC not in os.environ.get("XLA_FLAGS", ""):
        late.append(f"XLA_FLAGS, to set {DETERMINISTIC}")
    return late


def use_huge_pages() -> None:
    """Start this process again with huge pages for its memory, where the C library offers them.

    On a CPU, XLA allocates its buffers anew for every step.  With pages of 4 KiB, a step of the
    full-width network spends a tenth of its time on page faults.  The setting is read when a
    process starts, hence the restart.  A process that has `GLIBC_TUNABLES` keeps them.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES
        hold_back()  # until the new program answers signals
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def number_of_threads() -> int:
    """How many CPU threads XLA computes with.

    >>> number_of_threads() >= 1
    True
    """
    return int(os.environ.get("NPROC", available_processors()))


def available_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def arithmetic(devices: int) -> dict[str, Any]:
    """What the bits of a run on `devices` devices depend on, besides the workload: JSON values by name.

    >>> sorted(arithmetic(1).keys() & {"platform", "devices", "threads", "jax"})
    ['devices', 'jax', 'platform', 'threads']
    """
    import jax
    import jaxlib

    kind = jax.devices()[0]
    return {
        "platform": kind.platform,
        "device_kind": kind.device_kind,
        "devices": devices,
        "threads": number_of_threads() if kind.platform == "cpu" else None,
        "processor": _processor() if kind.platform == "cpu" else None,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,  # type: ignore[attr-defined]
        "numpy": np.__version__,
        "matrix_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        "processes": jax.process_count(),
        **{name: _flags(name) for name in FLAGS},
        **{name: _option(name) for name in JAX_OPTIONS},
    }


def _option(name: str) -> Any:
    """JAX's option, as text where it is no JSON value; None where this version of JAX has none of the name."""
    import jax

    found = getattr(jax.config, name, jax.config.values.get(name))  # those without a context have no attribute
    return found if found is None or isinstance(found, bool | int | float | str) else str(found)


def _flags(variable: str) -> str:
    """The flags of a variable that can change what is compiled, each once and in order."""
    flags = os.environ.get(variable, "").split()
    last = {flag.partition("=")[0]: flag for flag in flags if not flag.startswith(IDLE_FLAGS)}  # of two, the last holds
    return " ".join(sorted(last.values()))


@functools.cache
def _processor() -> str:
    """Model of the processor: XLA compiles for its instruction set."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return " ".join(value.strip() for key, value in fields.items() if key.strip() in ("model name", "model"))
    except OSError:
        return platform.processor()


def describe() -> dict[str, Any]:
    """What else the provenance of a result says of the machine and the code: JSON values by name."""
    import flax
    import optax

    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "flax": flax.__version__,
        "optax": optax.__version__,
        "version": __version__,
        "commit": commit(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def commit() -> str | None:
    """The commit of the checkout that holds this code, with `-dirty` where tracked files differ from it.

    Returns:
      None where git does not track this file: an installed package lies in no checkout, even where a repository of
      its user surrounds it.
    """
    file = pathlib.Path(__file__)
    git = ["git", "-C", str(file.parent)]

    def said(*command: str) -> str:
        return subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout.strip()

    try:
        said("ls-files", "--error-unmatch", file.name)
        return said("rev-parse", "HEAD") + ("-dirty" if said("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
