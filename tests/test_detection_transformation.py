"""A detector in a user's own loop, as an Optax transformation: decides as beside a run, withholds all or nothing."""

# Above 400 lines: every law of `watch` is about the same few trees.

import contextlib
import dataclasses
import io
import re
from typing import ClassVar

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from fault_injection.detection.detector import STOP, WARN, Alarms, namespace
from fault_injection.detection.nonfinite import NonFinite
from fault_injection.detection.spike import GradientNorm, LossSpike
from fault_injection.detection.transformation import WatchState, alarms, watch
from fault_injection.explicit.optimizers import keras_adam

RANDOM = np.random.default_rng(0)
PARAMS = {
    "hidden": {"kernel": jnp.float32(RANDOM.normal(size=(4, 8))), "bias": jnp.zeros(8)},
    "head": {"kernel": jnp.float32(RANDOM.normal(size=(8, 1)))},
}
INPUTS = jnp.float32(RANDOM.normal(size=(50, 16, 4)))
GRADIENTS = "largest/gradients_of_parameters"
QUICK = GradientNorm(warm_up=5)


def loss(params, inputs):
    """Of a small network that is to give the product of the first two inputs."""
    hidden = jnp.tanh(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return jnp.mean(((hidden @ params["head"]["kernel"])[:, 0] - inputs[:, 0] * inputs[:, 1]) ** 2)


def trained(*optimizer, steps=range(50), factors=None, together=False):
    """Parameters and state of the optimizer after each step, of a loop as users write it; `factors` are faults.

    Args:
      optimizer: transformations to be chained.
      together: whether a step is one compiled program; else gradients and each transformation are programs.
    """
    compiled, alone = (jax.jit, lambda f: f) if together else (lambda f: f, jax.jit)

    @alone
    def gradients_of(params, inputs, factor):
        value, gradients = jax.value_and_grad(loss)(params, inputs)
        return value, jax.tree.map(lambda g: g * factor, gradients)

    parts = [alone(optax.with_extra_args_support(part).update) for part in optimizer]
    apply = alone(optax.apply_updates)

    @compiled
    def step(params, states, inputs, factor):
        value, updates = gradients_of(params, inputs, factor)
        new = []
        for part, state in zip(parts, states, strict=True):
            updates, state = part(updates, state, params, value=value)
            new.append(state)
        return apply(params, updates), new

    params, states, seen = PARAMS, [part.init(PARAMS) for part in optimizer], []
    for i in steps:
        params, states = step(params, states, INPUTS[i], jnp.float32((factors or {}).get(i, 1)))
        seen.append((params, states[0] if len(states) == 1 else tuple(states)))
    for program in [step] if together else parts:
        assert program._cache_size() == 1, "a state that changes its types compiles anew"
    return seen


def assert_same_bits(some, others):
    assert jax.tree.structure(some) == jax.tree.structure(others)
    for one, other in zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True):
        assert one.dtype == other.dtype and np.asarray(one).tobytes() == np.asarray(other).tobytes()


def standard(optimizer):
    """Optax's Adam raises floats to integer powers, which strict promotion refuses."""

    def update(*args, **extra):
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(*args, **extra)

    return optax.GradientTransformation(optimizer.init, update)


OPTIMIZERS = {
    "adamw": standard(optax.adamw(1e-2)),
    "keras_adam": keras_adam(1e-2),
    "clipped momentum": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)),
}


# ---- Without an alarm ---------------------------------------------------------------------


