"""Run by `test_automatic_sharding.py` in a process of its own, because it needs eight devices."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples" / "shard_map"))

import jax  # noqa: E402
import my_run  # noqa: E402
import numpy as np  # noqa: E402
import sharded_perceptron  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from own_steps import by_hand, dot  # noqa: E402

from fault_injection import instrument  # noqa: E402
from fault_injection.models.bits import ALL_ONES  # noqa: E402
from fault_injection.models.fault import Operand, inactive_fault  # noqa: E402
from fault_injection.models.observe import difference  # noqa: E402
from fault_injection.models.site import make_fault  # noqa: E402
from fault_injection.seam.trees import same_bits  # noqa: E402

BITS = 0x4B3C614E  # 12345678.0 as a float32


def summed(a, b):
    """[n, i], [n, j] -> [i, j]."""
    return lax.dot_general(a, b, (((0,), (0,)), ((), ())))


# The compiler shares out this product of the step modified by hand in another way, and sums in another order.
SHARED_OUT_OTHERWISE = "grad_wt:params/out/w"

# The products of the step, as differentiation makes them.
PRODUCTS = {
    "forward:params/hidden/w": dot,
    "forward:params/out/w": dot,
    "grad_wt:params/out/w": summed,
    "grad_in:params/out/w": lambda dy, w: lax.dot_general(dy, w, (((1,), (1,)), ((), ()))),
    "grad_wt:params/hidden/w": summed,
}


def measures_by(product):
    """The perceptron's `measures`, with its products and those of its gradients made by a function."""

    def layer(name):
        @jax.custom_vjp
        def multiply(x, w):
            return product(f"forward:{name}", None, x, w)

        def backward(kept, dy):
            x, w = kept
            dw = product(f"grad_wt:{name}", None, dy, x).T
            first = f"grad_in:{name}" not in PRODUCTS
            return jax.numpy.zeros_like(x) if first else product(f"grad_in:{name}", None, dy, w), dw

        multiply.defvjp(lambda x, w: (multiply(x, w), (x, w)), backward)
        return multiply

    def measures(params, batch):
        h = layer("params/hidden/w")(batch["image"], params["hidden"]["w"]) + params["hidden"]["b"]
        logits = layer("params/out/w")(jax.nn.relu(h), params["out"]["w"]) + params["out"]["b"]
        return sharded_perceptron.judged(logits, batch["label"])

    return measures


