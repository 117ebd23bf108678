"""The workloads `dlrm` and `dlrm_criteo`: their steps, which touch rows alone, their data, and mistakes in input."""

# Above 400 lines: the two workloads share their network, their rows and their files.

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys

import criteo_text
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from injection_files import small_file
from whole import only_whole

from fault_injection.commands.main import main
from fault_injection.data import criteo
from fault_injection.data.adult import SIZES, load_adult
from fault_injection.data.clicks import ClickBatches, Clicks
from fault_injection.data.criteo_text import converted
from fault_injection.explicit.optimizers import keras_sgd
from fault_injection.explicit.program import explicit_program
from fault_injection.explicit.recipe import Recipe
from fault_injection.faults.injection import ALL
from fault_injection.faults.injection_file import format_injection, parse_injection, read_injection
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand
from fault_injection.models.loss import binary_cross_entropy
from fault_injection.models.networks.dlrm import dlrm
from fault_injection.models.observe.reductions import WHOLE
from fault_injection.models.operations.lookup import coalesced
from fault_injection.models.site import make_fault
from fault_injection.seam.beside import faulty_step
from fault_injection.seam.digest import digest, magnitude
from fault_injection.seam.state_faults import state_sites
from fault_injection.workloads.registry import make_workload

OPTIONS = {
    "dimension": 4,
    "bottom": (8,),
    "top": (8,),
    "batch_size": 16,
    "workers": 2,
    "epochs": 3,
    "steps_per_epoch": 6,
}
STRUCK = ("emb_0", "emb_0_grad_wt", "interaction", "interaction_grad_wt", "top_1_grad_in")


def small(**changes):
    return make_workload("dlrm", **OPTIONS | changes)


@functools.cache
def program():
    """It can strike the sites of STRUCK, and tells whole gradients."""
    return small().program(frozenset(STRUCK), reductions=frozenset({WHOLE}))


def start():
    return program().place(program().init())


def injection_file(path, **fault):
    rows = {"stage": "bkwd_inject", "fmodel": "RD", "layer": "emb_0_grad_wt", "position": "0/0", "value": "1"}
    return small_file(path, "dlrm", OPTIONS, 0.1, **rows | fault)


# ---- Steps --------------------------------------------------------------------------------


def test_a_step_is_that_of_whole_tables_and_its_report_that_of_a_look_at_all_of_them():
    """Digests to the bit; largest values are those of all values that a table has had."""
    own, state = program(), start()
    names = [leaf.name for leaf in own.state.leaves]
    tables = [i for i, name in enumerate(names) if name.startswith("params/emb_")]
    largest = magnitude(state)
    for step in range(4):
        before, batch = jax.device_get(state.params), own.batch(0, step)
        state, report = own.step(state, batch, 0, step)
        np.testing.assert_array_equal(report.digest, digest(state))
        largest = jnp.maximum(largest, magnitude(state))
        found = np.asarray(report.magnitude[len(own.state.gradients) :])
        np.testing.assert_array_equal(found[tables], largest[np.array(tables)])
        others = np.setdiff1d(np.arange(len(names)), tables)
        np.testing.assert_array_equal(found[others], magnitude(state)[others])
        for name, at in zip(own.state.gradients, range(len(own.state.gradients)), strict=True):
            layer, leaf = name.split("/")[1:]
            gradient = np.asarray(report.reductions[f"{WHOLE}/{layer}/{leaf}"])
            assert np.abs(gradient).max() == report.magnitude[at]
            expected = before[layer][leaf] - np.float32(0.1) * gradient
            np.testing.assert_allclose(state.params[layer][leaf], expected, rtol=1e-6, atol=1e-8)
            if layer.startswith("emb_"):
                read = np.unique(batch["input"][..., 6 + int(layer.removeprefix("emb_"))])
                assert set(np.flatnonzero(gradient.any(-1))) <= set(read)


