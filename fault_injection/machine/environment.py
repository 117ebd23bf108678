"""The machine and the libraries: set up once, described wherever bits depend on them.

Bits repeat for one device kind and count, thread count, library version and matrix
precision; a golden run is filed under all of these, and provenance names them.
"""

import ast
import functools
import hashlib
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

from .errors import InputError

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Names of matrix precisions, ours and JAX's.
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}
HUGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1000000000000"
# What computes a golden run, besides the libraries.
SOURCES = (
    "models/**/*.py",
    "fault_injection/data/*.py",
    "fault_injection/training/*.py",
)


def cache_folder() -> pathlib.Path:
    """Where golden runs and compiled programs are kept: `$FAULT_INJECTION_CACHE`, else `~/.cache/fault_injection`."""
    folder = os.environ.get("FAULT_INJECTION_CACHE")
    return pathlib.Path(folder) if folder else pathlib.Path.home() / ".cache" / "fault_injection"


def prepare(threads: int | None = None, precision: str = "float32", bind: bool = True) -> None:
    """Set up JAX before its first computation.

    Args:
      threads: CPU threads to compute with; by default all that this process may use.  It
        stands for processors: the process is bound to that many of them.
      precision: key of `PRECISIONS`: to what the operands of every matrix product and
        convolution are rounded. `bfloat16` is what TPUs do unless told otherwise.
      bind: whether to bind it; with one thread a process may as well wander, its bits being the
        same as long as this is called before JAX's backend is made, which tracing does too.

    Raises:
      InputError: there are not so many.
    """
    if threads is not None:
        if threads > available_processors():
            raise InputError(f"--threads {threads}: this process may use {available_processors()} processors")
        os.environ["NPROC"] = str(threads)  # read by XLA
        if bind and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()

    import jax

    # GPUs and TPUs would multiply in fewer bits by default.
    jax.config.update("jax_default_matmul_precision", PRECISIONS[precision])
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # XLA compiles for a number of threads, which JAX's key of a compiled program leaves out.
        folder = cache_folder() / "xla" / f"{number_of_threads()}-threads"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def use_huge_pages() -> None:
    """Start this process again with huge pages for its memory, where the C library offers them.

    XLA takes its buffers afresh for every step on a CPU; with pages of 4 KiB a step of the
    full-width network spends a tenth of its time on page faults.  The setting is read when a
    process starts, hence the restart.  A process that has `GLIBC_TUNABLES` keeps them.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def number_of_threads() -> int:
    """CPU threads that XLA computes with."""
    return int(os.environ.get("NPROC", available_processors()))


def available_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def arithmetic(devices: int) -> dict[str, Any]:
    """What the bits of a run depend on besides the workload, for a run on `devices` devices."""
    import jax
    import jaxlib
    import numpy as np

    kind = jax.devices()[0]
    return {
        "platform": kind.platform,
        "device_kind": kind.device_kind,
        "devices": devices,
        "threads": number_of_threads() if kind.platform == "cpu" else None,
        "processor": _processor() if kind.platform == "cpu" else None,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "matrix_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        "processes": jax.process_count(),
        "source": source_hash(),
    }


@functools.cache
def _processor() -> str:
    """Model of the processor: XLA compiles for its instruction set."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return " ".join(value.strip() for key, value in fields.items() if key.strip() in ("model name", "model"))
    except OSError:
        return platform.processor()


@functools.cache
def source_hash(patterns: tuple[str, ...] = SOURCES) -> str:
    """Hash of code, by default of what computes a golden run, comments and docstrings left out."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_text(body[0]):
                del body[0]
        digest.update(f"{path.relative_to(ROOT).as_posix()} {ast.dump(tree)} ".encode())
    return digest.hexdigest()[:16]


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def describe() -> dict[str, Any]:
    """For provenance: what else is worth knowing of the machine and the code."""
    import flax
    import optax

    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "flax": flax.__version__,
        "optax": optax.__version__,
        "commit": commit(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def commit() -> str | None:
    """The checkout's commit, `-dirty` where files differ from it; None outside a checkout."""
    git = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