def check_layouts():
    """A step is shared out by shardings of its arguments, of its calls, or by a constraint; meshes lie in meshes."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    random = np.random.default_rng(0)
    state = {name: random.normal(size=shape).astype(np.float32) for name, shape in (("a", (64, 128)), ("b", (128, 10)))}
    batch = random.normal(size=(64, 64)).astype(np.float32)

    @jax.jit
    def step(state, batch):
        loss, grads = jax.value_and_grad(lambda s: jax.numpy.mean((jax.numpy.tanh(batch @ s["a"]) @ s["b"]) ** 2))(
            state
        )
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), {"loss": loss}

    def constrained(state, batch):
        return step(state, lax.with_sharding_constraint(batch, split))

    placed = jax.device_put(state, whole), jax.device_put(batch, split)
    for function, given in ((step, placed), (constrained, (state, batch))):
        program = instrument(function, *given)
        assert program.meshes == (mesh,)
        assert same_bits(program(inactive_fault(), *given)[0], program.reference(*given))

    def squared(state, batch):
        a, b = (jax.jit(lambda x: x @ x, out_shardings=to) for to in (split, whole))
        return {"a": a(state["a"]), "b": b(state["b"])}, {"loss": batch.sum()}

    square = {name: np.eye(8, dtype=np.float32) for name in "ab"}
    new, _ = instrument(squared, square, batch).reference(square, batch)
    assert [new[name].sharding.is_equivalent_to(to, 2) for name, to in (("a", split), ("b", whole))] == [True, True]

    both = jax.make_mesh((4, 2), ("out", "in"), axis_types=(AxisType.Auto,) * 2)

    def of_two(w, x):
        inner = jax.shard_map(
            lambda w, x: lax.psum(x @ w, "in"),
            in_specs=(P(), P("in")),
            out_specs=P(),
            axis_names={"in"},
            check_vma=False,
        )
        return lax.psum(inner(w, x).sum(), "out")

    def nested(state, batch):
        outer = jax.shard_map(
            of_two, mesh=both, in_specs=(P(), P("out")), out_specs=P(), axis_names={"out"}, check_vma=False
        )
        return state, {"loss": outer(state["a"], batch)}

    program = instrument(jax.jit(nested), state, batch)
    assert {site.owners for site in program.sites.values()} == {8}
    for worker in range(8):
        fault = program.fault("forward:a", "output", (0, 0), values=[1e6], worker=worker)
        (_, metrics), struck = program(fault, state, batch)
        assert int(struck.hits) == 1 and float(metrics["loss"]) > 5e5

    def repeated(state, batch):
        mapped = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
        x, _ = lax.scan(lambda x, w: (mapped(x, w), None), batch, state["a"])
        return state, {"loss": x.sum()}

    state = {"a": random.normal(size=(3, 64, 64)).astype(np.float32)}
    program = instrument(jax.jit(repeated), state, batch)
    at = [5, 2 * 64 * 64 + 7]  # of the first turn, and of the third
    fault = make_fault(program.sites["forward:a"], Operand.WEIGHT, 3, at, keep=ALL_ONES, flip=1)
    _, struck = program(fault, state, batch)
    assert struck.old[:2].tolist() == state["a"].view(np.uint32).reshape(-1)[at].tolist()
    assert (int(struck.hits), int(struck.operand_changed)) == (1, 2)


def check_differences():
    """Tensors that a map compares may be shared out, by any kind of axis."""
    values = np.arange(200_000, dtype=np.float32).reshape(8, -1)
    other = values + np.float32(3)
    expected = difference.differences([jax.numpy.asarray(values)], [jax.numpy.asarray(other)])
    for kind in (AxisType.Auto, AxisType.Explicit):
        split = NamedSharding(jax.make_mesh((8,), ("data",), axis_types=(kind,)), P("data"))
        one, two = (jax.device_put(each, split) for each in (values, other))
        counts, magnitudes = difference.differences([one, one], [two, one])
        assert counts.tolist() == [[200_000, 0, 0], [0, 0, 0]]
        np.testing.assert_allclose(magnitudes[0], expected[1][0], rtol=1e-6)


def check_explicit_axes():
    """Where types say how devices share out arrays, each operand is struck as it is on one device."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    random = np.random.default_rng(0)
    state = {"up": random.normal(size=(3, 16, 32)), "down": random.normal(size=(3, 32, 16))}
    state = {name: 0.2 * w.astype(np.float32) for name, w in state.items()}
    batch = random.normal(size=(16, 16)).astype(np.float32)

    def make_step(spec):
        @jax.checkpoint
        def layer(h, w):
            return jax.numpy.tanh(jax.numpy.dot(h @ w["up"], w["down"], out_sharding=spec)), None

        def step(state, batch):
            loss, grads = jax.value_and_grad(lambda w: (lax.scan(layer, batch, w)[0] ** 2).mean())(state)
            return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), {"loss": loss}

        return jax.jit(step)

    def faulty_steps(program, state, batch):
        steps = []
        for name, site in program.sites.items():
            for operand in Operand:
                size = int(np.prod(site.shapes[operand][1:]))
                fault = program.fault(name, operand, size // 2 + 1, values=[3.5], iteration=1)
                steps.append((name, operand, *program(fault, state, batch)))
        return steps

    alone = instrument(make_step(None), state, batch)
    on_one = faulty_steps(alone, state, batch)
    with jax.set_mesh(mesh):
        placed = {"up": jax.device_put(state["up"], P(None, None, "model"))}
        placed["down"] = jax.device_put(state["down"], P(None, "model"))
        inputs = jax.device_put(batch, P("data"))
        program = instrument(make_step(P("data")), placed, inputs)
        reference = program.reference(placed, inputs)
        assert same_bits(program(inactive_fault(), placed, inputs)[0], reference)
        assert reference[0]["up"].sharding.spec == P(None, None, "model")
        on_all = faulty_steps(program, placed, inputs)
    assert len(on_all) == len(on_one) == 24
    for (*place, found, struck), (*same, expected, of_one) in zip(on_all, on_one, strict=True):
        assert place == same and close(found, expected), place
        assert (int(struck.hits), int(struck.new[0])) == (1, int(of_one.new[0])), place

    # Without a mesh in the context, arrays that lie on one bring it.
    for devices in (8, 1):
        on = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:devices])
        given = jax.device_put(state, NamedSharding(on, P())), jax.device_put(batch, NamedSharding(on, P("data")))
        program = instrument(make_step(None), *given)
        fault = program.fault("forward:up", "output", 1, values=[3.5], iteration=0)
        assert int(program(fault, *given)[1].hits) == 1