def test_a_table_that_is_struck_is_looked_at_again():
    """What is kept of a table is no target, and is that of the table that the step reads."""
    own, sites, state = program(), state_sites(program().state), start()
    assert not [name for name in sites if name.startswith("tables/")]
    fault = make_fault(sites["params/emb_2/table"], Operand.INPUT, ALL, [5], keep=ALL_ONES, flip=1 << 30)
    for step in range(2):
        state, report = faulty_step(own, state, own.batch(0, step), 0, step, fault)
        np.testing.assert_array_equal(report.digest, digest(state))
        assert report.struck.operand_changed == 1


def test_a_gradient_of_a_row_that_nobody_read_changes_that_row_and_no_other():
    state, site = start(), small().sites()["emb_7_grad_wt"]  # as large as all others of its network
    own = small().program(frozenset({"emb_7_grad_wt"}))
    read = np.unique(own.batch(0, 0)["input"][..., -1])
    row = np.setdiff1d(np.arange(SIZES[7]), read)[3]
    fault = make_fault(site, Operand.OUTPUT, 1, [row * 4 + 2], flip=np.float32(-3).view(np.uint32))
    clean, _ = own.step(own.place(own.init()), own.batch(0, 0), 0, 0)
    faulty, report = own.faulty_step(state, own.batch(0, 0), 0, 0, fault)
    one, other = (np.asarray(s.params["emb_7"]["table"]) for s in (clean, faulty))
    assert np.argwhere(one != other).tolist() == [[row, 2]]
    assert other[row, 2] == pytest.approx(one[row, 2] + 0.3)
    assert report.magnitude[own.state.gradients.index("gradient/emb_7/table")] == 3
    np.testing.assert_array_equal(report.digest, digest(faulty))


