"""Formats below float32: what operations compute in them, what a fault strikes, and the same fault in several."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SITE
from small import small as small_resnet
from test_damage import INJECTION as TOY_INJECTION
from test_transformer import injection_file
from test_transformer import small as small_transformer
from whole import only_whole, some

from fault_injection.commands.main import main
from fault_injection.explicit.passes import forward_and_backward
from fault_injection.faults.element_bits import ElementBits
from fault_injection.faults.fault_models import VALUES
from fault_injection.faults.injection_file import format_injection, parse_injection, read_injection
from fault_injection.faults.number_formats import format_of
from fault_injection.faults.translation import translate
from fault_injection.machine.errors import InputError
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.layer import Context
from fault_injection.models.loss import cross_entropy, nats_per_token
from fault_injection.models.observe.reductions import CHOICES, LOWEST, reduced, together
from fault_injection.models.operations.product import Dense, DenseGradIn, DenseGradWt
from fault_injection.models.precision import HISTORY, remembered, scale
from fault_injection.models.precisions import PRECISIONS
from fault_injection.models.site import make_fault
from fault_injection.models.strike import perform

FORMATS = [format_of(name) for name in ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")]
STRUCK = "layers_0_mlp_up_proj_grad_in"
NARROW = [name for name in PRECISIONS if name != "float32"]
# Those of the image network compile longest: of them one, in the format that is furthest from the others.
OTHERS = [("transformer", "float16"), ("transformer", "float8"), ("resnet18", "float8")]
CASES = [
    ("transformer", "bfloat16"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in some(OTHERS, OTHERS[2:])),
]
SMALL = {"transformer": (small_transformer, STRUCK), "resnet18": (small_resnet, SITE)}


@functools.cache
def program(name, precision):
    """A small workload in a format, and its program, which can strike one site."""
    make, site = SMALL[name]
    workload = make(precision=precision)
    return workload, workload.program(frozenset({site}))


def first_steps(program, fault, steps=3):
    state = program.place(program.init())
    for step in range(steps):
        if fault is None:
            state, report = program.step(state, program.batch(0, step), 0, step)
        else:
            state, report = program.faulty_step(state, program.batch(0, step), 0, step, fault)
    return state, report


# ---- What is computed ---------------------------------------------------------------------


@pytest.mark.parametrize("operation", [Dense(), DenseGradIn(), DenseGradWt()], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("precision", NARROW)
def test_a_product_reads_and_gives_numbers_of_the_format_and_sums_in_float32(precision, operation):
    """Compared with NumPy's, whose sums of these few products are exact in float32."""
    formats = PRECISIONS[precision]
    a, b = (np.random.default_rng(i).integers(-8, 9, (1, 8, 8)) * np.float32(1.03125) for i in (1, 2))
    if not isinstance(operation, DenseGradWt):
        b = b[0]
    ctx = Context(
        jax.random.key(0), jnp.arange(1), precision=formats, observe=frozenset({"operands"}), maxima={"fc": ones()}
    )
    result, seen = perform(operation, "fc", jnp.array(a), jnp.array(b), ctx)
    operands = {name: np.asarray(tensor[0]) for name, tensor in seen.tensors["operands"]["fc"].items()}
    read = [formats.forward or formats.held] * 2
    if operation.gradient is not None:
        read[operation.gradient] = formats.backward or formats.held
    assert [operands[name].dtype.name for name in ("input", "weight", "output")] == [*read, formats.held]
    assert result.dtype.name == formats.held
    scales = scale(ones(), read) if formats.forward else np.ones(2, np.float32)
    for taken, operand, by, name in zip(operation.operands(a, b, 0), ("input", "weight"), scales, read, strict=True):
        held = np.asarray(taken).astype(formats.held).astype(np.float32)
        np.testing.assert_array_equal(operands[operand], (held / np.float32(by)).astype(jnp.dtype(name)))
    exact = operands["input"].astype(np.float64) @ operands["weight"].astype(np.float64)
    exact = exact.astype(np.float32) * (scales[0] * scales[1])
    np.testing.assert_array_equal(operands["output"], np.asarray(exact).astype(formats.held))


