"""The embedded table: UCI Adult, 48,842 people of the US census of 1994, and whether each earns above 50K."""

import csv
import gzip
import hashlib
import io
import pathlib

import numpy as np

from .clicks import Clicks

FILE = pathlib.Path(__file__).with_name("adult.csv.gz")  # adult.md says whence, and its licence
NUMBERS = ("age", "fnlwgt", "educational-num", "capital-gain", "capital-loss", "hours-per-week")
LOGGED = ("capital-gain", "capital-loss")  # nearly always 0, and else in the thousands
CATEGORIES = (
    *("workclass", "education", "marital-status", "occupation"),
    *("relationship", "race", "gender", "native-country"),
)
SIZES: tuple[int, ...] = (9, 16, 7, 15, 6, 5, 2, 42)  # different values of each category
LABEL, POSITIVE = "income", ">50K"
EVERY = 5  # each fifth row is a test example


def load_adult(folder: pathlib.Path | None, sizes: tuple[int, ...] = SIZES) -> Clicks:
    """Load 39,073 training and 9,769 test examples: every fifth row, the first among them, is a test example.

    A number has the training part's mean subtracted and is divided by its standard deviation; those
    of LOGGED are log(1 + x) before.  A category is the place of its word in alphabetical order,
    modulo its size; `?`, which stands for unknown, is a word like the others.

    Args:
      folder: ignored, because the table comes with this package.
      sizes: of the tables, for each category.

    Reference: Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996, doi 10.24432/C5XW20.

    >>> clicks = load_adult(None)
    >>> clicks.train.shape, clicks.test.shape, round(clicks.positive, 3), round(clicks.chance, 3)
    ((39073, 15), (9769, 15), 0.239, 0.761)
    """
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(FILE.read_bytes()).decode("ascii"))))
    tested = np.arange(len(rows)) % EVERY == 0
    stored = np.zeros((len(rows), 1 + len(NUMBERS) + len(CATEGORIES)), np.int32)
    stored[:, 0] = [row[LABEL] == POSITIVE for row in rows]
    for column, name in enumerate(NUMBERS, 1):
        values = np.array([row[name] for row in rows], np.float64)
        values = np.log1p(values) if name in LOGGED else values
        known = values[~tested]
        stored[:, column] = ((values - known.mean()) / known.std()).astype(np.float32).view(np.int32)
    for column, (name, size) in enumerate(zip(CATEGORIES, sizes, strict=True), 1 + len(NUMBERS)):
        stored[:, column] = np.unique([row[name] for row in rows], return_inverse=True)[1] % size
    train, test = stored[~tested], stored[tested]
    sha256 = hashlib.sha256(train.tobytes() + test.tobytes()).hexdigest()
    return Clicks(train, test, lambda columns: columns, float(train[:, 0].mean()), sha256)