@pytest.mark.parametrize("signals", [None, [GRADIENTS, "loss"]], ids=["gradient_norm", "nonfinite"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_no_bit_changes_without_an_alarm(optimizer, signals):
    detector = NonFinite() if signals else GradientNorm(deviations=1e3)
    plain = trained(optimizer)
    chained = trained(watch(detector, signals=signals), optimizer)
    around = trained(watch(detector, optimizer, signals=signals))
    for (params, state), (beside, pair), (within, outer) in zip(plain, chained, around, strict=True):
        assert_same_bits((params, state), (beside, pair[1]))
        assert_same_bits((params, state), (within, outer.inner))
    for found in (alarms(chained[-1][1]), alarms(around[-1][1])):
        assert (found.steps, found.alarms, found.withheld, found.level, found.first) == (50, 0, 0, 0, -1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_in_one_program_with_the_step_only_rounding_differs_without_an_alarm(optimizer):
    """A compiler may fuse, and so round, a program with a select in it differently."""
    (plain, state), detector = trained(optimizer, together=True)[-1], GradientNorm(deviations=1e3)
    chained, pair = trained(watch(detector), optimizer, together=True)[-1]
    around, outer = trained(watch(detector, optimizer), together=True)[-1]
    for found in ((chained, pair[1]), (around, outer.inner)):
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), found, (plain, state))
    assert alarms(pair).alarms == outer.alarms == 0


# ---- With one -----------------------------------------------------------------------------

FAULTS = {"NaN": np.nan, "infinity": np.inf, "a million": 1e6}


@pytest.mark.parametrize("factor", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_withheld_step_is_as_if_it_had_never_been(optimizer, factor):
    """Parameters and the inner state stay, bit by bit, and training goes on as without that step."""
    seen = trained(watch(QUICK, optimizer), factors={30: factor}, together=True)
    without = trained(watch(QUICK, optimizer), steps=[i for i in range(50) if i != 30], together=True)
    inner = [[(params, state.inner) for params, state in steps] for steps in (seen[:30] + seen[31:], without)]
    assert_same_bits(*inner)
    assert_same_bits((seen[30][0], seen[30][1].inner), (seen[29][0], seen[29][1].inner))
    at, end = seen[30][1], seen[-1][1]
    assert (at.steps, at.alarms, at.withheld, at.level, at.first) == (31, 1, 1, STOP, 30)
    assert at.excess > 1 and (np.isfinite(factor) or np.isinf(at.excess))
    assert (end.alarms, end.level, end.first) == (1, 0, 30)


@pytest.mark.parametrize("factor", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_in_a_chain_the_gradients_of_the_step_are_zero(optimizer, factor):
    """So the optimizer does what it does with gradients of zero: its moments decay."""
    watched = trained(watch(QUICK), optimizer, factors={30: factor})
    zeroed = trained(optimizer, factors={30: 0.0})
    assert_same_bits([(params, state[1]) for params, state in watched], zeroed)
    assert alarms(watched[-1][1]).first == 30


def test_the_loss_is_watched_by_value():
    optimizer = optax.chain(optax.chain(watch(LossSpike(warm_up=3))), optax.sgd(1.0))
    state = optimizer.init({"w": jnp.zeros(2)})
    for value, passes in [
        (2.0, True),
        (2.1, True),
        (1.9, True),
        (2.0, True),
        (900.0, False),
        (np.nan, False),
        (2, True),
    ]:
        updates, state = optimizer.update({"w": jnp.ones(2)}, state, value=value)
        np.testing.assert_array_equal(updates["w"], -jnp.ones(2) if passes else jnp.zeros(2))
    assert (alarms(state).alarms, alarms(state).first) == (2, 4)


def test_extra_arguments_reach_the_inner_transformation():
    def update(updates, state, params=None, *, value):
        return jax.tree.map(lambda g: g * value, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda params: (), update)
    optimizer = watch(GradientNorm(), inner)
    updates, _ = optimizer.update({"w": jnp.ones(2)}, optimizer.init({"w": jnp.zeros(2)}), value=3.0)
    np.testing.assert_array_equal(updates["w"], [3, 3])


@dataclasses.dataclass(frozen=True)
class Limits:
    """Warns above 10, stops above 100; remembers what it was shown."""

    signals: ClassVar[tuple[str, ...]] = ("gradient_norm", "norm/gradients", "largest/gradients")
    logged: ClassVar[str] = ""
    names: list = dataclasses.field(default_factory=list)

    def init(self, names):
        self.names[:] = names
        return {"last": np.zeros(len(names)), "steps": np.int64(0)}

    def update(self, memory, values):
        xp = namespace(values)
        level = xp.where(values > 100, STOP, xp.where(values > 10, WARN, 0)).astype("int32")
        return {"last": values, "steps": memory["steps"] + 1}, Alarms(level, xp.full_like(values, 100), values / 100)


@pytest.mark.parametrize(
    ("level", "withheld"), [(0, [0, 0, 0, 0]), (STOP, [0, 0, 1, 1]), (WARN, [0, 1, 1, 1])], ids=["tell", "stop", "warn"]
)
def test_the_level_says_which_alarms_withhold(level, withheld):
    optimizer = watch(Limits(), level=level, signals=["largest/gradients"])
    state = optimizer.init({"a": 0.0, "b": 0.0})
    found = []
    for a, b in [(1.0, 2.0), (20.0, 1.0), (1.0, 200.0), (20.0, 200.0)]:
        updates, state = optimizer.update({"a": a, "b": b}, state)
        found.append((int(updates["a"] == 0), int(state.level)))
        np.testing.assert_allclose(state.excess, max(a, b) / 100, rtol=1e-6)
    assert found == list(zip(withheld, [0, WARN, STOP, STOP], strict=True))
    assert (state.alarms, state.withheld, state.first) == (3, sum(withheld), 1)


# ---- It decides as the detector does on the host ------------------------------------------

usual = st.floats(0.5, 2.0, width=32)
unusual = st.sampled_from([0.0, -1.0, 3.0, 20.0, 1e6, 1e19, 3e38, np.nan, np.inf, -np.inf])
MODERATE = GradientNorm(window=10, warm_up=8), LossSpike(window=10, warm_up=8)


@jax.jit
def in_a_scan(values):
    """Levels, excesses and passed gradients of watching gradients and losses of these values, step by step."""
    both = optax.chain(watch(MODERATE[0]), watch(MODERATE[1]))

    def step(state, value):
        gradients = {"w": jnp.stack([value, jnp.zeros_like(value)])}  # of one, √x² would become |x|
        updates, state = both.update(gradients, state, value=value)
        return state, ([part.level for part in state], [part.excess for part in state], updates["w"][0])

    return jax.lax.scan(step, both.init({"w": jnp.zeros(2)}), values)[1]


def on_the_host(detector, values):
    """Levels and excesses in float32."""
    memory = jax.tree.map(lambda part: part.astype(np.float32) if part.dtype == float else part, detector.init(["x"]))
    found = []
    for value in values:
        memory, said = detector.update(memory, value.reshape(1))
        assert {part.dtype for part in memory} == {np.dtype(np.float32), np.dtype(np.int32)}
        assert said.excess.dtype == said.threshold.dtype == np.float32
        found.append((int(said.level[0]), float(said.excess[0])))
    return np.array(found).T


@settings(max_examples=150)
@given(st.lists(usual | usual | usual | unusual, min_size=40, max_size=40))
def test_decisions_are_those_of_the_detector_on_the_host(values):
    losses = np.float32(values)
    levels, excesses, passed = jax.tree.map(np.asarray, in_a_scan(jnp.asarray(losses)))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(losses * losses)
        # The first transformation zeroes what the second is given, but that one watches the loss.
        expected = on_the_host(MODERATE[0], norms), on_the_host(MODERATE[1], losses)
    for (level, excess), found, found_excess in zip(expected, levels, excesses, strict=True):
        assume(not np.any(abs(excess - 1) < 1e-4))  # compilers may contract a product and a sum
        np.testing.assert_array_equal(found, level)
        np.testing.assert_allclose(found_excess, excess, rtol=1e-3, atol=1e-3)
    alarm = (levels[0] > 0) | (levels[1] > 0)
    np.testing.assert_array_equal(passed, np.where(alarm, 0, losses))


def test_a_value_without_a_square_does_not_blind_the_detector():
    """In float32 the variance would be infinite ever after."""
    losses = jnp.array([1.0] * 4 + [3e38] + [1.0] * 20 + [1e3], jnp.float32)
    levels, _, _ = in_a_scan(losses)
    assert levels[1][-1] == STOP


# ---- Any pytree, any type -----------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Module:
    """As Equinox's: attributes, some without an array."""

    weight: jax.Array | None
    bias: jax.Array | None
    steps: jax.Array | None
    layers: list


def test_leaves_are_named_by_path_and_those_without_numbers_are_passed_over():
    detector = Limits()
    optimizer = watch(detector, signals=["norm/gradients", "largest/gradients"])
    inner = Module(jnp.ones((2, 2), jnp.bfloat16), None, jnp.int32(3), [])
    model = Module(jnp.full(2, 3 + 4j), jnp.ones(0), None, [inner, {"scale": jnp.float16(600)}])
    state = optimizer.init(model)
    paths = ["weight", "bias", "layers/0/weight", "layers/1/scale"]
    assert detector.names == [f"{kind}/gradients/{path}" for kind in ("norm", "largest") for path in paths]
    gradients = dataclasses.replace(
        model, layers=[dataclasses.replace(inner, steps=np.zeros((), jax.dtypes.float0)), model.layers[1]]
    )
    updates, state = optimizer.update(gradients, state, model)
    expected = [5 * 2**0.5, 0, 2, 600, 5, 0, 1, 600]
    np.testing.assert_allclose(state.memory["last"], expected, rtol=1e-6)
    assert state.memory["last"].dtype == jnp.float32 and state.memory["steps"].dtype == jnp.int32
    assert jax.tree.structure(updates) == jax.tree.structure(gradients) and state.level == STOP
    assert [leaf.dtype for leaf in jax.tree.leaves(updates)] == [leaf.dtype for leaf in jax.tree.leaves(gradients)]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates) if leaf.dtype != jax.dtypes.float0)


def test_squares_of_small_types_are_summed_in_float32():
    optimizer = watch(Limits(), signals=["gradient_norm"])
    state = optimizer.init(jnp.zeros(4096, jnp.float16))
    _, state = optimizer.update(jnp.full(4096, 300, jnp.float16), state)  # 300² is beyond float16
    assert state.memory["last"] == 300 * 64


def test_in_64_bits_the_state_stays_as_it_is():
    with jax.enable_x64(True):
        optimizer = watch(QUICK, optax.sgd(0.1))
        params = {"w": jnp.ones(3, jnp.float64)}
        assert params["w"].dtype == jnp.float64
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for gradient in [1.0] * 8 + [1e6, 1.0]:
            updates, new = update({"w": jnp.full(3, gradient, jnp.float64)}, state, params)
            assert [leaf.dtype for leaf in jax.tree.leaves(new)] == [leaf.dtype for leaf in jax.tree.leaves(state)]
            assert updates["w"].dtype == jnp.float64 and bool(updates["w"][0] == 0) == (gradient == 1e6)
            state = new
        assert (state.alarms, state.first) == (1, 8)
        for detector, signals in ((NonFinite(), ["loss"]), (LossSpike(), None)):
            other = watch(detector, signals=signals)
            _, told = other.update(params, other.init(params), value=jnp.float64(np.nan))
            assert told.alarms == 1 and told.excess.dtype == jnp.float32


# ---- Where states go: scans, donation, shards, checkpoints --------------------------------


def test_the_state_can_be_donated_scanned_sharded_and_kept():
    optimizer = watch(QUICK, keras_adam(1e-2))
    mesh = jax.make_mesh((len(jax.devices()),), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, "batch"), ()))

    def step(carry, inputs):
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, inputs)
        gradients = jax.tree.map(lambda g: jnp.where(state.steps == 20, jnp.nan, g), gradients)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return (optax.apply_updates(params, updates), state), (state.level, value)

    run = jax.jit(lambda carry, inputs: jax.lax.scan(step, carry, inputs), donate_argnums=0)
    carry = jax.device_put((jax.tree.map(jnp.copy, PARAMS), optimizer.init(PARAMS)), whole)
    carry, (first_levels, _) = run(carry, jax.device_put(INPUTS[:25], split))
    kept = flax.serialization.to_bytes(carry)
    carry = flax.serialization.from_bytes(jax.eval_shape(lambda: (PARAMS, optimizer.init(PARAMS))), kept)
    (_, state), (last_levels, losses) = run(jax.device_put(carry, whole), jax.device_put(INPUTS[25:], split))
    assert np.flatnonzero(np.append(first_levels, last_levels)).tolist() == [20]
    assert (state.steps, state.alarms, state.first) == (50, 1, 20) and np.isfinite(losses).all()