def ones():
    """A history of largest values for which the scales are 2 and 4 in eight bits, or powers of two."""
    return jnp.array([[448.0 * 2], [448.0 * 4]]) * jnp.ones((2, HISTORY))


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_gradients_in_a_format_are_about_those_in_float32(name, precision):
    """In direction and in size: a loss scale, and the scales of eight bits, are taken out again."""
    gradients = []
    for each in ("float32", precision):
        workload, trained = program(name, each)
        batch, state = trained.batch(0, 0), trained.init()
        head = nats_per_token if name == "transformer" else cross_entropy
        ctx = Context(jax.random.key(0), jnp.arange(workload.workers))
        passes = jax.jit(functools.partial(forward_and_backward, workload.recipe().network, head=head, terms=64))
        grads = passes(state.params, state.stats, batch, ctx).grads
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(grads))
        gradients.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)]))
    sizes = [np.linalg.norm(gradient) for gradient in gradients]
    assert np.dot(*gradients) / np.prod(sizes) > (0.85 if precision == "float8" else 0.97)
    assert 0.9 < sizes[1] / sizes[0] < 1.1
    assert not np.array_equal(*gradients)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_an_inactive_fault_changes_no_bit_in_any_format(name, precision):
    _, trained = program(name, precision)
    plain, faulty = (first_steps(trained, fault)[1].digest for fault in (None, inactive_fault()))
    np.testing.assert_array_equal(plain, faulty)


def test_scales_follow_the_largest_values_of_the_last_steps_and_pass_over_what_is_not_finite():
    history = jnp.zeros((2, HISTORY))
    formats = ("float8_e4m3fn", "float8_e5m2")
    assert scale(history, formats).tolist() == [1, 1]
    history = remembered(history, jnp.array([896.0, jnp.nan]))
    for _ in range(HISTORY - 1):
        assert scale(history, formats).tolist() == [2, 1]
        history = remembered(history, jnp.array([448.0, jnp.inf]))
    assert scale(history, formats).tolist() == [2, 1]
    assert scale(remembered(history, jnp.array([448.0, 57344.0 * 4])), formats).tolist() == [1, 4]


def test_the_state_of_eight_bit_training_remembers_the_largest_values_of_every_product():
    workload, trained = program("transformer", "float8")
    state, _ = first_steps(trained, None, steps=2)
    products = [name for name, site in workload.sites().items() if site.operands[Operand.INPUT].dtype.itemsize == 1]
    assert sorted(state.stats["maxima"]) == sorted(products)
    for history in state.stats["maxima"].values():
        assert (history[:, :2] > 0).all() and not history[:, 2:].any()


# ---- Faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", NARROW)
@pytest.mark.parametrize("operand", Operand)
def test_a_fault_strikes_an_operand_in_its_own_format(precision, operand):
    workload, trained = program("transformer", precision)
    site = workload.sites()[STRUCK]
    format = format_of(site.operands[operand].dtype)
    top = format.bit("exponent 1")
    fault = make_fault(site, operand, 1, [5], keep=ALL_ONES, flip=1 << top)
    _, report = trained.faulty_step(trained.place(trained.init()), trained.batch(0, 0), 0, 0, fault)
    struck = report.struck
    assert struck.hits == struck.operand_changed == 1
    assert struck.new[0] == struck.old[0] ^ (1 << top) < 1 << format.width


@given(st.sampled_from(FORMATS), st.data())
def test_bits_and_roles_are_the_same_thing_said_twice(format, data):
    bit = data.draw(st.integers(0, format.width - 1))
    assert format.bit(format.role(bit)) == bit
    word = data.draw(st.integers(0, (1 << format.width) - 1))
    value = format.values([word])[0]
    flipped = format.values([word ^ 1 << format.width - 1])[0]
    if not np.isnan(float(value)):  # NumPy warns of a bfloat16 that is a signalling NaN
        assert format.bits([float(value)])[0] == word
        assert float(flipped) == -float(value)  # the sign is the highest bit


@given(st.sampled_from(FORMATS), st.sampled_from(sorted(VALUES.keys() - {"histogram"})), st.integers(0, 2**32 - 1))
def test_what_fault_models_draw_fits_the_format(format, source, seed):
    index = np.arange(64)
    bits = VALUES[source]()(np.random.default_rng(seed), index, 64, format)
    assert (bits.flip >> format.width == 0).all()
    values = format.values(bits.flip).astype(np.float32)
    if source in ("random_finite", "worst_case", "zero"):
        assert np.isfinite(values).all()
    if source == "worst_case":
        assert (values >= min(1e16, format.largest) * 0.99).all()


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_random_finite_numbers_reach_all_finite_patterns_and_no_other(format):
    drawn = format.finite(np.random.default_rng(0), (20_000,))
    tops = np.unique(drawn >> max(0, format.width - 8))
    every = np.arange(1 << min(8, format.width), dtype=np.uint32)
    finite = np.isfinite(format.values(every << max(0, format.width - 8)).astype(np.float32))
    assert np.isfinite(format.values(drawn).astype(np.float32)).all()
    missing = set(every[finite].tolist()) - set(tops.tolist())
    assert not missing


