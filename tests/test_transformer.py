"""The workload `transformer`: its text, its steps, its verdicts, and what is wrong with input."""

import dataclasses
import functools
import json
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from injection_files import small_file
from whole import some

from fault_injection.commands.main import main
from fault_injection.data.shakespeare import load_shakespeare
from fault_injection.data.token_folder import load_token_folder
from fault_injection.data.tokens import TokenBatches, checked_tokens
from fault_injection.faults.injection_file import format_injection, parse_injection, read_injection
from fault_injection.machine.errors import InputError
from fault_injection.models.fault import inactive_fault
from fault_injection.runs.golden_run import Golden
from fault_injection.workloads.registry import make_workload

OPTIONS = {
    "width": 16,
    "blocks": 1,
    "heads": 2,
    "kv_heads": 1,
    "context": 8,
    "batch_size": 8,
    "workers": 2,
    "epochs": 3,
    "steps_per_epoch": 6,
}


def small(**changes):
    return make_workload("transformer", **OPTIONS | changes)


# Operations of each kind; all sites take longer to compile (and are struck in test_parity.py).
STRUCK = (
    *("embed_tokens", "embed_tokens_grad_wt", "layers_0_self_attn_scores", "layers_0_self_attn_mix_grad_in"),
    *("layers_0_self_attn_scores_grad_wt", "lm_head_grad_wt"),
)


@functools.cache
def program():
    """It can strike the sites of STRUCK."""
    return small().program(frozenset(STRUCK))


def start():
    return program().place(program().init())


def injection_file(path, **fault):
    rows = {"stage": "fwrd_inject", "fmodel": "RD", "layer": "layers_0_mlp_up_proj", "position": "0/0/0", "value": "1"}
    return small_file(path, "transformer", OPTIONS, 0.005, **rows | fault)


# ---- Steps --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_bits_are_the_same_whichever_sites_are_supported():
    every = small().program()
    found = every.faulty_step(every.place(every.init()), every.batch(0, 0), 0, 0, inactive_fault())
    expected = program().step(start(), program().batch(0, 0), 0, 0)
    np.testing.assert_array_equal(found[1].digest, expected[1].digest)


@pytest.mark.slow  # another program
def test_the_gradient_is_the_sum_over_workers():
    """The same sequences on one worker and on two give one gradient, to rounding."""
    alone = small(workers=1).program(frozenset())
    batch = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), program().batch(0, 0))
    _, one = alone.step(alone.place(alone.init()), batch, 0, 0)
    _, two = program().step(start(), program().batch(0, 0), 0, 0)
    np.testing.assert_allclose(one.magnitude, two.magnitude, rtol=1e-4)


# ---- Golden run and replay ----------------------------------------------------------------


def test_a_token_is_named_as_an_integer(tmp_path):
    file = injection_file(tmp_path / "x.csv", fmodel="INPUT", layer="embed_tokens", position="0/3", value="7")
    fault = parse_injection(file.read_text()).fault()
    assert fault.flip[0] == 7


# ---- Data ---------------------------------------------------------------------------------


def test_the_text_is_shakespeare():
    tokens = load_shakespeare(None, 128, 64)
    assert (len(tokens.train), len(tokens.test)) == (1_003_854, 111_540)
    assert bytes(tokens.test[-20:]).decode("ascii")
    assert tokens.counts.sum() == len(tokens.train)


def numbered(length):
    """Batches of a text in which every token is its place."""
    part = np.arange(length, dtype=np.uint16)
    return TokenBatches(checked_tokens(part, part, length, 8, ("a", "b")), 1, workers=3, batch_size=12, context=8)


def test_a_batch_is_a_function_of_its_address():
    one, other = numbered(5000), numbered(5000)
    other.train(0, 0)
    for key in ("input", "target"):
        np.testing.assert_array_equal(one.train(3, 2)[key], other.train(3, 2)[key])
    places = {
        (*address, worker): one.train(*address)["input"][worker].tobytes()
        for address in ((0, 0), (0, 1), (1, 0))
        for worker in range(3)
    }
    assert len(set(places.values())) == len(places)
    assert one.train(0, 0)["input"].tobytes() != dataclasses.replace(one, seed=2).train(0, 0)["input"].tobytes()


