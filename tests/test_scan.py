"""`scan`: what is kept of an array, what is found in a damaged checkpoint, and that a sound one gives nothing."""

import hashlib
import json

import mutations
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import WRITERS, written
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.scan import BUDGET, scan
from fault_injection.commands.main import main

RNG = np.random.default_rng


def checkpoint(folder, arrays, name="c.npz"):
    path = folder / name
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        safetensors.numpy.save_file(arrays, path)
    return open_checkpoint(path)


def kinds(found):
    return [(one.array, one.kind, one.element) for one in found.findings]


def weights(seed=0, layers=6, shape=(40, 30)):
    """Layers of one shape, as a small network has them, with their optimizer's moments."""
    rng = RNG(seed)
    arrays = {}
    for k in range(layers):
        arrays[f"params/fc{k}/kernel"] = rng.normal(0, 0.05, shape).astype(np.float32)
        arrays[f"params/fc{k}/bias"] = rng.normal(0, 0.02, shape[1]).astype(np.float32)
        gradients = rng.normal(0, 1e-3, shape)
        arrays[f"opt_state/m/fc{k}/kernel"] = gradients.astype(np.float32)
        arrays[f"opt_state/v/fc{k}/kernel"] = np.square(gradients).astype(np.float32)
    return arrays


SOUND = {
    "normal": lambda rng, n: rng.normal(0, 0.05, n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "Laplace": lambda rng, n: rng.laplace(0, 0.1, n),
    "Student 2": lambda rng, n: rng.standard_t(2, n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "logarithm normal": lambda rng, n: rng.lognormal(-8, 4, n),
    "squares": lambda rng, n: rng.normal(0, 1e-3, n) ** 2,
    "sparse": lambda rng, n: rng.normal(0, 0.05, n) * (rng.random(n) < 0.1),
    "powers of two": lambda rng, n: 2.0 ** rng.integers(-20, 3, n),
    "steps": lambda rng, n: np.round(rng.normal(0, 30, n)) / 64,
    "ones": lambda rng, n: np.ones(n),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_arrays_of_any_distribution_give_no_finding(tmp_path, name):
    """Of 60 arrays, and more sizes, none may have one: the budget of each file is a thousandth."""
    rng = RNG(hash_of(name))
    for dtype in ("float32", "float16"):
        with np.errstate(over="ignore"):
            arrays = {
                f"fc{k}/kernel": np.clip(SOUND[name](rng, n), -6e4, 6e4).astype(dtype).reshape(shape)
                for k, (n, shape) in enumerate([(3, (3,)), (64, (64,)), (900, (30, 30)), (20_000, (100, 200))] * 15)
            }
        assert kinds(scan(checkpoint(tmp_path, arrays))) == []


def hash_of(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


# What is found.


@pytest.mark.parametrize("seed", range(4))
def test_every_flip_of_the_highest_exponent_bit_is_found_and_named(tmp_path, seed):
    opened = checkpoint(tmp_path, weights(seed))
    for number in range(25):
        altered = draw_alteration(opened, Selection(count=1, critical=True, seed=number))
        opened.write(tmp_path / "altered.npz", altered)
        ((name, one),) = altered.items()
        found = scan(open_checkpoint(tmp_path / "altered.npz"))
        element = tuple(map(int, np.unravel_index(one.places[0], opened.arrays[name].shape)))
        assert [(f.array, f.element) for f in found.findings] == [(name, element)]
        assert found.findings[0].bits == f"{int(one.after[0]):08x}"


def test_several_flips_in_one_array_are_all_found(tmp_path):
    opened = checkpoint(tmp_path, weights())
    altered = draw_alteration(opened, Selection(count=10, critical=True, names=("params/fc0/kernel",)))
    opened.write(tmp_path / "altered.npz", altered)
    found = scan(open_checkpoint(tmp_path / "altered.npz"))
    places = altered["params/fc0/kernel"].places
    assert {one.element for one in found.findings} == {
        tuple(map(int, np.unravel_index(place, (40, 30)))) for place in places
    }


def planted(what):
    """Arrays with one thing wrong, and what has to be found: array, kind, element."""
    arrays = weights()
    kernel, moment = arrays["params/fc2/kernel"], arrays["opt_state/v/fc1/kernel"]
    match what:
        case "nan" | "infinite":
            kernel[3, 4] = np.nan if what == "nan" else -np.inf
            return arrays, ("params/fc2/kernel", what, (3, 4))
        case "small":
            kernel[3, 4] = 1e-30
            return arrays, ("params/fc2/kernel", "small", (3, 4))
        case "zero that was flipped":
            kernel[np.abs(kernel) < 0.02] = 0
            kernel[3, 4] = 2.0
            return arrays, ("params/fc2/kernel", "large", (3, 4))
        case "alone":
            arrays["params/fc2/bias"][:] = 0
            arrays["params/fc2/bias"] = np.zeros(70, np.float32)
            arrays["params/fc2/bias"][9] = 2.0
            return arrays, ("params/fc2/bias", "alone", (9,))
        case "siblings":
            for k in range(6):
                arrays[f"params/fc{k}/temperature"] = np.asarray(1 + k / 10, np.float32)
            arrays["params/fc4/temperature"] = np.asarray(1e36, np.float32)
            return arrays, ("params/fc4/temperature", "siblings", ())
        case "second moment":
            moment[5, 6] *= -1
            return arrays, ("opt_state/v/fc1/kernel", "negative", (5, 6))
        case "running variance":
            arrays["stats/bn/var"] = np.abs(RNG(0).normal(1, 0.1, 16)).astype(np.float32)
            arrays["stats/bn/var"][7] *= -1
            return arrays, ("stats/bn/var", "negative", (7,))
        case "huge":
            return {"a": np.array([0.5, 1e30], np.float32)}, ("a", "huge", (1,))
        case "dead block":
            arrays["params/fc2/kernel"] = RNG(1).normal(0, 0.05, (30, 1000)).astype(np.float32)
            arrays["params/fc2/kernel"][4, 100:228] = 0
            return arrays, ("params/fc2/kernel", "zeros", (4, 100))
        case "repeated block":
            arrays["params/fc2/kernel"] = RNG(1).normal(0, 0.05, (30, 1024)).astype(np.float32)
            arrays["params/fc2/kernel"][4, 256:384] = arrays["params/fc2/kernel"][1, 128:256]
            return arrays, ("params/fc2/kernel", "repeated", (4, 256))
        case "scale":
            arrays["fc9.weight"] = RNG(2).integers(-127, 128, (20, 20)).astype(np.int8)
            arrays["fc9.weight_scale"] = np.full(20, 0.01, np.float32)
            arrays["fc9.weight_scale"][3] *= -1
            return arrays, ("fc9.weight_scale", "scale", (3,))
        case "counter":
            arrays["opt_state/count"] = np.asarray(-(2**31) + 7, np.int32)
            return arrays, ("opt_state/count", "counter", ())
        case "counters":
            for k in range(5):
                arrays[f"opt_state/{k}/step"] = np.asarray(1000 if k != 3 else 1004, np.float32)
            return arrays, ("opt_state/3/step", "counter", ())
        case "boolean":
            mask = RNG(3).random(50) < 0.5
            mask.view(np.uint8)[8] = 3
            return {**arrays, "mask": mask}, ("mask", "boolean", (8,))
        case "integer":
            arrays["buckets"] = RNG(4).integers(0, 1000, 300)
            arrays["buckets"][17] += 1 << 40
            return arrays, ("buckets", "large", (17,))
    raise AssertionError(what)


PLANTED = (
    *("nan", "infinite", "small", "zero that was flipped", "alone", "siblings", "second moment", "running variance"),
    *("huge", "dead block", "repeated block", "scale", "counter", "counters", "boolean", "integer"),
)


@pytest.mark.parametrize("what", PLANTED)
def test_one_thing_wrong_is_one_finding(tmp_path, what):
    arrays, expected = planted(what)
    assert kinds(scan(checkpoint(tmp_path, arrays))) == [expected]


def meant(what):
    """Arrays that look odd, and are sound."""
    arrays, rng = weights(), RNG(5)
    match what:
        case "mask":
            arrays["mask"] = np.triu(np.full((20, 20), -np.inf, np.float32), 1)
        case "values of attention":
            arrays["opt_state/v"] = rng.normal(size=(30, 30)).astype(np.float32)
        case "a row of zeros":
            arrays["params/table"] = rng.normal(size=(50, 256)).astype(np.float32)
            arrays["params/table"][0] = 0
        case "equal rows":
            arrays["params/table"] = rng.normal(size=(50, 256)).astype(np.float32)
            arrays["params/table"][30:33] = arrays["params/table"][30]
        case "dead channels":
            arrays["stats/bn/var"] = np.full(100, 0.5, np.float32) + rng.random(100).astype(np.float32)
            arrays["stats/bn/var"][3] = 1e-38
            arrays["opt_state/v/fc0/bias"] = np.square(rng.normal(0, 1e-3, 100)).astype(np.float32)
            arrays["opt_state/v/fc0/bias"][3] = 1e-38
        case "zeros alone":
            arrays["params/fc2/bias"] = np.zeros(200, np.float32)
        case "a scale of norms":
            arrays["ln/scale"] = -np.abs(rng.normal(1, 0.1, 64)).astype(np.float32)
            arrays["ln/weight"] = rng.integers(-127, 128, 64).astype(np.int8)
            arrays["ln/scale"][:32] *= -1
        case "empty":
            arrays["empty"] = np.zeros((0, 3), np.float32)
    return arrays


@pytest.mark.parametrize(
    "what",
    [
        *("mask", "values of attention", "a row of zeros", "equal rows", "dead channels", "zeros alone"),
        *("a scale of norms", "empty"),
    ],
)
def test_what_may_be_meant_is_no_finding(tmp_path, what):
    assert kinds(scan(checkpoint(tmp_path, meant(what)))) == []


# Laws.


@pytest.mark.parametrize("what", ["nan", "small", "zero that was flipped", "second moment", "counters", "siblings"])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_findings(tmp_path, kind, what):
    arrays, expected = planted(what)
    assert kinds(scan(open_checkpoint(written(tmp_path, kind, arrays)))) == [expected]


@given(st.integers(0, 10**6), st.integers(-20, 20))
@settings(max_examples=25, deadline=None)
def test_findings_follow_their_elements_and_do_not_know_the_unit(tmp_path_factory, seed, power):
    """Elements in another order give the findings in that order; all times a power of two gives the same."""
    rng, folder = RNG(seed), tmp_path_factory.mktemp("law")
    values = rng.normal(0, 0.05, 1200).astype(np.float32)
    places = rng.choice(1200, 3, replace=False)
    values[places] *= np.array([1e12, 1e-20, 1e8], np.float32)
    order = rng.permutation(1200)
    first = scan(checkpoint(folder, {"a": values.reshape(30, 40)}))
    second = scan(checkpoint(folder, {"a": np.ldexp(values[order], power).reshape(30, 40)}))
    back = [(one.kind, int(order[np.ravel_multi_index(one.element, (30, 40))])) for one in second.findings]
    same = [(one.kind, int(np.ravel_multi_index(one.element, (30, 40)))) for one in first.findings]
    assert (
        sorted(back)
        == sorted(same)
        == sorted([("large", int(places[0])), ("small", int(places[1])), ("large", int(places[2]))])
    )


@given(st.floats(1e-9, 1.0))
@settings(max_examples=25, deadline=None)
def test_a_larger_budget_finds_no_less(tmp_path_factory, budget):
    arrays = weights()
    arrays["params/fc2/kernel"][1, 1] = 6.0
    opened = checkpoint(tmp_path_factory.mktemp("law"), arrays)
    few, many = (set(kinds(scan(opened, limit))) for limit in (budget, min(1.0, 3 * budget)))
    assert few <= many
    assert all(one.chance is None or one.chance <= budget for one in scan(opened, budget).findings)


# The command.


def test_the_command_says_each_finding_in_one_line_and_gives_3_when_asked(tmp_path, capsys):
    arrays, _ = planted("nan")
    path = checkpoint(tmp_path, arrays).path
    assert main(["scan", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "params/fc2/kernel [3, 4] 7fc00000 = nan: is no number (no chance: no sound training writes it)"
    )
    assert "1 finding(s) in 21,780 elements of 24 arrays" in lines[1] and "mantissa" in lines[-1]
    assert main(["scan", str(path), "--fail"]) == 3
    assert main(["scan", str(checkpoint(tmp_path, weights(), "d.npz").path), "--fail"]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_the_command_answers_in_json_with_what_it_did_not_judge(tmp_path, capsys):
    arrays = {**weights(), "text": np.array(["a", "bc"]), "small": np.ones(4, np.int8)}
    arrays["params/fc0/kernel"][0, 0] = 1e30
    assert main(["scan", str(checkpoint(tmp_path, arrays).path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (one,) = found["findings"]
    assert (one["array"], one["kind"], one["element"]) == ("params/fc0/kernel", "large", [0, 0])
    assert 0 < one["chance"] <= found["budget"] == BUDGET
    assert set(found["unjudged"]) == {"text", "small"} and found["arrays"] == 25


@pytest.mark.parametrize("budget", ["0", "-1", "2", "nan", "x"])
def test_a_wrong_budget_is_refused(tmp_path, capsys, budget):
    assert main(["scan", str(tmp_path), "--budget", budget]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("kind", ["npz", "npz compressed", "ours", "safetensors", "HDF5", "msgpack", "Keras"])
def test_damaged_files_give_findings_or_one_line(tmp_path, capsys, kind):
    (tmp_path / "sound").mkdir()
    sound, path = mutations.source(tmp_path / "sound", kind), tmp_path / "mutated"
    path = path.with_suffix(sound.suffix)
    codes = set()
    for number in range(300):
        mutations.mutate(sound, path, kind, number)
        before = path.read_bytes()
        code = main(["scan", str(path), "--fail"])
        out, err = capsys.readouterr()
        assert code in (0, 2, 3) and path.read_bytes() == before
        assert len(err.splitlines()) == (code == 2) and "Traceback" not in err
        assert bool(out) == (code != 2)
        codes.add(code)
    assert {0, 2} <= codes
    assert main(["scan", str(sound)]) == 0