def test_a_step_is_undone_whole_tables_too():
    """By the optimizer's inverse, up to rounding."""
    before, own = jax.device_get(start()), program()
    after, report = own.step(start(), own.batch(0, 0), 0, 0)
    undone = own.extras.undo(after, jax.device_get(report))
    for one, other in zip(*(jax.tree.leaves(state.params) for state in (before, undone)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(digest(undone.params["emb_0"]["table"])[0], undone.tables["emb_0/table"]["digest"])


@given(
    arrays.arrays(np.int32, st.sampled_from((1, 2, 9)), elements=st.integers(0, 5)),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=30)  # each number of rows compiles once
def test_a_sparse_gradient_has_each_row_once_with_the_sum_of_its_values(rows, seed):
    values = np.random.default_rng(seed).standard_normal((len(rows), 3)).astype(np.float32)
    expected = np.zeros((5, 3), np.float32)
    np.add.at(expected, rows[rows < 5], values[rows < 5])
    found = coalesced(jnp.asarray(rows), jnp.asarray(values) * (rows < 5)[:, None].astype(np.float32), 5)
    assert np.asarray(found.rows).tolist() == [*np.unique(rows), *[5] * (len(rows) - len(np.unique(rows)))]
    kept = np.asarray(found.rows) < 5
    close = {"rtol": 0, "atol": 0 if jax.default_backend() == "cpu" else 1e-6}  # other devices add in orders of theirs
    np.testing.assert_allclose(np.asarray(found.values)[kept], expected[np.asarray(found.rows)[kept]], **close)
    assert not np.asarray(found.values)[~kept].any()


ROWS = 200_003  # a prime, by which a table is known in a program


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the program of another device reads differently")
def test_no_operation_of_a_compiled_step_has_a_whole_table():
    """But the one that writes rows into the table that it was given; and nothing of its size is allocated."""
    table = frozenset({"emb_0/table"})
    recipe = Recipe(
        dlrm(2, (ROWS,), 4, (8,), (8,)),
        keras_sgd(0.1),
        jax.ShapeDtypeStruct((3,), np.int32),
        pytest.fail,
        workers=2,
        batch_size=16,
        steps_per_epoch=1,
        seed=0,
        head=binary_cross_entropy,
        tables=table,
    )
    own = explicit_program(recipe, frozenset())
    compiled = own.extras.lower["step"]().compile()
    size = ROWS * 4 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < size / 10
    assert compiled.memory_analysis().alias_size_in_bytes >= size  # the new table lies where the old one was
    text = compiled.as_text()
    made = re.findall(rf" = f32\[{ROWS},4\]\S* ([\w-]+)\(", text)
    assert set(made) <= {"parameter", "scatter", "fusion", "call", "get-tuple-element", "bitcast"}
    assert made.count("scatter") == 1
    assert not re.search(rf"\[{ROWS * 4}\]|\[{ROWS}\]", text)  # nor has any its elements or rows in another shape


@pytest.mark.slow
@only_whole  # test_strategies.py has several devices of the other networks
def test_several_devices_add_up_rows_as_one_does(repository):
    """To rounding: the gradient of a row is the sum over devices."""
    code = """
import sys; sys.path.insert(0, "tests")
import jax, numpy as np
from test_dlrm import digest, small
results = []
for devices in (1, 2):
    own = small().program(frozenset(), devices=devices)
    state = own.place(own.init())
    for step in range(3):
        state, report = own.step(state, own.batch(0, step), 0, step)
    assert (np.asarray(report.digest) == np.asarray(digest(jax.device_get(state)))).all()
    results.append(jax.device_get(state.params))
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *results)
"""
    environment = {**os.environ, "PYTHONPATH": ".", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", code], cwd=repository, env=environment, check=True)


# ---- Golden run and replay ----------------------------------------------------------------


def test_the_published_sizes_are_the_defaults():
    workload = make_workload("dlrm_criteo")
    sites = workload.sites()
    assert len(workload.tables) == 26 and sum(workload.tables) == 33_762_577
    assert [sites[f"bot_{i}"].shapes[Operand.WEIGHT] for i in range(4)] == [(13, 512), (512, 256), (256, 64), (64, 16)]
    assert [sites[f"top_{i}"].shapes[Operand.WEIGHT] for i in range(3)] == [
        (16 + 27 * 26 // 2, 512),
        (512, 256),
        (256, 1),
    ]
    assert sites["emb_2_grad_wt"].shapes[Operand.OUTPUT] == (10_131_227, 16)
    assert (workload.batch_size, workload.learning_rate) == (128, 0.1)
    assert {workload.kind(site) for site in sites.values()} == {"bottom MLP", "top MLP", "embedding", "interaction"}


# ---- Data: Adult --------------------------------------------------------------------------


def test_the_table_is_adult():
    clicks = load_adult(None)
    assert len(clicks.train) + len(clicks.test) == 48_842 and len(clicks.test) >= 8192
    numbers = clicks.train[:, 1:7].copy().view(np.float32)
    np.testing.assert_allclose(numbers.mean(0, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(numbers.std(0, dtype=float), 1, rtol=1e-5)
    everyone = np.concatenate([clicks.train, clicks.test])
    assert [len(np.unique(column)) for column in everyone[:, 7:].T] == list(SIZES)
    assert [column.max() for column in everyone[:, 7:].T] == [size - 1 for size in SIZES]
    assert everyone[:, 0].mean() == pytest.approx(0.239, abs=1e-3)
    assert clicks.chance == 1 - clicks.positive


def test_smaller_tables_have_fewer_rows():
    few = load_adult(None, tuple(min(size, 4) for size in SIZES))
    np.testing.assert_array_equal(few.train[:, 7:], load_adult(None).train[:, 7:] % np.minimum(SIZES, 4))


def numbered(train, test=10, workers=3):
    """Batches of examples that are their places."""
    parts = [np.repeat(np.arange(count, dtype=np.int32)[:, None], 3, axis=1) for count in (train, test)]
    return ClickBatches(Clicks(*parts, lambda columns: columns, 0.25, ""), seed=1, workers=workers, batch_size=12)


def test_a_batch_is_a_function_of_its_address():
    one, other = numbered(5000), numbered(5000)
    other.train(0, 0)
    for key in ("input", "target"):
        np.testing.assert_array_equal(one.train(3, 2)[key], other.train(3, 2)[key])
    places = {
        (*address, worker): one.train(*address)["target"][worker].tobytes()
        for address in ((0, 0), (0, 1), (1, 0))
        for worker in range(3)
    }
    assert len(set(places.values())) == len(places)
    assert one.train(0, 0)["target"].tobytes() != dataclasses.replace(one, seed=2).train(0, 0)["target"].tobytes()
    few = np.unique([numbered(2).train(0, step)["target"] for step in range(20)])
    assert few.tolist() == [0, 1]


@pytest.mark.parametrize("count, evaluated", [(1, 99), (10, 99), (5000, 9999), (1000, 100)])
def test_the_test_part_is_read_once_evenly_where_it_is_long(monkeypatch, count, evaluated):
    monkeypatch.setattr("fault_injection.data.clicks.EVALUATED", evaluated)
    batches = list(numbered(7, count).test())
    assert len({batch["input"].shape for batch in batches}) == 1
    read = np.concatenate([batch["target"][batch["weight"] > 0] for batch in batches])
    assert read.tolist() == [place * count // min(count, evaluated) for place in range(min(count, evaluated))]


# ---- Data: Criteo -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A `train.txt` of 700 lines; what is converted of it goes to a cache of the test's own."""
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    criteo_text.write(tmp_path / "train.txt", 700)
    return tmp_path


def test_the_columns_are_those_of_the_text(folder):
    rows = np.concatenate([criteo_text.rows(700, [0, 0])])
    clicks = criteo.load_criteo(folder)
    assert (clicks.train.shape, clicks.test.shape) == ((600, 40), (100, 40))
    assert isinstance(clicks.train, np.memmap)
    for part, expected in ((clicks.train, rows[:600]), (clicks.test, rows[600:])):
        np.testing.assert_array_equal(part[:, 0], expected[:, 0])
        columns = clicks.columns(part[:, 1:])
        known = np.maximum(expected[:, 1:], 0)
        np.testing.assert_allclose(columns[:, :13].view(np.float32), np.log(1.0 + known[:, :13]), rtol=1e-6)
        np.testing.assert_array_equal(columns[:, 13:], known[:, 13:] % criteo.SIZES)
    assert clicks.positive == rows[:600, 0].mean()


def test_a_small_chunk_sees_the_same(folder, monkeypatch):
    whole = criteo.load_criteo(folder)
    for path in folder.glob("cache/criteo/*"):
        path.unlink()
    monkeypatch.setattr("fault_injection.data.criteo.CHUNK", 1000)
    text = folder / "train.txt"
    text.write_bytes(text.read_bytes().removesuffix(b"\n"))  # and the last line need not end
    again = criteo.load_criteo(folder)
    assert (again.sha256, again.positive) == (whole.sha256, whole.positive)


def test_the_text_is_converted_once_and_again_when_it_changes_or_the_conversion_is_damaged(folder, monkeypatch, capsys):
    one = criteo.load_criteo(folder)
    with monkeypatch.context() as context:
        context.setattr("fault_injection.data.criteo.converted", pytest.fail)
        assert criteo.load_criteo(folder).sha256 == one.sha256
    (path,) = folder.glob("cache/criteo/*")
    for damaged in (path.read_bytes()[:-1], b"", path.read_bytes().replace(b"\0", b"\1", 1)):
        path.unlink()  # which leaves what is mapped as it is
        path.write_bytes(damaged)
        assert criteo.load_criteo(folder).sha256 == one.sha256
        assert "is damaged (its checksum does not match); it is made again" in capsys.readouterr().err
    criteo_text.write(folder / "train.txt", 701)
    assert criteo.load_criteo(folder).sha256 != one.sha256


GOOD = "1\t" + "5\t" * 13 + "\t".join(["0a1b2c3d"] * 26)


@pytest.mark.parametrize(
    "bad, message",
    [
        ("", "1 columns; expected 40: a label, 13 whole numbers, 26 hexadecimal numbers, with tabs between"),
        (GOOD + "\t", "41 columns; expected 40"),
        (GOOD.replace("\t", ",", 1), "39 columns; expected 40"),
        ("2" + GOOD[1:], "column 1, '2'; expected a label, 0 or 1"),
        (GOOD[1:], "column 1, ''; expected a label, 0 or 1"),
        (GOOD.replace("5", "5.5", 1), "column 2, '5.5'; expected a whole number of at most 9 digits, or nothing"),
        (GOOD.replace("5", "-", 1), "column 2, '-'; expected a whole number"),
        (GOOD.replace("5", "1234567890", 1), "column 2, '1234567890'; expected a whole number of at most 9"),
        (GOOD.replace("5", "a", 1), "column 2, 'a'; expected a whole number"),
        (GOOD.replace("0a1b2c3d", "0g", 1), "column 15, '0g'; expected at most 8 hexadecimal digits, or nothing"),
        (GOOD.replace("0a1b2c3d", "0a1b2c3d4", 1), "column 15, '0a1b2c3d4'; expected at most 8 hexadecimal"),
        (GOOD + "\r", "column 40, '0a1b2c3d\\r'; expected at most 8 hexadecimal digits, or nothing"),
        (GOOD[:-1] + "é", "column 40, '0a1b2c3é'; expected at most 8"),
    ],
)
def test_a_line_that_is_none_is_named(folder, capsys, bad, message):
    lines = [GOOD] * 20
    lines[11] = bad
    (folder / "train.txt").write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert main(["golden", "dlrm_criteo", "--max-rows", "10", "--data-dir", str(folder)]) == 2
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if not line.startswith("dlrm_criteo, ")]
    assert not out and len(said) == 1, err
    assert f"train.txt:12: {message}" in said[0]
    assert not [path for path in folder.glob("cache/**/*") if path.is_file()]


def test_what_is_missing_is_zero():
    row = converted(b"0" + b"\t" * 39 + b"\n", 0, None)
    assert row.shape == (1, 40) and not row.any()


@pytest.mark.parametrize(
    "options, message",
    [
        (["dlrm_criteo", "--data-dir", "DIR/none"], "none: has no train.txt; expected that of Criteo's challenge"),
        (["dlrm_criteo", "--data-dir", "DIR"], "train.txt: 6 rows; expected at least 7"),
        (["dlrm", "--batch-size", "30"], "batch_size 30 is not a multiple of the 4 workers"),
        (["dlrm", "--bottom", "0"], "--bottom: '0'; expected a width for each hidden layer, such as 64/32"),
        (["dlrm", "--width", "8"], "--width is not an option of dlrm"),
        (["dlrm", "--dataset", "adults"], "'adults' is unknown; did you mean 'adult'?"),
    ],
)
def test_a_mistake_is_answered_in_one_line(capsys, folder, options, message):
    (folder / "train.txt").write_text(f"{GOOD}\n" * 6)
    assert main(["golden", *(word.replace("DIR", str(folder)) for word in options)]) == 2
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if not line.startswith("dlrm")]
    assert not out and len(said) == 1 and message in said[0], err


def test_a_struck_category_is_named_as_an_integer(tmp_path):
    file = injection_file(
        tmp_path / "x.csv", stage="fwrd_inject", fmodel="INPUT", layer="emb_0", position="3", value="7"
    )
    assert parse_injection(file.read_text()).fault().flip[0] == 7


@pytest.mark.slow
@only_whole
def test_a_million_rows_train(tmp_path, monkeypatch, capsys):
    """Of a generated file; with tables of up to a hundred thousand rows."""
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    positive = criteo_text.write(tmp_path / "train.txt", 1_000_000)
    clicks = criteo.load_criteo(tmp_path)
    assert (len(clicks.train), len(clicks.test)) == (857_143, 142_857)
    assert clicks.positive == positive / 857_143
    command = ["golden", "dlrm_criteo", "--max-rows", "100000", "--steps-per-epoch", "5", "--epochs", "2"]
    assert main([*command, "--data-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


# ---- The shipped injections ---------------------------------------------------------------

VERDICTS = {"exactly_masked": "Masked", "immediate_infs_nans": "Immediate INFs/NaNs", "slow_degrade": "SlowDegrade"}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_shipped_injection_has_a_reference_result_with_its_verdict(repository, results, name):
    injection = read_injection(repository / "injections" / "dlrm" / f"{name}.csv")
    stated = json.loads((results / "dlrm" / name / "outcome.json").read_text())
    assert stated["outcome"] == VERDICTS[name]
    provenance = json.loads((results / "dlrm" / name / "provenance.json").read_text())
    assert provenance["injection"] == format_injection(injection).splitlines()