def test_every_place_of_the_training_part_is_drawn():
    few = numbered(10)  # two places: the last target is the last token
    starts = np.unique([few.train(0, step)["input"][..., 0] for step in range(20)])
    assert starts.tolist() == [0, 1]


@pytest.mark.parametrize("length", [9, 10, 100, 1000])
def test_the_test_part_is_read_once_from_its_beginning(length):
    targets, seen = [], []
    for batch in numbered(length).test():
        assert batch["input"].shape == batch["target"].shape == batch["weight"].shape == (3, 4, 8)
        np.testing.assert_array_equal(batch["target"], batch["input"] + 1)
        seen += [batch["weight"].reshape(-1)]
        targets += [batch["target"].reshape(-1)]
    read = np.concatenate(targets)[np.concatenate(seen) > 0]
    assert read.tolist() == list(range(1, 1 + (length - 1) // 8 * 8))


def test_a_long_test_part_is_read_evenly(monkeypatch):
    monkeypatch.setattr("fault_injection.data.tokens.EVALUATED", 24)
    batches = list(numbered(1000).test())
    read = np.concatenate([batch["input"][..., 0][batch["weight"][..., 0] > 0] for batch in batches])
    assert read.tolist() == [0, 41 * 8, 82 * 8]


@pytest.fixture
def folder(tmp_path):
    """Tokens as nanoGPT writes them."""
    for name, count in (("train.bin", 5000), ("val.bin", 500)):
        (np.arange(count) % 300).astype("<u2").tofile(tmp_path / name)
    return tmp_path


def test_a_folder_of_tokens_is_mapped_into_memory(folder):
    tokens = load_token_folder(folder, 300, 64)
    assert isinstance(tokens.train, np.memmap) and isinstance(tokens.test, np.memmap)
    assert (len(tokens.train), len(tokens.test), tokens.train[299]) == (5000, 500, 299)
    assert tokens.counts.tolist() == np.bincount(np.arange(5000) % 300).tolist()
    (folder / "val.bin").write_bytes(b"\1\0" * 500)
    assert load_token_folder(folder, 300, 64).sha256 != tokens.sha256


def test_looking_in_pieces_sees_the_same(folder, monkeypatch):
    whole = load_token_folder(folder, 300, 64)
    monkeypatch.setattr("fault_injection.data.tokens.CHUNK", 7)
    again = load_token_folder(folder, 300, 64)
    assert whole.sha256 == again.sha256
    np.testing.assert_array_equal(whole.counts, again.counts)
    with pytest.raises(InputError, match=r"train.bin: token 299 at position 299; expected 0 to 298, the vocabulary$"):
        load_token_folder(folder, 299, 64)


# ---- Mistakes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        (["--width", "20", "--heads", "4"], "width 20 with 4 heads; expected a multiple of 8"),
        (["--kv-heads", "3"], "kv_heads 3; expected a divisor of the 4 heads"),
        (["--vocabulary", "64"], "vocabulary 64 is too small for shakespeare, whose tokens go up to 122"),
        (["--batch-size", "30"], "batch_size 30 is not a multiple of the 4 workers"),
        (["--dataset", "hamlet"], "'hamlet' is unknown; expected one of shakespeare, folder"),
        (["--dropout", "0.1"], "--dropout is not an option of transformer"),
        (["--dataset", "folder", "--data-dir", "DIR/none"], "none: has no train.bin and no val.bin"),
        (["--dataset", "folder"], "nowhere: has no train.bin and no val.bin; expected"),
        (["--dataset", "folder", "--data-dir", "DIR"], "train.bin: token 128 at position 128; expected 0 to 127"),
        (
            ["--dataset", "folder", "--data-dir", "DIR", "--vocabulary", "300", "--context", "500"],
            "val.bin: 500 tokens; expected at least 501",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_line(capsys, monkeypatch, folder, tmp_path_factory, options, message):
    monkeypatch.setenv("FAULT_INJECTION_DATA", "nowhere")
    cache = tmp_path_factory.mktemp("cache")
    command = ["golden", "transformer", *(word.replace("DIR", str(folder)) for word in options), "--cache", str(cache)]
    assert main(command) == 2
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if not line.startswith("transformer, ")]
    assert not out and len(said) == 1 and message in said[0]
    assert not list(cache.rglob("*.npz"))


def test_a_file_of_an_odd_number_of_bytes_is_refused(folder):
    with (folder / "val.bin").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(InputError, match=r"val.bin: 1001 bytes; expected an even number, two for each token$"):
        load_token_folder(folder, 300, 64)


def test_an_empty_file_is_refused(folder):
    (folder / "train.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"train.bin: 0 tokens; expected at least 65"):
        load_token_folder(folder, 300, 64)


@pytest.mark.parametrize("value", ["1.5", "nan", "2147483648"])
def test_a_token_that_is_no_integer_is_refused(tmp_path, value):
    file = injection_file(tmp_path / "x.csv", fmodel="INPUT", layer="embed_tokens", position="0/3", value=value)
    with pytest.raises(InputError, match=r"^x:9: inj_values .* in the input of embed_tokens, which is int32; expected"):
        parse_injection(file.read_text(), "x")


def test_trainings_of_two_lengths_are_two_golden_runs(tmp_path):
    """The learning rate of a step depends on the length; where it does not, a longer run continues a shorter one."""

    def keys(name, options):
        workloads = [make_workload(name, **options, epochs=epochs) for epochs in (2, 3)]
        return {Golden(w, w.program(frozenset()), tmp_path).key for w in workloads}

    options = {name: value for name, value in OPTIONS.items() if name != "epochs"}
    assert len(keys("transformer", options)) == 2
    assert len(keys("resnet18", {"dataset": "digits", "width": 2, "batch_size": 128})) == 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float8"])
def test_a_training_that_was_killed_goes_on_with_the_same_bits(repository, tmp_path, precision):
    """With the largest values that the scales of eight bits follow."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    command = [sys.executable, "-m", "fault_injection", "golden", "transformer", f"--precision={precision}", *flags]

    def records(cache):
        return sorted(cache.glob("golden/*/records/[0-9]*.npz"))

    one, two = tmp_path / "one", tmp_path / "two"
    with subprocess.Popen([*command, "--cache", one], cwd=repository, stderr=subprocess.DEVNULL) as process:
        while not records(one) and process.poll() is None:
            time.sleep(0.02)
        process.kill()
    for cache in (one, two):
        subprocess.run([*command, "--cache", cache], cwd=repository, check=True, capture_output=True)
    assert len(records(one)) == len(records(two)) == OPTIONS["epochs"]
    for a, b in zip(records(one), records(two), strict=True):
        np.testing.assert_array_equal(np.load(a)["digest"], np.load(b)["digest"])


# ---- The shipped injections ---------------------------------------------------------------

VERDICTS = {
    "exactly_masked": "Masked",
    "masked": "Masked",
    "immediate_infs_nans": "Immediate INFs/NaNs",
    "slow_degrade": "SlowDegrade",
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", VERDICTS)
def test_a_shipped_injection_has_a_reference_result_with_its_verdict(repository, results, name, precision):
    name, verdict = name if precision == "float32" else f"{precision}_{name}", VERDICTS[name]
    injection = read_injection(repository / "injections" / "transformer" / f"{name}.csv")
    assert injection.workload.precision == precision
    stated = json.loads((results / "transformer" / name / "outcome.json").read_text())
    assert stated["outcome"] == verdict
    assert (stated["exactly_masked_after"] == 0) == name.endswith("exactly_masked")
    provenance = json.loads((results / "transformer" / name / "provenance.json").read_text())
    assert provenance["injection"] == format_injection(injection).splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["slow_degrade", "bfloat16_slow_degrade"], ["slow_degrade"]))
def test_a_shipped_injection_ends_as_its_reference_result(repository, tmp_path, capsys, name):
    """Those of the shortest training, two epochs; the others were replayed when their results were made."""
    file = repository / "injections" / "transformer" / f"{name}.csv"
    assert main(["replay", str(file), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == VERDICTS["slow_degrade"]
