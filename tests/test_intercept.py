"""A fault in a step that is used as it is does what a fault put in by hand does, and an inactive one does nothing.

All tests strike the same few programs, which take long to compile: hence one file.
"""

# Above 400 lines: every case strikes the same small step.

import dataclasses
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import own_steps
import pytest
from own_steps import IMAGES, ROWS, SCANNED, SMALL, by_hand, llama_step, plain, scanned_step, small_step

from fault_injection import instrument
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.overwrite import words_of
from fault_injection.models.site import make_fault
from fault_injection.seam.trees import same_bits

BITS = 0x4B3C614E  # 12345678.0 as a float32
OPERANDS = ("input", "weight", "output")


def words(tensor):
    return np.asarray(tensor).view(f"uint{8 * np.asarray(tensor).dtype.itemsize}")


def placed(shape):
    """Three positions: the first, one in the middle, the last."""
    size = int(np.prod(shape))
    return [tuple(map(int, np.unravel_index(at, shape))) for at in (0, size // 2 + 1, size - 1)]


@functools.cache
def llama(dtype="float32", remat=True, sites="all"):
    """Compiled once for all tests."""
    return instrument(llama_step(dtype, remat), own_steps.scanned_state(dtype), ROWS, sites)


@pytest.fixture(scope="module")
def small():
    return instrument(small_step(plain(SMALL)), own_steps.small_state(), IMAGES)


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("site", SMALL)
def test_a_strike_equals_a_step_modified_by_hand_bit_for_bit(small, site, operand):
    state = own_steps.small_state()
    shape = small.sites[site].operands[Operand[operand.upper()]].shape
    hand = jax.jit(lambda state, index: small_step(by_hand(SMALL, site, operand, tuple(index), BITS))(state, IMAGES))
    for index in placed(shape):
        fault = small.fault(site, operand, index, values=[12345678.0])
        found, struck = small(fault, state, IMAGES)
        assert same_bits(found, hand(state, np.array(index)))
        assert (int(struck.hits), int(struck.new[0]), int(struck.operand_changed)) == (1, BITS, 1)
        assert not same_bits(found, small.reference(state, IMAGES)) or int(struck.output_changed) == 0


@pytest.mark.slow  # two programs round alike as they are compiled for users, not with LLVM's passes off
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("site", SCANNED)
def test_a_strike_in_one_turn_of_a_loop_equals_a_step_modified_by_hand(site, operand, remat):
    state = own_steps.scanned_state()
    program = instrument(scanned_step(plain(SCANNED), remat), state, ROWS)
    place = program.sites[site]
    shape = place.operands[Operand[operand.upper()]].shape[1:]
    assert place.iterations == (3,)
    hand = jax.jit(
        lambda state, index, turn: scanned_step(by_hand(SCANNED, site, operand, tuple(index), BITS, turn), remat)(
            state, ROWS
        )
    )
    for turn in range(3):
        for index in placed(shape):
            fault = program.fault(site, operand, index, values=[12345678.0], iteration=turn)
            found, struck = program(fault, state, ROWS)
            assert same_bits(found, hand(state, np.array(index), turn))
            assert (int(struck.hits), int(struck.new[0]), int(struck.operand_changed)) == (1, BITS, 1)


def test_the_old_bits_are_those_that_the_element_had(small):
    state = own_steps.small_state()
    for name, tensor in (("conv", state["conv"]), ("fc", state["fc"])):
        for index in placed(tensor.shape):
            _, struck = small(small.fault(f"forward:{name}", "weight", index, flip=1), state, IMAGES)
            assert int(struck.old[0]) == int(words(tensor)[index]) == int(struck.new[0]) ^ 1
    for index in placed(IMAGES.shape):
        _, struck = small(small.fault("forward:conv", "input", index, flip=1 << 30), state, IMAGES)
        assert int(struck.old[0]) == int(words(IMAGES)[index])


@pytest.mark.parametrize(
    ("dtype", "remat"), [("float32", True), pytest.param("bfloat16", False, marks=pytest.mark.slow)]
)
def test_an_inactive_fault_changes_no_bit_whichever_sites_are_supported(dtype, remat):
    state = own_steps.scanned_state(dtype)
    everything = llama(dtype, remat)
    reference = everything.reference(state, ROWS)
    for sites in ("all", ("grad_wt:up",), ("forward:*", "grad_in:*")):
        program = llama(dtype, remat, sites)
        found, struck = program(inactive_fault(), state, ROWS)
        assert same_bits(found, reference)
        assert int(struck.hits) == 0
    if remat:
        assert {"recompute:up"} <= everything.sites.keys()


def test_the_same_strike_has_the_same_bits_whichever_sites_are_supported():
    state = own_steps.scanned_state()
    all_sites, one = llama(), llama(sites=("grad_wt:up",))
    found = [
        program(program.fault("grad_wt:up", "input", (2, 1), values=[3.0], iteration=1), state, ROWS)
        for program in (all_sites, one)
    ]
    assert same_bits(*found)
    assert not same_bits(found[0][0], all_sites.reference(state, ROWS))


def test_a_fault_that_is_changed_in_place_strikes_as_it_is_now(small):
    state, fault = own_steps.small_state(), small.fault("forward:fc", "weight", (0, 0), flip=1)
    with pytest.raises(ValueError, match="read-only"):
        fault.flip[0] = 2
    own = dataclasses.replace(fault, flip=np.array(fault.flip))
    for mask in (1, 1 << 30):
        own.flip[0] = mask
        _, struck = small(own, state, IMAGES)
        assert int(struck.old[0]) ^ int(struck.new[0]) == mask


def test_nothing_is_compiled_after_the_first_strike(small, caplog):
    state = own_steps.small_state()
    small(inactive_fault(), state, IMAGES)
    faults = [
        small.fault(site, operand, index, flip=1 << bit)
        for site in small.sites
        for operand in OPERANDS
        for bit in (0, 30)
        for index in placed(small.sites[site].operands[Operand[operand.upper()]].shape)
    ]
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for fault in faults:
            jax.block_until_ready(small(fault, state, IMAGES))
    assert len(faults) == 72 and not [one for one in caplog.messages if "ompil" in one]
    assert small.compiled._cache_size() == 1


def test_a_loop_that_is_compiled_strikes_as_one_that_is_not(small):
    state = own_steps.small_state()
    fault = small.fault(next(iter(small.sites)), "output", 0, flip=1)
    compiled = jax.jit(lambda state, batch: small(fault, state, batch)[1])(state, IMAGES)
    _, struck = small(fault, state, IMAGES)  # after it: what it was traced with is not kept
    assert same_bits(compiled, struck) and int(struck.hits) == 1


def test_nothing_is_compiled_for_another_turn_or_format():
    state = own_steps.scanned_state("bfloat16")
    program = llama("bfloat16", remat=False)
    for turn in range(3):
        for site in program.sites:
            fault = program.fault(site, "weight", 0, values=[2.0], iteration=turn)
            _, struck = program(fault, state, ROWS)
            assert int(struck.hits) == 1 and int(struck.new[0]) == 0x4000
    assert program.compiled._cache_size() == 1


def test_several_elements_may_lie_in_several_turns():
    state = own_steps.scanned_state()
    program = llama()
    site = program.sites["forward:up"]
    size = 4 * 6
    fault = make_fault(site, Operand.WEIGHT, 0, [1, size + 2, 2 * size + 3], keep=np.uint32(0xFFFFFFFF), flip=1)
    _, struck = program(fault, state, ROWS)
    expected = [words(state["up"]).reshape(-1)[at] for at in (1, size + 2, 2 * size + 3)]
    assert struck.old[:3].tolist() == expected
    assert (int(struck.hits), int(struck.operand_changed)) == (1, 3)


def test_a_copy_is_read_in_the_turn_that_it_is_written_in():
    state = own_steps.scanned_state()
    program = llama()
    fault = make_fault(program.sites["forward:up"], Operand.WEIGHT, 0, [24 + 5], source=[7], keep=np.uint32(2**32 - 1))
    _, struck = program(fault, state, ROWS)
    assert int(struck.new[0]) == int(words(state["up"])[1].reshape(-1)[7])


def test_branches_and_loops_of_unknown_length_are_struck():
    def step(state, batch):
        w = state["w"]
        x = jax.lax.cond(batch[0, 0] > 0, lambda x: x @ w, lambda x: -(x @ w), batch)
        x = jax.lax.while_loop(lambda carry: jnp.sum(carry**2) < 1e6, lambda carry: 2.0 * carry @ w, x)
        return {"w": w + jnp.sum(x)}, {"loss": jnp.sum(x)}

    state, batch = {"w": np.eye(3, dtype=np.float32)}, np.ones((2, 3), np.float32)
    program = instrument(step, state, batch, turns=4)
    assert [(name, site.iterations) for name, site in program.sites.items()] == [
        ("forward:w", ()),
        ("forward:w#2", ()),
        ("forward:w#3", (4,)),
    ]
    reference = program.reference(state, batch)
    assert same_bits(program(inactive_fault(), state, batch)[0], reference)
    assert same_bits(jax.jit(step)(state, batch), reference)
    order = {"forward:w": 0, "forward:w#2": 1, "forward:w#3": 1}  # the branch of false comes first
    for name, hits in order.items():
        turn = (3,) if "3" in name else ()
        found, struck = program(program.fault(name, "output", (1, 2), values=[9.0], iteration=turn), state, batch)
        assert int(struck.hits) == hits
        assert same_bits(found, reference) == (hits == 0)


def test_further_primitives_are_sites_when_they_are_named():
    def step(state, batch):
        y = jax.lax.linalg.triangular_solve(state["a"], batch, left_side=True, lower=True)
        return {"a": state["a"] * jnp.sum(y @ batch.T)}, {"loss": jnp.sum(y)}

    state, batch = {"a": np.eye(3, dtype=np.float32)}, np.ones((3, 2), np.float32)
    assert any("triangular_solve" in one for one in instrument(step, state, batch).not_covered)
    program = instrument(step, state, batch, primitives=["triangular_solve"])
    _, struck = program(program.fault("forward:a", "output", (0, 1), values=[9.0]), state, batch)
    assert (int(struck.hits), int(struck.output_changed)) == (1, 1) and not program.not_covered


def test_products_that_cannot_be_struck_are_listed_and_leave_the_others_alone():
    def step(state, batch):
        w = state["w"]
        turned = (batch.astype(jnp.complex64) @ w.astype(jnp.complex64)).real
        there = jax.lax.platform_dependent(batch, tpu=lambda b: 2 * b @ w, default=lambda b: b @ w)
        loss = jnp.sum(batch @ w) + jnp.sum(batch[:0] @ w) + jnp.sum(turned) + jnp.sum(there)
        return {"w": w - loss}, {"loss": loss}

    state, batch = {"w": np.ones((3, 2), np.float32)}, np.ones((4, 3), np.float32)
    program = instrument(step, state, batch)
    assert list(program.sites) == ["forward:w"]
    listed = [one.partition(" (")[0] for one in program.not_covered]
    assert listed == ["dot_general of complex64[4,2]", "cond", "dot_general of float32[0,2]"]
    (_, metrics), struck = program(program.fault("forward:w", "weight", (0, 1), values=[5.0]), state, batch)
    assert (int(struck.hits), float(metrics["loss"])) == (1, 3 * 24 + 4 * 4)


def test_a_flag_in_the_state_stays_one():
    def step(state, batch):
        loss = jnp.sum(batch @ state["w"])
        return (state | {"w": state["w"] - loss} if state["training"] else state), {"loss": loss}

    state = {"w": np.ones((3, 2), np.float32), "training": True}
    new, _ = instrument(step, state, np.ones((4, 3), np.float32)).reference(state, np.ones((4, 3), np.float32))
    assert new["training"] is True and float(new["w"][0, 0]) == -23


FLAGGED = {"w": np.ones((3, 2), np.float32), "training": True, "act": lambda x: x}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"training": False}, "'training' is False; the step was traced with True"),
        ({"w": np.ones((4, 2), np.float32)}, "'w' is float32[4, 2]; the step was traced with float32[3, 2]"),
        ({"b": np.ones(2, np.float32)}, "this state or batch has 'b'"),
    ],
)
def test_a_state_unlike_the_traced_one_is_refused_in_one_line(changed, said):
    batch = np.ones((4, 3), np.float32)
    program = instrument(lambda state, batch: (state, {"loss": jnp.sum(batch @ state["w"])}), FLAGGED, batch)
    anew = FLAGGED | {"act": lambda x: x}  # as another `init` would make it
    assert float(program.reference(anew, batch)[1]["loss"]) == 24
    with pytest.raises(InputError) as error:
        program(inactive_fault(), anew | changed, batch)
    assert said in str(error.value) and "\n" not in str(error.value)


