"""The largest absolute value keeps a NaN, whatever the size and the type; so does everything that is made of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fault_injection.detection.asd_activations import AsdActivations
from fault_injection.detection.nonfinite import NonFinite
from fault_injection.detection.transformation import alarms, watch
from fault_injection.models.largest import largest, largest_across, largest_along
from fault_injection.models.precision import largest_values, narrowed, remembered, scale
from fault_injection.seam.digest import digest, magnitude

SIZES = (4_095, 4_096, 300_000)  # XLA's maximum on CPUs loses a NaN from the second on
NARROW = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")
KINDS = ("float32", "float64", "bfloat16", "float16", *NARROW, "float8_e5m2fnuz", "float8_e8m0fnu", "complex64")
WITHOUT_NAN = ("bool", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "int8", "uint16", "int32", "int64", "uint64")


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_of_any_type_and_place_is_the_largest(kind):
    for size in SIZES if kind in ("float32", "float64", "float16") else SIZES[1:2]:
        with jax.enable_x64(True):
            told = jax.jit(lambda tensor: (largest(tensor), magnitude([tensor])[0]))
            numbers = np.full(size, 0.5, np.float32).astype(kind)
            assert [*map(float, told(numbers))] == [0.5, 0.5]
            for place in (0, size // 3, size - 1):
                one = numbers.copy()
                one[place] = np.nan
                assert np.isnan(told(one)[0]) and np.isnan(told(one)[1])


def test_the_largest_of_finite_numbers_is_that_of_numpy():
    for size in (1, 33, 5_000):
        numbers = np.random.default_rng(size).standard_normal(size, np.float32)
        assert largest(jnp.asarray(numbers)) == np.abs(numbers).max()
    assert largest(jnp.zeros((3, 0))) == 0
    assert largest(jnp.complex64([3 - 4j])) == 4  # each part by itself
    with jax.enable_x64(True):
        assert largest(jnp.float64([-1e300])) == 1e300
        assert magnitude([jnp.float64([-1e300]), jnp.float64([jnp.inf])]).tolist() == [jnp.finfo("float32").max, np.inf]


@pytest.mark.parametrize("kind", [*KINDS, *WITHOUT_NAN, "complex128"])
def test_a_digest_sees_every_bit_of_every_type(kind):
    with jax.enable_x64(True):
        told = jax.jit(lambda leaf: (digest([leaf]), magnitude([leaf[:0]]), digest([leaf[:0]])))
        one = np.ones(3).astype(kind)
        other = one.copy()
        other[1] = 0.5 if kind.startswith("float") else 0
        known, *none = told(one)
        assert known != told(other)[0] and none == [0, 0]
        if kind.startswith(("complex", "float4")):  # and the sign of a zero
            assert told(np.zeros(3).astype(kind))[0] != told((-np.zeros(3)).astype(kind))[0]


@pytest.mark.parametrize("size", SIZES)
def test_no_nan_passes_a_detector_in_an_optimizer(size):
    gradients = {"w": jnp.full(size, 0.1).at[size // 2].set(jnp.nan)}
    for detector in (NonFinite(), AsdActivations())[: 1 + (size == SIZES[1])]:
        kinds = [kind for kind in detector.signals if kind.startswith("largest/gradients")] or None
        optimizer = watch(detector, optax.sgd(1.0), signals=kinds)
        state = optimizer.init(gradients)
        assert alarms(optimizer.update(gradients, state)[1]).alarms == 1


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_nan_is_remembered_as_one_among_the_largest_values_of_eight_bits(size):
    operand = jnp.full((size,), 3.0, "bfloat16")
    formats = ("float8_e4m3fn", "float8_e5m2")
    now = largest_values(operand, operand.at[7].set(jnp.nan))
    assert now[0] == 3 and jnp.isnan(now[1])
    assert scale(remembered(jnp.zeros((2, 4)), now), formats).tolist() == [float(jnp.float32(3) / jnp.float32(448)), 1]
    assert jnp.isnan(narrowed(operand.at[7].set(jnp.nan), jnp.float32(1), formats[0])[7].astype(jnp.float32))


def test_a_nan_of_one_part_or_device_is_that_of_all():
    parts = jnp.ones((2, 5_000)).at[1, 4_321].set(jnp.nan)
    assert jnp.isnan(largest_along(parts)[4_321]) and largest_along(parts)[0] == 1
    across = jax.vmap(lambda part: largest_across(part, "devices"), axis_name="devices")
    assert jnp.isnan(across(parts)[:, 4_321]).all() and (across(parts)[:, :4_321] == 1).all()