def test_a_fresh_state_can_be_donated():
    """A detector may use one array for two parts of its memory; no buffer may be given away twice."""
    optimizer = watch(GradientNorm(), optax.sgd(0.1))
    params = {"w": jnp.ones(3)}
    update = jax.jit(lambda state, params: optimizer.update(params, state, params)[1], donate_argnums=0)
    assert update(update(optimizer.init(params), params), params).steps == 2


# ---- Finding the state --------------------------------------------------------------------

NESTED = {
    "alone": (watch(GradientNorm()), lambda state: state),
    "around": (watch(GradientNorm(), optax.sgd(0.1)), lambda state: state),
    "in chains": (
        optax.chain(optax.clip(1.0), optax.chain(optax.identity(), watch(GradientNorm())), optax.sgd(0.1)),
        lambda state: state[1][1],
    ),
    "masked": (optax.masked(watch(GradientNorm()), {"a": True, "b": False}), lambda state: state.inner_state),
    "for some parameters": (
        optax.multi_transform(
            {"watched": watch(GradientNorm(), optax.sgd(0.1)), "other": optax.sgd(0.1)}, {"a": "watched", "b": "other"}
        ),
        lambda state: state.inner_states["watched"].inner_state,
    ),
    "accumulated": (optax.MultiSteps(watch(GradientNorm(), optax.sgd(0.1)), 2), lambda state: state.inner_opt_state),
    "within another": (watch(LossSpike(), watch(GradientNorm())), lambda state: state),
}