def close(one, other):
    """Whether two trees of arrays differ by rounding alone."""
    pairs = zip(*map(jax.tree.leaves, jax.device_get((one, other))), strict=True)
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5 * np.max(np.abs(b))) for a, b in pairs)


def check_example():
    """The example's two steps have the same sites, and an inactive fault changes no bit of them."""
    both = []
    for training in (my_run.automatic(), my_run.training()):
        state, batch = training.init(), training.batch(0, 0)
        both.append(instrument(training.step, state, batch))
        silent, struck = both[-1](inactive_fault(), state, batch)
        assert same_bits(silent, both[-1].reference(state, batch)) and int(struck.hits) == 0
    assert list(both[0].sites) == list(both[1].sites)


def main():
    state, batch, step = sharded_perceptron.state(), sharded_perceptron.batch(), sharded_perceptron.automatic_step()
    program, of_workers = (instrument(one, state, batch) for one in (step, sharded_perceptron.mapped_step()))
    assert jax.device_count() == 8
    assert list(program.sites) == list(of_workers.sites) == list(PRODUCTS)
    for name, site in program.sites.items():
        other = of_workers.sites[name]
        assert (site.role, site.parameter, site.owners, site.axes) == (other.role, other.parameter, 1, ())
        assert (other.owners, other.axes) == (8, ("data",))
    # One is of all images, the other of one device's; the weights are the same.
    first = "forward:params/hidden/w"
    assert [one.sites[first].shapes[Operand.INPUT] for one in (program, of_workers)] == [(64, 64), (8, 64)]
    assert [one.sites[first].shapes[Operand.WEIGHT] for one in (program, of_workers)] == [(64, 128)] * 2

    reference = program.reference(state, batch)
    for sites in ("all", [first], ["forward:*"], ["grad_wt:params/out/w"]):
        silent, struck = instrument(step, state, batch, sites)(inactive_fault(), state, batch)
        assert same_bits(silent, reference) and int(struck.hits) == 0

    count = changed = 0
    for site, place in program.sites.items():
        for operand in Operand:
            struck_operand, shape = operand.name.lower(), place.shapes[operand]

            def by_position(state, batch, index, site=site, operand=struck_operand):
                measures = measures_by(by_hand(PRODUCTS, site, operand, tuple(index), BITS))
                return sharded_perceptron.automatic_step(measures)(state, batch)

            hand = jax.jit(by_position)
            size = int(np.prod(shape))
            for at in (0, size // 2 + 1, size - 1):
                index = tuple(map(int, np.unravel_index(at, shape)))
                found, struck = program(program.fault(site, operand, index, values=[12345678.0]), state, batch)
                expected = hand(state, batch, np.array(index))
                assert close(found, expected), (site, operand, index)
                assert same_bits(found, expected) or site == SHARED_OUT_OTHERWISE, (site, operand, index)
                assert (int(struck.hits), int(struck.new[0]), int(struck.operand_changed)) == (1, BITS, 1)
                count, changed = count + 1, changed + (not same_bits(found, reference))
    check_layouts()
    check_explicit_axes()
    check_differences()
    check_example()
    print(len(program.sites), count, changed)


if __name__ == "__main__":
    main()
