"""What the slow tests leave out by default: cases of a statement that others prove too, and that take minutes.

`PROOFS=whole python -m pytest -m slow` has them all.
"""

import os
from collections.abc import Iterable, Sequence

import pytest

WHOLE = os.environ.get("PROOFS") == "whole"
only_whole = pytest.mark.skipif(not WHOLE, reason="takes minutes, and others prove it too: PROOFS=whole runs it")


def many(count: int) -> int:
    """How many cases drawn from a seed: all, or by default a quarter of them."""
    return count if WHOLE else count // 4


def some(cases: Sequence, kept: Iterable) -> list:
    """The cases that run: all, or by default those that are kept."""
    kept = list(kept)
    assert all(case in cases for case in kept)
    return [case for case in cases if WHOLE or case in kept]
