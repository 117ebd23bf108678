"""Altering a checkpoint of some gigabytes, in proportion to copying it: time, and the memory that it takes.

Files of random numbers are made in a temporary folder, four arrays in each.  Commands take turns: `alter`
with ten alterations, and a copy by the system that waits, as `alter` does, until it is on the disk.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable

import h5py
import numpy as np
from pairs import ROOT, median_interval

sys.path.insert(0, str(ROOT / "tests"))
from torch_files import View, pickled, tensor

ARRAYS = 4


def main() -> None:
    """Measure each format in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of a file (default %(default)s)")
    parser.add_argument("--pairs", type=int, default=7, help="rounds of alternation (default %(default)s)")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=[*FORMATS], help="default: all")
    options = parser.parse_args()
    size = int(options.gigabytes * 2**30 / 4 / ARRAYS)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}; files of {options.gigabytes:g} GiB")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.formats:
            source = pathlib.Path(folder) / "source"
            # In a process of its own: what a process has in memory counts for those that it starts, too.
            writing = multiprocessing.get_context("spawn").Process(target=FORMATS[name], args=(source, size))
            writing.start()
            writing.join()
            ratios, memory = [], 0
            made = pathlib.Path(folder) / "made"
            _timed(_copy, source, made)  # so that the source is in memory
            for pair in range(options.pairs):
                seconds = {}
                for run in (_copy, _alter) if pair % 2 else (_alter, _copy):
                    seconds[run], kilobytes = _timed(run, source, made)
                    memory = max(memory, kilobytes)
                ratios.append(seconds[_alter] / seconds[_copy])
            middle, low, high, covers = median_interval(ratios)
            spread = f"{middle:.2f} [{low:.2f}, {high:.2f}] ({covers:.0%})"
            print(f"{name}: alter / copy {spread}; at most {memory / 1024:.0f} MiB", flush=True)
            source.unlink()


def _timed(run: Callable[..., int], *arguments: pathlib.Path) -> tuple[float, int]:
    """Seconds, and kilobytes of memory where it is a process; what it made is removed before and after."""
    arguments[-1].unlink(missing_ok=True)
    begun = time.perf_counter()
    kilobytes = run(*arguments)
    seconds = time.perf_counter() - begun
    arguments[-1].unlink()
    return seconds, kilobytes


def _copy(source: pathlib.Path, out: pathlib.Path) -> int:
    shutil.copyfile(source, out)
    with out.open("rb") as file:
        os.fsync(file.fileno())
    return 0


def _alter(source: pathlib.Path, out: pathlib.Path) -> int:
    command = [sys.executable, "-m", "fault_injection", "alter", str(source), "--out", str(out), "--count", "10"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"alter failed: {status}")
    return used.ru_maxrss


def _numbers(size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=size).astype(np.float32)


def _safetensors(path: pathlib.Path, size: int) -> None:
    array = _numbers(size)
    span = array.nbytes
    entries = {
        f"p{k}": {"dtype": "F32", "shape": [array.size], "data_offsets": [k * span, (k + 1) * span]}
        for k in range(ARRAYS)
    }
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(ARRAYS):
            file.write(array.data)


def _hdf5(path: pathlib.Path, size: int) -> None:
    array = _numbers(size)
    with h5py.File(path, "w") as file:
        for k in range(ARRAYS):
            file[f"p{k}"] = array


def _npz(path: pathlib.Path, size: int) -> None:
    array = _numbers(size)
    with path.open("wb") as file:
        np.savez(file, **{f"p{k}": array for k in range(ARRAYS)})


def _torch(path: pathlib.Path, size: int) -> None:
    array = _numbers(size)
    views = {f"p{k}": View(k, 0, array.shape, (1,)) for k in range(ARRAYS)}
    tensors = {name: tensor([array] * ARRAYS, view) for name, view in views.items()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(tensors))
        for k in range(ARRAYS):
            with archive.open(zipfile.ZipInfo(f"archive/data/{k}"), "w", force_zip64=True) as member:
                member.write(array.data)


FORMATS = {"safetensors": _safetensors, "HDF5": _hdf5, "npz": _npz, "PyTorch": _torch}

if __name__ == "__main__":
    main()
