"""The values of Dr. DNA on random samples: those of a scalar implementation, and what they see of a late layer."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scalar_dr_dna import SCALAR

from fault_injection.detection.detector import told
from fault_injection.detection.dr_dna import DrDna, DrDnaPublished, profile_of
from fault_injection.models.observe import dr_dna
from fault_injection.models.observe.dr_dna import BEYOND, BEYOND_LAYER, PLACES, SAMPLED, VALUES, Profile, sampled


def made_up(seed, examples=64):
    """A profile of random numbers in three layers, the last of them constant, and samples of as many examples again."""
    random = np.random.default_rng(seed)
    scale = np.float32([1, 10.0 ** random.integers(-6, 7), 0])[:, None]
    x = random.normal(size=(2, examples, 3, SAMPLED)).astype(np.float32) * scale + np.float32(random.integers(-2, 3))
    x[..., PLACES] = np.abs(x).max(-1) * random.uniform(1, 3, x.shape[:-1])
    return profile_of(Profile(("a", "b", "c"), np.zeros((3, PLACES), np.int32)), [x[0]]), x[1]


@pytest.mark.parametrize("seed", range(8))
def test_distances_are_those_of_a_scalar_implementation_on_random_samples(seed):
    profile, x = made_up(seed)
    random = np.random.default_rng(seed + 100)
    x *= np.where(random.random(x.shape) < 0.01, np.float32(10.0) ** random.integers(-30, 31, x.shape), 1)
    special = np.float32([np.nan, -np.nan, np.inf, -np.inf, 0, -3e38, 3e38, 1e-45])
    at = random.integers(0, len(x), 40), random.integers(0, 3, 40), random.integers(0, PLACES, 40)
    x[at] = random.choice(special, 40)
    x[: len(special), random.integers(0, 3), PLACES] = np.abs(special)
    for name in BEYOND:
        with np.errstate(over="ignore"):
            expected = np.array([SCALAR[name](profile.histograms, one) for one in x]).astype(np.float32)
        found = np.asarray(VALUES[name](profile.histograms, x))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert not np.isnan(found).any() and np.isinf(found).any() and (found == 0).any()


def test_a_wrong_number_in_a_late_layer_is_seen_and_the_published_sum_does_not_see_it():
    random = np.random.default_rng(0)
    usual = random.normal(size=(512, 20, SAMPLED)).astype(np.float32)
    usual[..., PLACES] = np.abs(usual[..., :PLACES]).max(-1)
    layers = tuple(map(str, range(20)))
    profile = profile_of(Profile(layers, np.zeros((20, PLACES), np.int32)), [usual[:256]])
    x = {layer: usual[None, 256:, at] for at, layer in enumerate(layers)}

    def alarms(kind, samples):
        detector = kind.of(profile)
        found = dr_dna.largest_values(dataclasses.replace(profile, told=kind.signals), samples)
        names = [f"{name}/{layer}" for name in found for layer in layers]
        return detector, told(
            0, names, *(v := np.concatenate([*found.values()]), detector.update(detector.init(names), v)[1])
        )

    assert alarms(DrDna, x)[1] == alarms(DrDnaPublished, x)[1] == []
    for at, place in ((19, 3), (19, PLACES), (0, 3)):  # of the last layer, beside its places, and of the first
        struck = {layer: one.copy() for layer, one in x.items()}
        struck[layers[at]][0, 7, [place, PLACES]] = 1e30
        detector, found = alarms(DrDna, struck)
        assert detector.first(found) == layers[at]
        assert {alarm.tensor for alarm in found} >= {f"{BEYOND_LAYER}/{layers[at]}"}
        assert alarms(DrDnaPublished, struck)[1] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_kept_of_an_activation_are_its_places_and_its_largest_value(dtype):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 3, 70, 71)), dtype).at[1, 2, 5, 6].set(np.nan).at[0, 1, 0, 0].set(-np.inf)
    kept = np.asarray(sampled(x, np.arange(PLACES) * 7))
    plain = np.asarray(x, np.float32).reshape(2, 3, -1)
    np.testing.assert_array_equal(kept[..., :PLACES], plain[..., np.arange(PLACES) * 7])
    largest = [[math.nan if np.isnan(row).any() else max(map(abs, row.tolist())) for row in rows] for rows in plain]
    np.testing.assert_array_equal(kept[..., PLACES], largest)