def test_a_format_is_read_and_written_in_files(tmp_path):
    path = injection_file(tmp_path / "mine.csv", layer=STRUCK, stage="bkwd_inject", value="1.00390625")
    text = path.read_text() + "precision,bfloat16\n"
    injection = parse_injection(text, "mine")
    assert injection.fault().flip.tolist() == [0x3F80]  # to even
    assert parse_injection(format_injection(injection), "again") == injection
    bits = text.replace("inj_values,1.00390625", "inj_bits,xor:4000")
    assert parse_injection(bits, "mine").fault().flip.tolist() == [0x4000]


@pytest.mark.parametrize(
    "precision, row, said",
    [
        ("float16", "inj_values,1e9", "inj_values '1e9'; expected a float16, at most 65504 in size (or inf)"),
        ("float16", "inj_values,-1e-9", "inj_values '-1e-9'; expected a float16, at least 6e-08 in size (or 0)"),
        ("float8", "inj_values,500", "inj_values '500'; expected a bfloat16"),
        ("bfloat16", "inj_bits,10000", "inj_bits '10000'; expected at most 4 hexadecimal digits for bfloat16"),
        ("bfloat32", "inj_values,1", "precision 'bfloat32' is unknown; did you mean 'float32'?"),
    ],
)
def test_what_a_format_has_no_number_for_is_refused_in_one_line(tmp_path, capsys, precision, row, said):
    path = injection_file(tmp_path / "mine.csv")
    path.write_text(path.read_text().replace("inj_values,1", row) + f"precision,{precision}\n")
    if (precision, row) == ("float8", "inj_values,500"):  # an output is held in 16 bits
        assert read_injection(path).tensor.dtype == "bfloat16"
        path.write_text(path.read_text().replace("fmodel,RD", "fmodel,INPUT"))
        said = "inj_values '500'; expected a float8_e4m3fn, at most 448 in size (or nan)"
    assert main(["replay", str(path), "--check"]) == 2
    assert said in capsys.readouterr().err


# ---- One fault in several formats -----------------------------------------------------------


@settings(max_examples=50)
@given(st.sampled_from(("bfloat16", "float16", "float8")), st.integers(0, 31))
def test_a_translated_flip_has_the_same_role_or_there_is_none(tmp_path_factory, precision, bit):
    path = injection_file(tmp_path_factory.getbasetemp() / "flip.csv", fmodel="INPUT")
    text = path.read_text().replace("inj_values,1", f"inj_bits,xor:{1 << bit:08x}")
    injection = parse_injection(text, "flip")
    old, new = format_of("float32"), format_of(PRECISIONS[precision].forward or PRECISIONS[precision].held)
    if new.bit(old.role(bit)) is None:
        with pytest.raises(InputError, match=rf"a {new.name} has no bit '{old.role(bit)}'"):
            translate(injection, precision)
        return
    moved = translate(injection, precision)
    assert moved.positions == injection.positions
    assert [new.role(i) for i in range(new.width) if moved.bits[0].flip >> i & 1] == [old.role(bit)]
    assert translate(moved, "float32") == injection


def test_a_translated_value_is_the_nearest_of_the_format(tmp_path):
    injection = read_injection(injection_file(tmp_path / "mine.csv", value="1e6"))
    becomes = {name: translate(injection, name).values[0] for name in PRECISIONS}
    assert becomes == {"float32": 1e6, "bfloat16": 999424.0, "float16": np.inf, "float8": 999424.0}
    bits = dataclasses.replace(translate(injection, "bfloat16"), values=(), bits=(ElementBits(0x7F80),))
    assert translate(bits, "float32").bits[0].flip == 0x7F800000