@pytest.mark.parametrize("name", NESTED)
def test_the_state_is_found_in_any_nesting(name):
    optimizer, expected = NESTED[name]
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    gradients = {"a": jnp.full(2, jnp.nan), "b": jnp.ones(2)}
    state = optimizer.init(params)
    assert alarms(state) is expected(state)
    for _ in range(2):  # of which MultiSteps makes one
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradients, state, params, value=jnp.nan)
    found = alarms(state)
    assert isinstance(found, WatchState) and found.alarms >= 1 and found.first == 0
    assert np.all(updates["a"] == 0)
    if name == "for some parameters":
        assert np.all(updates["b"] != 0), "the others go on"


def test_the_state_is_found_in_a_train_state():
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=watch(QUICK, optax.sgd(0.1)))
    assert alarms(state.apply_gradients(grads=PARAMS)).steps == 1


# ---- Mistakes -----------------------------------------------------------------------------


class History(NonFinite):
    signals: ClassVar[tuple[str, ...]] = ("largest/history",)


MISTAKES = {
    "state": (
        lambda: watch(NonFinite()),
        "NonFinite watches 'largest/state', .* cannot see; choose .* loss, largest/gr",
    ),
    "history": (lambda: watch(History()), "History watches 'largest/history', .* cannot see; watch it beside the run"),
    "another's": (
        lambda: watch(GradientNorm(), signals=["loss"]),
        "'loss' is no signal of GradientNorm; .*gradient_no",
    ),
    "no signals": (lambda: watch(GradientNorm(), signals=[]), "no signals to watch, expected some of gradient_norm"),
    "level": (lambda: watch(GradientNorm(), level=3), r"level 3, expected STOP \(1\), WARN \(2\), or 0"),
    "none": (lambda: alarms(optax.sgd(0.1).init(PARAMS)), r"no watch\(\) in this state"),
    "two": (
        lambda: alarms(optax.chain(watch(GradientNorm()), watch(LossSpike())).init(PARAMS)),
        r"2 states of watch\(\), at \[0\], \[1\]; give the part",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told(name):
    make, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_mistakes_in_a_step_are_told():
    params = {"w": jnp.zeros(2)}
    optimizer = watch(LossSpike())
    state = optimizer.init(params)
    with pytest.raises(
        ValueError, match=r"LossSpike watches the loss: call update\(gradients, state, params, value=loss"
    ):
        jax.jit(optimizer.update)(params, state)
    with pytest.raises(ValueError, match=r"value has shape \(8,\), expected one number"):
        optimizer.update(params, state, value=jnp.zeros(8))
    each = watch(NonFinite(), signals=[GRADIENTS])
    each.update({"w": jnp.zeros(2), "v": jnp.zeros(2)}, each.init(params))  # there is nothing to contradict
    each = watch(Limits(), signals=["norm/gradients"])
    with pytest.raises(
        ValueError, match=r"Limits has a memory for other leaves .*: norm/gradients/v, norm/gradients/w"
    ):
        each.update({"w": jnp.zeros(2), "v": jnp.zeros(2)}, each.init(params))


# ---- The page -----------------------------------------------------------------------------


def test_the_examples_of_the_page_print_what_it_says(repository):
    page = (repository / "docs" / "detection_transformation.md").read_text()
    examples = re.findall(r"```python\n(.*?)```\n\nIt prints:\n\n```\n(.*?)```", page, re.DOTALL)
    assert len(examples) >= 2
    space = {}
    for source, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), jax.numpy_dtype_promotion("standard"):
            exec(source, space)
        assert printed.getvalue() == expected
