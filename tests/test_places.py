"""The same fault at other places of its operand: each is what a replay there is, and what stops an error is told."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from small import SITE, UNREAD, small, striking_program

from fault_injection.commands import places
from fault_injection.commands.main import main
from fault_injection.commands.places import _died
from fault_injection.faults.element_bits import ravel
from fault_injection.faults.injection import Injection
from fault_injection.faults.injection_file import write_injection
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.places import at_places, other_places
from fault_injection.runs.replay_run import replay

pytestmark = pytest.mark.usefixtures("compiled_quickly")

WORKLOAD = small(epochs=3)
HUGE = Injection(WORKLOAD, "bkwd_inject", "RD", 2, SITE, 1, 4, ((5, 2, 1, 3),), (3e38,))


def golden_of(cache):
    return Golden(WORKLOAD, striking_program(), cache)


def test_each_place_comes_to_what_a_replay_there_comes_to(cache):
    faults = [HUGE, *other_places(HUGE, 3, seed=1)]
    found = list(at_places(faults, golden_of(cache), steps=12))
    for one in found:
        alone = replay(dataclasses.replace(one.injection, horizon=12), golden_of(cache))
        for said in ("outcome", "first_nonfinite", "first_nonfinite_state", "exactly_masked_after"):
            assert getattr(one.outcome, said) == getattr(alone.outcome, said)
        assert int(one.struck.output_changed) == int(alone.struck.output_changed)
        last = HUGE.step + one.steps - 1  # a replay that is exactly masked is gone on with as the golden run did
        assert one.metric[0] == pytest.approx(float(alone.faulty.column("metric")[last]), nan_ok=True)


def test_a_run_that_reaches_the_end_is_judged_beside_the_same_twins(tmp_path):
    golden, late = golden_of(tmp_path), dataclasses.replace(HUGE, values=(0.05,))
    for run in (golden, golden.twin_run(1), golden.twin_run(2)):
        run.make(WORKLOAD.epochs)
    (one,) = at_places([late], golden, steps=100)
    assert one.outcome == replay(late, golden).outcome and one.outcome.tolerance["twins"] == 2


def test_what_nobody_reads_reaches_no_parameter(cache):
    unread = dataclasses.replace(HUGE, layer=UNREAD, positions=((5, 2, 1, 2),), values=(1e18,))
    for one in at_places([unread, *other_places(unread, 2, seed=0)], golden_of(cache), steps=5):
        assert one.outcome.exactly_masked_after == 0 and one.steps == 1
        assert one.reached == () and int(one.struck.operand_changed) == 1
    (struck,) = at_places([HUGE], golden_of(cache), steps=1)
    assert len(struck.reached) > 3


def test_places_are_other_ones_and_groups_stay_groups():
    shape = HUGE.tensor.shape
    size = int(np.prod(shape))
    drawn = [int(ravel(one.positions, shape)[0]) for one in other_places(HUGE, 200, seed=3)]
    assert len({*drawn, int(ravel(HUGE.positions, shape)[0])}) == 201 and max(drawn) < size
    assert drawn == [int(ravel(one.positions, shape)[0]) for one in other_places(HUGE, 200, seed=3)]
    group = tuple(zip(*(axis.tolist() for axis in np.unravel_index(np.arange(4, 8), shape)), strict=True))
    four = dataclasses.replace(HUGE, positions=group, values=(1.0, 2.0, 3.0, 4.0))
    for one in other_places(four, 50, seed=0):
        index = ravel(one.positions, shape)
        assert index[0] % 4 == 0 and (np.diff(index) == 1).all() and one.values == four.values
    assert len(other_places(four, 10**6, seed=0)) == size // 4 - 1  # the operand has no more


def test_the_command_counts_what_came_of_the_places(cache, tmp_path, capsys):
    write_injection(tmp_path / "huge.csv", HUGE)
    words = ["places", str(tmp_path / "huge.csv"), "--count", "3", "--steps", "4", "--cache", str(cache)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "5/2/1/3 (its own)" in told and " of 3 other places [" in told and "parameters reached" in told
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["places"]
    assert len(found) == 4 and found[0]["place"] == "5/2/1/3" and {"outcome", "reached", "steps"} <= found[0].keys()
    assert main(["places", str(tmp_path / "huge.csv"), "--count", "0"]) == 2
    assert "expected a whole number from 1" in capsys.readouterr().err


def test_the_command_goes_on_from_the_places_that_a_file_has(cache, tmp_path, capsys, monkeypatch):
    write_injection(tmp_path / "huge.csv", HUGE)
    out = tmp_path / "kept" / "places.json"
    words = ["places", str(tmp_path / "huge.csv"), "--steps", "4", "--cache", str(cache), "--json", "--out", str(out)]

    def told(*more):
        assert main([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)

    def fail_after_two(faults, golden, steps):
        yield from itertools.islice(at_places(faults, golden, steps), 2)
        raise OSError("the machine is gone")

    with monkeypatch.context() as patched:
        patched.setattr(places, "at_places", fail_after_two)
        assert main([*words, "--count", "3"]) == 2
    first = json.loads(out.read_text())
    assert len(first["places"]) == 2
    followed = []

    def counted(faults, golden, steps):
        followed.append(len(faults))
        return at_places(faults, golden, steps)

    monkeypatch.setattr(places, "at_places", counted)
    capsys.readouterr()
    assert told("--count", "3")["places"][:2] == first["places"]
    out_of_one = out.read_bytes()
    out.unlink()
    told("--count", "3")
    assert out.read_bytes() == out_of_one  # as if nothing had happened
    assert len(told("--count", "5")["places"]) == 6 and len(told("--count", "1")["places"]) == 2
    assert followed == [2, 4, 2, 0]
    for change, expected in ((["--seed", "1"], "has places of another seed"), (["--steps", "5"], "of another steps")):
        before = out.read_bytes()
        assert main([*words, *change]) == 2 and expected in capsys.readouterr().err and out.read_bytes() == before
    out.write_text('{"places": [{}]}')
    assert main(words) == 2 and "is no file of this command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"struck": False, "operand_changed": 0, "output_changed": 0}, "nothing was struck"),
        ({"struck": True, "operand_changed": 0, "output_changed": 0}, "had that value already"),
        ({"struck": True, "operand_changed": 1, "output_changed": 0}, "the operation's result did not change"),
        ({"struck": True, "operand_changed": 1, "output_changed": 2}, "what stands behind the operation"),
    ],
)
def test_where_an_error_died_is_said(row, expected):
    assert expected in _died(row)
