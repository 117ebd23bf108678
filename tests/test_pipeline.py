"""How a network is split into the stages of a pipeline; what they compute is in test_strategies.py."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_injection.explicit.pipeline import split


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=7), stages=st.integers(1, 4))
def test_the_largest_stage_is_as_small_as_any_split_makes_it(sizes, stages):
    if len(sizes) < stages:
        with pytest.raises(ValueError, match="cannot be split"):
            split(sizes, stages)
        return
    counts = split(sizes, stages)
    assert len(counts) == stages and sum(counts) == len(sizes) and min(counts) >= 1

    def smallest(sizes, stages):
        if stages == 1:
            return sum(sizes)
        cuts = range(1, len(sizes) - stages + 2)
        return min(max(sum(sizes[:cut]), smallest(sizes[cut:], stages - 1)) for cut in cuts)

    ends = np.cumsum([0, *counts])
    assert max(sum(sizes[a:b]) for a, b in itertools.pairwise(ends)) == smallest(sizes, stages)