@only_whole
@pytest.mark.slow
def test_the_command_formats_replays_one_fault_in_each_of_them(tmp_path, capsys):
    path = injection_file(tmp_path / "mine.csv", value="3e4")
    path.write_text(path.read_text().replace("epochs,3", "epochs,2"))
    arguments = ["formats", str(path), "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    assert main([*arguments, "--formats", "float32,bfloat16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["formats"]
    assert [row["format"] for row in rows] == ["float32", "bfloat16"]
    assert [row["to"] for row in rows] == [30000.0, 29952.0]
    assert {row["outcome"] for row in rows} <= {"Masked", "SlowDegrade", "SharpSlowDegrade", "SharpDegrade"}
    assert (tmp_path / "out" / "formats.png").read_bytes()[:4] == b"\x89PNG"
    for row in rows:  # each is an injection file of its own
        file = tmp_path / "out" / row["format"] / f"mine_{row['format']}.csv"
        assert read_injection(file).workload.precision == row["format"]


def test_the_command_formats_says_what_the_fault_is_and_runs_nothing(tmp_path, capsys):
    path = injection_file(tmp_path / "mine.csv")
    path.write_text(path.read_text().replace("inj_values,1", "inj_bits,xor:40000000"))
    assert main(["formats", str(path), "--check", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["float32", "float32", "xor:40000000"],
        ["bfloat16", "bfloat16", "xor:4000"],
        ["float16", "float16", "xor:4000"],
        ["float8", "bfloat16", "xor:4000"],
    ]
    assert not (tmp_path / "out").exists()
    assert main(["formats", str(path), "--formats", "bfloat61"]) == 2
    assert "--formats 'bfloat61' is unknown; did you mean 'bfloat16'?" in capsys.readouterr().err


def test_a_workload_without_formats_says_so(capsys, tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text(TOY_INJECTION)
    assert main(["formats", str(path), "--check"]) == 2
    assert "linear has no option 'precision'" in capsys.readouterr().err


# ---- Reductions ---------------------------------------------------------------------------


@only_whole
@pytest.mark.slow  # a step that `test_a_step_reports_reductions_and_no_bit_depends_on_them` runs too
@pytest.mark.parametrize("precision", ["float16"])
def test_reductions_are_those_of_the_tensors(precision):
    """A loss scale is taken out of gradients."""
    workload, trained = program("transformer", precision)
    network, batch = workload.recipe().network, trained.batch(0, 0)
    state = trained.init()

    def passes(reduce, observe):
        ctx = Context(jax.random.key(0), jnp.arange(workload.workers), reduce=reduce, observe=observe)
        return forward_and_backward(network, state.params, state.stats, batch, ctx, 64, nats_per_token).seen

    kinds = frozenset({"activations", "gradients"})
    seen = jax.jit(functools.partial(passes, frozenset(CHOICES), kinds))()
    found = jax.device_get(together(seen.reduced))
    assert {"embed_tokens", "lm_head"} <= seen.tensors["activations"].keys()
    assert {"embed_tokens", "norm"} <= seen.tensors["gradients"].keys()
    for kind in kinds:
        for name, tensor in seen.tensors[kind].items():
            x = np.asarray(tensor, np.float64).ravel()
            close = functools.partial(np.testing.assert_allclose, rtol=1e-4)
            close(found[f"norm/{kind}/{name}"], np.linalg.norm(x))
            close(found[f"largest/{kind}/{name}"], np.abs(x).max())
            close(found[f"moments/{kind}/{name}"][1::2], [np.mean(x**2), np.mean(x**4)])
            counts = found[f"histogram/{kind}/{name}"]
            assert counts.sum() == x.size and counts[0] == (x == 0).sum() and counts[-1] == 0
            one_to_two = ((np.abs(x) >= 1) & (np.abs(x) < 2)).sum()
            assert counts[2 - LOWEST] == one_to_two


@pytest.mark.slow
def test_a_step_reports_reductions_and_no_bit_depends_on_them():
    workload, trained = program("transformer", "bfloat16")
    telling = workload.program(frozenset({STRUCK}), reductions=frozenset(CHOICES))
    (_, plain), (_, report) = first_steps(trained, None), first_steps(telling, None)
    np.testing.assert_array_equal(plain.digest, report.digest)
    names = [name.removeprefix("gradient/") for name in trained.state.gradients]
    largest = [report.reductions[f"largest/parameter_gradients/{name}"] for name in names]
    np.testing.assert_array_equal(largest, report.magnitude[: len(names)])
    assert not plain.reductions


def test_what_is_not_finite_is_counted():
    histogram = frozenset({"histogram/gradients"})
    found = reduced(histogram, "gradients", "x", jnp.array([0.0, np.nan, np.inf, 1e-30, 1e30]))
    assert found["histogram/gradients/x"][jnp.array([0, 1, -2, -1])].tolist() == [1, 1, 1, 2]
