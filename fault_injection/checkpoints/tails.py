"""How likely it is that a sample's outermost elements lie as far from the others as they do.

The model: the logarithms of magnitudes fall off at least exponentially beyond those that were seen, which is a Pareto
tail of the magnitudes.  Its scale is estimated by the `FITTED` elements next to the outermost ones: Hill's estimator,
of a sample that is censored where the outermost ones begin.  It is never taken for smaller than a floor, and what the
estimate does not know is in the prediction: of a scale that is known by m excesses of mean h, one more excess is
beyond r with the probability (1 + r / (m h))^-m.

Every distribution whose tail is lighter than Pareto's (normal, Laplace, Student's, logarithms of normals) falls off
faster, so that the probability is too large rather than too small.

Reference: Hill, Annals of Statistics 3 (1975) 1163; Weissman, JASA 73 (1978) 812 (probabilities beyond the sample);
Geisser, Predictive Inference (1993), chapter 3 (the prediction).
"""

import numpy as np

FITTED = 50  # excesses that the scale is estimated by
LEAST = 8  # of these, below which nothing is said


def outermost(
    logs: np.ndarray, most: int, floor: float, limits: np.ndarray, least: int = LEAST
) -> tuple[int, np.ndarray]:
    """How many of a sample's outermost elements do not belong to it.

    Of k elements that are beyond all others together, the innermost is asked first: the gap between it and the next
    element has to be improbable.  Under the model the gap of k elements is k times smaller than that of one, so that
    to ask for several k adds next to nothing to the probability of a false finding.

    Args:
      logs: float64 [n], in descending order: logarithms of the largest magnitudes, or negative ones of the smallest.
      most: elements that are asked for.
      floor: the smallest mean excess that is believed.
      limits: float64 [n], the largest probability of each element that is a finding.
      least: excesses without which nothing is said.

    Returns:
      How many, and the probability of each, float64 [k].

    >>> logs = np.log(np.sort(np.random.default_rng(0).normal(size=1000).__abs__())[::-1])
    >>> outermost(logs[:80], 16, 0.25, np.full(80, 1e-6))[0]
    0
    >>> count, chance = outermost(np.concatenate([[88.0], logs[:79]]), 16, 0.25, np.full(80, 1e-6))
    >>> count, bool(chance[0] < 1e-20)
    (1, True)
    """
    for count in range(min(most, len(logs) - 1 - least), 0, -1):
        inner = logs[count : count + 1 + FITTED]
        chances = beyond(logs[:count] - inner[0], inner, floor)
        if chances[-1] <= limits[count - 1]:
            return count, chances
    return 0, np.empty(0)


def beyond(excess: np.ndarray, inner: np.ndarray, floor: float) -> np.ndarray:
    """float64 [k]: the probability that one more element lies so far beyond the outermost.

    Args:
      excess: float64 [k], by how much logarithms are larger than that of `inner[0]`.
      inner: float64 [m + 1], logarithms in descending order.
      floor: the smallest mean excess that is believed.
    """
    fitted = len(inner) - 1
    over = inner - inner[-1]
    # Of the outermost elements it counts that they are beyond inner[0], not how far: a sample that is censored there.
    mean = max(float(np.sum(over) + len(excess) * over[0]) / fitted, floor)
    return np.asarray((1 + excess / (fitted * mean)) ** -fitted)
