"""The same arrays as checkpoints of every format, for tests of what reads them."""

import pathlib
from collections.abc import Callable, Mapping

import h5py
import ml_dtypes
import numpy as np
import orbax.checkpoint
import safetensors.numpy
from flax import serialization, traverse_util
from torch_files import write_torch

from fault_injection.machine.files import write_arrays

Arrays = Mapping[str, np.ndarray]


def some_arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays as a training state has them: of several formats, one of one number, one of no floating-point numbers."""
    rng = np.random.default_rng(seed)
    return {
        "params/conv1/kernel": rng.normal(size=(3, 3, 2, 5)).astype(np.float32),
        "params/fc/bias": rng.normal(size=7).astype(np.float16),
        "params/fc/kernel": rng.normal(size=(40, 30)).astype(np.float32),
        "opt_state/m/fc/kernel": rng.normal(size=(40, 30)).astype(np.float32),
        "opt_state/scale": np.asarray(rng.normal(), np.float64),
        "opt_state/step": np.asarray(11, np.int32),
    }


def _tree(arrays: Arrays) -> dict:
    return traverse_util.unflatten_dict({tuple(name.split("/")): array for name, array in arrays.items()})


def _npz(path: pathlib.Path, arrays: Arrays) -> None:
    np.savez(path, **arrays)


def _compressed(path: pathlib.Path, arrays: Arrays) -> None:
    np.savez_compressed(path, **arrays)


def _safetensors(path: pathlib.Path, arrays: Arrays) -> None:
    safetensors.numpy.save_file(dict(arrays), path)


def _hdf5(path: pathlib.Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def _chunked(path: pathlib.Path, arrays: Arrays) -> None:
    """In chunks with compression and a checksum, where an array has more than one element."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            how = {"compression": "gzip", "fletcher32": True, "chunks": True} if array.ndim else {}
            file.create_dataset(name, data=array, **how)


def _msgpack(path: pathlib.Path, arrays: Arrays) -> None:
    path.write_bytes(serialization.msgpack_serialize(_tree(arrays)))


def _orbax(**options: bool) -> Callable[[pathlib.Path, Arrays], None]:
    def write(path: pathlib.Path, arrays: Arrays) -> None:
        handler = orbax.checkpoint.PyTreeCheckpointHandler(**options)
        with orbax.checkpoint.Checkpointer(handler) as checkpointer:
            checkpointer.save(path, _tree(arrays))

    return write


# Ways to write a checkpoint, by name: those of `SAME_BYTES` give the same file again when an alteration is undone.
WRITERS: dict[str, Callable[[pathlib.Path, Arrays], None]] = {
    "npz": _npz,
    "npz compressed": _compressed,
    "ours": write_arrays,
    "safetensors": _safetensors,
    "HDF5": _hdf5,
    "PyTorch": write_torch,
    "PyTorch, big-endian": lambda path, arrays: write_torch(path, arrays, "big"),
    "HDF5 in chunks": _chunked,
    "msgpack": _msgpack,
    "Orbax OCDBT": _orbax(use_ocdbt=True),
    "Orbax plain": _orbax(use_ocdbt=False),
    "Orbax Zarr 3": _orbax(use_ocdbt=True, use_zarr3=True),
}
SAME_BYTES = ("npz", "npz compressed", "ours", "safetensors", "HDF5", "PyTorch", "PyTorch, big-endian")
# An alteration that is undone gives these again
FILES = tuple(name for name in WRITERS if not name.startswith("Orbax"))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def written(folder: pathlib.Path, name: str, arrays: Arrays | None = None) -> pathlib.Path:
    """A new checkpoint of one kind in a folder."""
    path = folder / f"checkpoint {name}"
    path = path.with_suffix(".npz") if name.startswith("npz") else path  # NumPy adds it
    WRITERS[name](path, some_arrays() if arrays is None else arrays)
    return path