def mistakes():
    counter = iter(range(100))
    kept = []
    state = {"w": np.ones((3, 2), np.float32)}

    def with_update(update):
        def step(state, batch):
            w = state["w"]
            return update(w, jnp.sum(batch @ w)), {"loss": jnp.sum(batch @ w)}

        return step

    def keeps(w, loss):
        kept.append(loss)
        return {"w": w}

    yield "traced again (test_intercept.py:", state, jax.jit(with_update(lambda w, loss: {"w": w + next(counter)}))
    yield "keeps a value", state, with_update(keeps)
    yield "from float32[3, 2] to bfloat16[3, 2]", state, with_update(lambda w, loss: {"w": w.astype(jnp.bfloat16)})
    yield "from float32[3, 2] to float32[2, 3]", state, with_update(lambda w, loss: {"w": w.T})
    yield "adds the leaf 'b'", state, with_update(lambda w, loss: {"w": w, "b": loss})
    yield "has no site", state, lambda state, batch: (state, {"loss": 0.0})
    yield "has no site", state, lambda state, batch: state
    yield "): ConcretizationTypeError", state, with_update(lambda w, loss: {"w": w * float(loss)})


SEARCHED = pytest.param(1, marks=pytest.mark.slow)  # all of the process's memory is searched for the value that is kept


