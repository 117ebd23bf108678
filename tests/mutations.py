"""Damaged and hostile checkpoints and logs: bytes that differ, and structures that lie."""

import io
import json
import pathlib
import random
import shutil
import struct
import warnings
import zipfile

import h5py
import msgpack
import numpy as np
from checkpoints import WRITERS, some_arrays, written
from gguf_files import of_models, write_gguf
from tensorflow_files import write_tensorflow
from torch_files import Call, Global, Persistent, archive_of, pickled

# What stands in JSON, or in a header, where something else was.
ODD = (
    *(0, -1, 1, 7, 2**31, 2**63, 2**64, 10**30, 1.5, float("nan"), True, None, [], {}, [[]], [0], [-3], [2**40, 2**40]),
    *("", "x", "F64", "../x", "/etc/passwd", "O", "V0", "<f4", "int4", "\u0000", "\ud800", "é" * 300),
    *([0] * 70, {"a": []}),
)


def bytes_of(content: bytes, rng: random.Random) -> bytes:
    """A file cut off, with other bytes anywhere or at its beginning, with more bytes, or with zeros in a place."""
    found, where = bytearray(content), rng.randrange(len(content))
    match rng.randrange(6):
        case 0:
            return bytes(found[:where])
        case 1:
            for _ in range(rng.randrange(1, 9)):
                found[rng.randrange(len(found))] = rng.randrange(256)
        case 2:
            where %= 600
            found[where : where + 8] = rng.randbytes(8)
        case 3:
            found[where:where] = rng.randbytes(rng.randrange(1, 40))
        case 4:
            found[where] ^= 1 << rng.randrange(8)
        case 5:
            where = rng.randrange(min(len(found), 4000))
            found[where : where + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f" * 2])
    return bytes(found)


def value_of(value, rng: random.Random):
    """A value of JSON with one or a few things in it that do not belong there."""
    for _ in range(rng.randrange(1, 4)):
        value = _one(value, rng)
    return value


def _one(value, rng):
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {name: one for name, one in value.items() if name != key}
        if kind == 1:
            return {**value, rng.choice(["", "x", key + "/", "a/../b"]): value[key]}
        return {**value, key: _one(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        kind = rng.randrange(8)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], _one(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def json_of(content: bytes, rng: random.Random) -> bytes:
    """JSON whose values, structure, depth or bytes are damaged."""
    kind = rng.randrange(10)
    if kind == 0:
        return bytes_of(content, rng)
    if kind == 1:
        deep = rng.choice([b"[", b'{"a":']) * rng.choice([200, 5000, 100_000])
        return deep if rng.random() < 0.5 else content.replace(b"[", b"[" + deep, 1)
    if kind == 2:
        return json.dumps(rng.choice(ODD)).encode(errors="replace")
    return json.dumps(value_of(json.loads(content), rng)).encode(errors="replace")


def safetensors_of(content: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json_of(content[8 : 8 + length], rng)
    said = rng.choice([len(header)] * 6 + [0, 2**63, length])
    return struct.pack("<Q", said) + header + content[8 + length :]


def npz_of(content: bytes, rng: random.Random) -> bytes:
    """An archive with one member whose header lies, or that is something else."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            member = old.read(name)
            if name == chosen:
                member = npy_of(member, rng)
                name = rng.choice([name] * 6 + ["x.pkl", "../x.npy", names[0], "", "a\0b.npy"])
            with warnings.catch_warnings():  # of a name that stands in it twice
                warnings.simplefilter("ignore")
                new.writestr(zipfile.ZipInfo(name), member, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    return target.getvalue()


HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1099511627776), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (-1,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (), }",
    "{'descr': '<U0', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (0,), }",
    "{'descr': '<c16', 'fortran_order': False, 'shape': (2, 0), }",
    "{'descr': '<m8[ns]', 'fortran_order': False, 'shape': True, }",
    "{'descr': '<f4', 'fortran_order': 3, 'shape': (1.5,), }",
    "{'descr': " + "(" * 3000 + ")" * 3000 + ", 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '" + "x" * 3000 + "', 'fortran_order': False, 'shape': (1,), }",
    "__import__('os')",
    "",
)


def npy_of(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return bytes_of(content, rng)
    header = (rng.choice(HEADERS) + "\n").encode()
    version = rng.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + rng.choice([size, size, size, b"\xff" * len(size)]) + header + content[128:]


def msgpack_of(content: bytes, rng: random.Random) -> bytes:
    """A tree with something in it that Flax would not write."""
    shape = rng.choice([(3,), (-1,), (2**40,), (2**62, 4), "x", None, (1.5,), [[1]], ()])
    name = rng.choice(["float32", "object", "int4", "float8_e8m0fnu", "finfo", "", None, 7, "V3", "M8[s]", "x" * 400])
    array = msgpack.packb((shape, name, rng.randbytes(12)))
    tree = msgpack.unpackb(content, ext_hook=msgpack.ExtType, strict_map_key=False)
    deep = {"w": 1}
    for _ in range(rng.choice([50, 150, 400])):
        deep = {"a": deep}
    chunks = {"__msgpack_chunked_array__": True, "shape": {"0": 3}, "chunks": {"0": msgpack.ExtType(1, array)}}
    odd = rng.choice([msgpack.ExtType(1, array), msgpack.ExtType(3, array), msgpack.ExtType(2, b"\xc1"), deep, chunks,
                      msgpack.ExtType(1, b""), msgpack.ExtType(99, b"abc"), {1: 2, "1": 3, b"1": 4, None: 5},
                      {**chunks, "shape": 3}, [[], {}, [1]], -(2**63), float("nan"), "text"])  # fmt: skip
    tree[rng.choice(["params", "odd", 3, None])] = odd
    packed = msgpack.packb(tree, strict_types=True)
    return packed if rng.random() < 0.7 else bytes_of(packed, rng)


def hdf5_of(content: bytes, rng: random.Random) -> bytes:
    """A file with a dataset of some kind that is no array of numbers, or claims to be large; perhaps damaged."""
    file = io.BytesIO(content)
    with h5py.File(file, "r+") as opened:
        match rng.randrange(12):
            case 0:
                opened.create_dataset("odd", data=["a", "bc"], dtype=h5py.string_dtype())
            case 1:
                opened.create_dataset("odd", (2**20, 2**20), "f4", chunks=(64, 64), compression="gzip")
            case 2:
                opened.create_dataset("odd", (2**40,), "f8")
            case 3:
                opened.create_dataset("odd", data=h5py.Empty("f4"))
            case 4:
                opened.create_dataset("odd", data=np.ones(3, [("a", "f4"), ("b", "i8")]))
            case 5:
                opened.create_dataset("odd", data=np.ones((2, 3), "c8"), chunks=(1, 3), compression="gzip")
            case 6:
                opened["odd"] = h5py.ExternalLink("/etc/passwd", "/x")
            case 7:
                layout = h5py.VirtualLayout((4,), "f4")
                layout[:] = h5py.VirtualSource("/dev/zero", "x", (4,))
                opened.create_virtual_dataset("odd", layout)
            case 8:
                opened.create_dataset("odd", (4,), "f4", external=[("/etc/passwd", 0, 16)])
            case 9:
                opened.create_dataset("odd", data=[opened.ref], dtype=h5py.ref_dtype)
            case 10:
                opened["odd"] = h5py.SoftLink("/odd")
            case 11:
                opened.create_dataset("odd", data=np.ones((3, 2), "V2"), chunks=(2, 2)).attrs["dtype"] = rng.choice(
                    ["bfloat16", 3, "x"]
                )
    return file.getvalue() if rng.random() < 0.6 else bytes_of(file.getvalue(), rng)


def keras_of(content: bytes, rng: random.Random) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            member = old.read(name)
            new.writestr(name, (hdf5_of if rng.random() < 0.5 else bytes_of)(member, rng) if "h5" in name else member)
    return target.getvalue() if rng.random() < 0.6 else bytes_of(target.getvalue(), rng)


def keras(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.write(written(folder, "HDF5"), "model.weights.h5")
    (folder / "checkpoint HDF5").unlink()
    return path


def sharded(folder: pathlib.Path, kind: str = "safetensors", suffix: str = "safetensors") -> pathlib.Path:
    """Some arrays as two files of safetensors or PyTorch, with an index."""
    path, arrays, places = folder / "sharded", some_arrays(), {}
    path.mkdir()
    for number, part in enumerate((list(arrays)[::2], list(arrays)[1::2])):
        file = f"model-{number}.{suffix}"
        WRITERS[kind](path / file, {name: arrays[name] for name in part})
        places |= dict.fromkeys(part, file)
    (path / f"model.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (path / "config.json").write_text("{}")
    return path


def npy(folder: pathlib.Path) -> pathlib.Path:
    np.save(folder / "a.npy", some_arrays()["params/fc/kernel"])
    return folder / "a.npy"


def gguf(folder: pathlib.Path) -> pathlib.Path:
    write_gguf(folder / "a.gguf", of_models())
    return folder / "a.gguf"


def tensorflow(folder: pathlib.Path) -> pathlib.Path:
    (folder / "TensorFlow").mkdir()
    write_tensorflow(folder / "TensorFlow" / "model", some_arrays(), shards=2)
    return folder / "TensorFlow"


def torch_of(content: bytes, rng: random.Random) -> bytes:
    """A file of PyTorch whose pickle lies, with or without what it names; perhaps damaged besides."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    numbers = [0, 1, 3, 40, 1200, -1, 2**31, 2**62, 2**80, 1.5, None, "x", (), True]
    sizes = lambda: tuple(rng.choice(numbers) for _ in range(rng.randrange(4)))  # noqa: E731
    kind = Global(f"torch.{rng.choice(['FloatStorage', 'storage.UntypedStorage', 'QInt8Storage', 'Size'])}")
    where = Persistent(("storage", kind, rng.choice(["0", "2", "99", 3, "../x"]), "cpu", rng.choice(numbers)))
    name = rng.choice(["_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter", "_rebuild_sparse_tensor"])
    arguments = (where, rng.choice(numbers), sizes(), sizes(), False, None, Global("torch.uint16"))
    odd = Call(Global(f"torch._utils.{name}"), arguments[: rng.randrange(8)])
    deep: object = odd
    for _ in range(rng.choice([0, 3, 150, 300])):
        deep = [deep, 1] if rng.random() < 0.5 else {"a": deep}
    match rng.randrange(6):
        case 0:
            members["data.pkl"] = pickled({"a": deep, "b": where})
        case 1:
            members["data.pkl"] = pickled(rng.choice([deep, (odd, 1), Global("os.system"), [], "x", 3]))
        case 2:
            members["data.pkl"] = bytes_of(members["data.pkl"], rng)
        case 3:
            members.pop(rng.choice(list(members)))
        case 4:
            members[rng.choice(["byteorder", "data/1", "constants.pkl", "x/data.pkl"])] = rng.randbytes(5)
        case 5:
            chosen = rng.choice(list(members))
            members[chosen] = bytes_of(members[chosen] or b"x", rng)
    archive = archive_of(members)
    return archive if rng.random() < 0.8 else bytes_of(archive, rng)


def gguf_of(content: bytes, rng: random.Random) -> bytes:
    """A file of GGUF whose header has other counts, lengths, types and offsets."""
    found = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        width = rng.choice([4, 8])
        where = rng.randrange(4, 520)
        odd = rng.choice([0, 1, 3, 8, 9, 33, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
        found[where : where + width] = (odd % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(found)


STRUCTURES = {
    "npz": npz_of,
    "npz compressed": npz_of,
    "ours": npz_of,
    "safetensors": safetensors_of,
    "HDF5": hdf5_of,
    "HDF5 in chunks": hdf5_of,
    "msgpack": msgpack_of,
    "Keras": keras_of,
    "PyTorch": torch_of,
    "npy": npy_of,
    "GGUF": gguf_of,
}
KINDS = (*STRUCTURES, "sharded", "sharded PyTorch", "TensorFlow", "Orbax OCDBT", "Orbax plain", "Orbax Zarr 3")


def source(folder: pathlib.Path, kind: str) -> pathlib.Path:
    """A sound checkpoint of a kind."""
    made = {"Keras": keras, "npy": npy, "GGUF": gguf, "sharded": sharded, "TensorFlow": tensorflow}
    made["sharded PyTorch"] = lambda folder: sharded(folder, "PyTorch", "bin")
    return made.get(kind, lambda folder: written(folder, kind))(folder)


def mutate(sound: pathlib.Path, path: pathlib.Path, kind: str, number: int) -> None:
    """Write a damaged copy; the same for the same number."""
    rng = random.Random(f"{kind} {number}")
    if sound.is_file():
        content = sound.read_bytes()
        path.write_bytes((STRUCTURES[kind] if number % 2 else bytes_of)(content, rng))
        return
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound, path)
    files = sorted(one for one in path.rglob("*") if one.is_file() and one.stat().st_size)
    chosen = rng.choice(files)
    content = chosen.read_bytes()
    if rng.random() < 0.05:
        chosen.unlink()
    elif content[:1] == b"{":
        chosen.write_bytes(json_of(content, rng))
    elif chosen.suffix == ".safetensors" and rng.random() < 0.5:
        chosen.write_bytes(safetensors_of(content, rng))
    else:
        chosen.write_bytes(bytes_of(content, rng))
