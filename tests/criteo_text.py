"""Text of the format of Criteo's challenge, and its numbers: `python tests/criteo_text.py DIR/train.txt 100000`."""

import pathlib
import sys

import numpy as np

from fault_injection.data.criteo_text import CATEGORIES, NUMBERS

MISSING = 0.1  # share of the fields


def rows(count, seed=0):
    """int64 [count,40] as such a file has them: label, numbers, categories; −10¹² where a field is missing."""
    random = np.random.default_rng(seed)
    numbers = np.expm1(random.random((count, NUMBERS)) * np.log(10**5)).astype(np.int64) - 3
    # Of up to a million categories the first are common; a third of them speaks for a click.
    ranks = (np.logspace(1, 6, CATEGORIES) ** random.random((count, CATEGORIES))).astype(np.int64)
    categories = ranks * 2654435761 % 2**32
    score = np.mean(ranks % 3 == 0, axis=1) * 24 - 8 + np.mean(np.log(numbers + 4.0), axis=1) - 7
    labels = (random.random(count) < 1 / (1 + np.exp(-score)))[:, None]
    found = np.concatenate([labels, numbers, categories], axis=1).astype(np.int64)
    found[:, 1:][random.random((count, NUMBERS + CATEGORIES)) < MISSING] = -(10**12)
    return found


def line(row):
    """One line without its newline."""
    fields = ["" if value == -(10**12) else str(value) for value in row[: 1 + NUMBERS]]
    return "\t".join([*fields, *("" if value < 0 else f"{value:08x}" for value in row[1 + NUMBERS :])])


def write(path, count, seed=0):
    """Write `count` lines, some thousand at a time; returns the labels that are 1 in the first six sevenths."""
    positive, trained = 0, count - count // 7
    with path.open("w") as file:
        for start in range(0, count, 20_000):
            part = rows(min(20_000, count - start), [seed, start])
            positive += int(part[: max(0, trained - start), 0].sum())
            file.write("".join(f"{line(row)}\n" for row in part.tolist()))
    return positive


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
