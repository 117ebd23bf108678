"""Dr. DNA's values once more, written differently: of one example, element by element, on the host."""

import dataclasses
import math

import numpy as np

from fault_injection.models.observe.dr_dna import BEYOND_LAYER, BEYOND_PLACES, PLACES, SUM


def in_float64(histograms):
    """All of its arrays."""
    return dataclasses.replace(histograms, **{k: np.asarray(v, np.float64) for k, v in vars(histograms).items()})


def scalar_sum(histograms, x):
    """(S − Ŝ)/Ŝ of one example's samples [L,SAMPLED], place by place in float64."""
    h = in_float64(histograms)
    total, found = 0.0, []
    for j, values in enumerate(x[:, :PLACES].astype(np.float64)):
        values = np.where(np.isnan(values), np.inf, values)
        for i, value in enumerate(values):
            inside = h.low[j, i] <= value <= h.high[j, i]
            edges = np.linspace(h.low[j, i], h.high[j, i], 11)
            total += 1 - (h.frequency[j, i] @ np.histogram([value], edges)[0] if inside else 0)
        edges = np.linspace(h.layer_low[j], h.layer_high[j], 11)
        inside = np.histogram(values[(values >= edges[0]) & (values <= edges[-1])], edges)[0]
        here = np.array([np.sum(values < edges[0]), *inside, np.sum(values > edges[-1])]) / len(values)
        usual = np.diff(h.below[j], prepend=0, append=1)
        # Of two histograms on a line: what has to be carried across each edge.
        total += sum(abs((here - usual)[:edge].sum()) for edge in range(1, len(here)))
        most, least = (int(at) for at in h.extremes[j])
        total += 0.5 * (values[most] != values.max()) + 0.5 * (values[least] != values.min())
        found.append((total - h.expected[j]) / h.expected[j])
    return found


def scalar_places(histograms, x):
    """The distance of each layer's farthest place, in Python's floats."""
    found = []
    for values, low, high in zip(x.tolist(), histograms.low.tolist(), histograms.high.tolist(), strict=True):
        farthest = 0.0
        for value, least, most in zip(values[:PLACES], low, high, strict=True):
            if math.isnan(value) or math.isinf(value):
                farthest = math.inf
            elif value > most:
                farthest = max(farthest, (value - most) / (most - least))
            elif value < least:
                farthest = max(farthest, (least - value) / (most - least))
        found.append(farthest)
    return found


def scalar_layer(histograms, x):
    """By how much the largest value exceeds the profile's, as a share of it."""
    found = []
    for values, usual in zip(x.tolist(), histograms.largest.tolist(), strict=True):
        here = math.inf if math.isnan(values[PLACES]) else values[PLACES]
        found.append(max(here - usual, 0.0) / (usual or 1.0))
    return found


SCALAR = {BEYOND_PLACES: scalar_places, BEYOND_LAYER: scalar_layer, SUM: scalar_sum}
