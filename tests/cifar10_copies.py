"""CIFAR-10 as its official copies are laid out, of random images."""

import pickle
import tarfile

import numpy as np
import pytest

from fault_injection.data.cifar10 import load_cifar10

PARTS = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
RECORD = 3073


@pytest.fixture(scope="session")
def copies(tmp_path_factory):
    """One random data set of full size in the four official layouts, and its records [6,10000,3073]."""
    folder = tmp_path_factory.mktemp("cifar10")
    draw = np.random.default_rng(0)
    # Repetitive, so that compressing is fast; two pixels of each plane make every record another.
    records = np.tile(draw.integers(0, 256, (6, 8, RECORD), np.uint8), (1, 1250, 1))
    records[..., 0] = draw.integers(0, 10, (6, 10_000))
    records[..., 7::1024], records[..., 500::1024] = (
        np.arange(10_000)[None, :, None] >> shift & 255 for shift in (0, 8)
    )
    layouts = {"binary": folder / "cifar-10-batches-bin", "python": folder / "cifar-10-batches-py"}
    for layout in layouts.values():
        layout.mkdir()
    for part, content in zip(PARTS, records, strict=True):
        content.tofile(layouts["binary"] / f"{part}.bin")
        batch = {b"labels": content[:, 0].tolist(), b"data": content[:, 1:].copy(), b"batch_label": part.encode()}
        (layouts["python"] / part).write_bytes(pickle.dumps(batch))
    for name, layout in list(layouts.items()):
        layouts[f"{name} archive"] = folder / f"cifar-10-{name}.tar.gz"
        with tarfile.open(layouts[f"{name} archive"], "w:gz", compresslevel=1) as archive:
            archive.add(layout, layout.name)
    return layouts, records


@pytest.fixture(scope="session")
def images(copies):
    return load_cifar10(copies[0]["binary"])