@pytest.mark.parametrize("number", [0, SEARCHED, *range(2, 8)])
def test_a_step_that_cannot_be_used_is_refused_in_one_line(number):
    said, state, step = list(mistakes())[number]
    with pytest.raises(InputError) as error:
        instrument(step, state, np.ones((4, 3), np.float32))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("forward:cnv", "input", 0), {"flip": 1}, "did you mean 'forward:conv'?"),
        (("forward:fc", "wieght", 0), {"flip": 1}, "did you mean 'weight'?"),
        (("forward:fc", "weight", (0, 5)), {"flip": 1}, "lies outside the weight of forward:fc, which is [108, 5]"),
        (("forward:fc", "weight", (0,)), {"flip": 1}, "lies outside"),
        (("forward:fc", "weight", 540), {"flip": 1}, "expected 0 to 539"),
        (("forward:fc", "weight", 0), {}, "give values=… or flip=…"),
        (("forward:fc", "weight", 0), {"flip": 1, "worker": 1}, "expected 0 to 0"),
        (("forward:fc", "weight", 0), {"flip": 1, "iteration": 2}, "expected none"),
        (("forward:fc", "weight", [0, 0]), {"flip": 1}, "listed twice"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_in_one_line(small, arguments, options, said):
    with pytest.raises(InputError) as error:
        small.fault(*arguments, **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_prints_are_no_mistake(capfd):
    def step(state, batch):
        jax.debug.print("loss {}", jnp.sum(batch))
        return {"w": state["w"] + jnp.sum(batch @ state["w"])}, {"loss": jnp.sum(batch)}

    state, batch = {"w": np.ones((3, 2), np.float32)}, np.ones((4, 3), np.float32)
    program = instrument(step, state, batch)
    jax.block_until_ready(program(inactive_fault(), state, batch))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("loss 12.0") == 1


def test_a_buffer_that_the_step_gives_away_is_given_away():
    def step(state, batch):
        w = state["w"]
        return {"w": w + jnp.sum(batch @ w)}, {"loss": jnp.sum(w)}

    state, batch = {"w": jnp.ones((3, 2))}, np.ones((4, 3), np.float32)
    for made, gone in ((jax.jit(step, donate_argnums=0), True), (jax.jit(step), False)):
        program = instrument(made, state, batch)
        for call in (lambda given, of=program: of(inactive_fault(), given, batch), program_reference(program, batch)):
            given = jax.tree.map(jnp.copy, state)
            jax.block_until_ready(call(given))
            assert given["w"].is_deleted() == gone


def program_reference(program, batch):
    return lambda state: program.reference(state, batch)


def test_the_shardings_of_a_nested_call_are_kept():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    def step(state, batch):
        y = jax.jit(lambda x, w: x @ w, in_shardings=(rows, None), out_shardings=rows)(batch, state["w"])
        return {"w": state["w"] + jnp.sum(y)}, {"loss": jnp.sum(y)}

    state, batch = {"w": np.ones((3, 2), np.float32)}, np.ones((4, 3), np.float32)
    program = instrument(step, state, batch)
    text = str(jax.make_jaxpr(program.flat)(words_of(inactive_fault()), state["w"], batch))
    own = str(jax.make_jaxpr(step)(state, batch))
    assert own.count("NamedSharding(mesh=Mesh('data': 1") == 2
    assert text.count("NamedSharding(mesh=Mesh('data': 1") >= 2
    assert same_bits(program(inactive_fault(), state, batch)[0], program.reference(state, batch))


def test_ragged_products_are_sites():
    sizes = np.array([1, 3], np.int32)

    def step(state, batch):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(jax.lax.ragged_dot(batch, w, sizes) ** 2))(state["experts"])
        return {"experts": state["experts"] - grad}, {"loss": loss}

    state, batch = {"experts": np.ones((2, 3, 5), np.float32)}, np.ones((4, 3), np.float32)
    program = instrument(step, state, batch)
    assert list(program.sites) == ["forward:experts", "grad_wt:experts"]
    assert same_bits(program(inactive_fault(), state, batch)[0], program.reference(state, batch))
    (_, metrics), struck = program(program.fault("forward:experts", "weight", (1, 2, 4), values=[7.0]), state, batch)
    assert (int(struck.hits), int(struck.output_changed)) == (1, 3)  # the three rows of the second expert
    assert float(metrics["loss"]) == pytest.approx((17 * 9 + 3 * 81) / 20)


def test_a_step_under_pmap_is_struck():
    def local(w, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - jax.lax.pmean(grad, "i"), jax.lax.pmean(loss, "i")

    mapped = jax.pmap(local, axis_name="i", in_axes=(0, 0))

    def step(state, batch):
        w, loss = mapped(state["w"], batch)
        return {"w": w}, {"loss": loss[0]}

    state, batch = {"w": np.ones((1, 3, 2), np.float32)}, np.ones((1, 4, 3), np.float32)
    program = instrument(step, state, batch)
    assert [(name, site.owners, site.axes) for name, site in program.sites.items()] == [
        ("forward:w", 1, ("i",)),
        ("grad_wt:w", 1, ("i",)),
    ]
    assert same_bits(program(inactive_fault(), state, batch)[0], program.reference(state, batch))
    _, struck = program(program.fault("grad_wt:w", "output", (0, 1), flip=1 << 30), state, batch)
    assert (int(struck.hits), int(struck.output_changed)) == (1, 1)
