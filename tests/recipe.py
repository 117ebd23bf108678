"""Weights and inputs behind the parity fixtures, and the comparison with what they store.

A fixture stores of every array its norm, largest element and eight sampled elements; the
weights are drawn from generators seeded by their names.
"""

import gzip
import json
import math
import pathlib
import zlib

import numpy as np


def load(path: pathlib.Path) -> dict:
    """A fixture (its JSON holds NaN and Infinity literals)."""
    with gzip.open(path) as file:
        return json.load(file)


def weight(name, shape, kind):
    """Parameter `name`: drawn in float64 from a generator seeded by its name, scaled, then cast."""
    if kind == "skip_gain":
        return np.float32(0.2)
    draw = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    if kind == "kernel":
        draw *= math.sqrt(2 / math.prod(shape[:-1]))
    elif kind == "dwkernel":
        draw *= math.sqrt(2 / (shape[0] * shape[1]))
    else:
        offset, factor = {
            "bias": (0, 0.01),
            "gamma": (1, 0.1),
            "gain": (1, 0.1),
            "beta": (0, 0.05),
            "matrix": (0, 0.1),  # projections of a transformer
            "table": (0, 0.5),
            "scale": (1, 0.1),
        }[kind]
        draw = offset + factor * draw
    return draw.astype(np.float32)


def images(count):
    """Images [count,32,32,3] float32 and labels [count]."""
    pixels = np.random.default_rng(7).standard_normal((count, 32, 32, 3)).astype(np.float32)
    return pixels, np.random.default_rng(8).integers(0, 10, count).astype(np.int32)


def tokens(vocabulary, count, length):
    """Tokens and targets [count,length] int32; the targets are a draw of their own, nothing is shifted."""
    draws = (np.random.default_rng(seed).integers(0, vocabulary, (count, length)) for seed in (7, 8))
    return tuple(draw.astype(np.int32) for draw in draws)


def clicks(cardinalities, count, dense):
    """Numbers [count,dense] float32, categories [count,features] int32 and labels [count] int32 of dlrm."""
    numbers = np.random.default_rng(7).standard_normal((count, dense)).astype(np.float32)
    categories = np.random.default_rng(9).integers(0, cardinalities, (count, len(cardinalities)))
    return numbers, categories.astype(np.int32), np.random.default_rng(8).integers(0, 2, count).astype(np.int32)


def mismatch(name, array, stored, rtol):
    """What differs from the stored summary by more than `rtol` of its largest element, or ''."""
    flat = np.asarray(array).reshape(-1)
    nonfinite = int((~np.isfinite(flat)).sum())
    if nonfinite != stored.get("nonfinite", 0):
        return f"{name}: {nonfinite} non-finite elements, expected {stored.get('nonfinite', 0)}"
    if nonfinite:
        return ""
    picks = np.random.default_rng(zlib.crc32(name.encode())).integers(0, flat.size, 8)
    largest = max(stored["max"], 1e-30)
    norm = float(np.linalg.norm(flat.astype(np.float64)))
    off = max(abs(float(flat[i]) - want) / largest for i, want in zip(picks, stored["s"], strict=True))
    off = max(off, abs(norm - stored["l2"]) / max(stored["l2"], 1e-30))
    return f"{name}: off by {off:.1e} of its largest element" if off > rtol else ""
