"""The training whose every bit flip was followed to the end: its store, its replays and its campaign say the same.

The store was made on one machine.  Where this one computes otherwise, its bits may differ from the store's, and with
them a verdict near a threshold; what is followed anew and what is replayed here have the same bits anywhere.
"""

import collections
import importlib
import itertools
import os
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from whole import only_whole

from fault_injection.machine.environment import arithmetic
from fault_injection.questions.outcomes.conditions import Conditions
from fault_injection.questions.outcomes.experiment import Laboratory, run_experiment
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import draw_experiment
from fault_injection.runs.outcome import MASKED
from fault_injection.runs.steps import Address

# The share of verdicts that may be others where arithmetic is another.  Compiled without optimisation, as quick tests
# are, 0 of 2,220 were others, 1,920 of them drawn by lot and 300 of rare outcomes; 3 % of them ended at another step.
APART = 0.02


class Programs(NamedTuple):
    enumerate: Any
    follow: Any
    compare: Any
    read: Any


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Optax mixes types, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def folder(results):
    return results / "populations" / "adam"


@pytest.fixture(scope="module")
def programs(results, folder):
    """The programs that follow flips and compare them, and the one that reads the store."""
    with pytest.MonkeyPatch.context() as patch:
        for path in (results, folder):
            patch.syspath_prepend(path)
        names = ("enumerate_flips", "follow_flips", "compare_flips", "training_flips")
        yield Programs(*map(importlib.import_module, names))


@pytest.fixture(scope="module")
def known(programs, folder):
    return programs.read.TrainingFlips(folder)


@pytest.fixture(scope="module")
def store(folder):
    with np.load(folder / "flips.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def enumeration(programs, cache):
    with jax.numpy_dtype_promotion("standard"):
        return programs.follow.Enumeration(programs.enumerate.made_golden(cache))


@pytest.fixture(scope="module")
def same_arithmetic(known):
    """Whether this process computes what the one did that made the store."""
    made = known.told["determined_by"]["arithmetic"]
    here = arithmetic(1)
    flags = known.told["environment"]["XLA_FLAGS"].split()
    return all(made[name] == here[name] for name in here) and set(os.environ["XLA_FLAGS"].split()) == set(flags)


def test_the_store_has_every_bit_of_every_element_at_every_time(known, enumeration):
    leaves = dict(zip(enumeration.names, enumeration.sizes, strict=True))
    times = [(epoch, step) for epoch in (2, 10, 20) for step in range(4)]
    assert list(map(tuple, known.times.tolist())) == times
    assert {name: leaf.outcome.shape for name, leaf in known.leaves.items()} == {
        name: (len(times), size, 32) for name, size in leaves.items()
    }
    assert known.count == known.told["flips"] == sum(leaves.values()) * 32 * len(times)


def test_outcomes_agree_with_where_the_runs_ended(known):
    masked, nonfinite = known.outcomes.index(MASKED), [k for k, name in enumerate(known.outcomes) if "INFs" in name]
    immediate = known.outcomes.index("Immediate INFs/NaNs")
    for leaf in known.leaves.values():
        ended = leaf.ended >= 0
        assert np.isin(leaf.outcome[ended], [masked, *nonfinite]).all()
        assert ended[np.isin(leaf.outcome, nonfinite)].all()
        assert (leaf.ended[leaf.outcome == immediate] <= 1).all()
        proved = ended & (leaf.outcome == masked)
        assert not leaf.worse_train[proved].any() and not leaf.worse_test[proved].any()
        followed = np.stack([leaf.worse_train, leaf.worse_test])[:, ~ended].astype(float)
        known_bad = (followed > 0.0201).any(axis=0)  # beyond the tolerance, and float16's rounding
        known_good = (followed < 0.0199).all(axis=0)
        assert (leaf.outcome[~ended][known_bad] != masked).all() and (leaf.outcome[~ended][known_good] == masked).all()


def test_nothing_depends_on_what_multiplies_a_blank_pixel(known):
    """Three pixels are blank in all images: no finite value of a parameter of theirs matters."""
    blank = np.add.outer(np.array([0, 32, 39]) * 4, np.arange(4)).ravel()
    outcome = known.leaves["params/hidden/kernel"].outcome[:, blank]
    no_infinity = [bit for bit in range(32) if bit != 30]  # zero times an infinity is a NaN
    assert (outcome[..., no_infinity] == known.outcomes.index(MASKED)).all()


def test_the_parts_of_the_population_add_up(known):
    def together(parts):
        return sum((collections.Counter(part.counts) for part in parts), collections.Counter())

    whole = known.of()
    assert whole.n == known.count and sum(whole.counts.values()) == whole.n
    kinds, epochs = known.kinds(), (2, 10, 20)
    assert together(known.of(of, epochs=[epoch]) for of, epoch in itertools.product(kinds, epochs)) == together([whole])
    assert together(known.of(bits=[bit]) for bit in range(32)) == together([whole])
    for of in kinds:
        assert sorted(itertools.chain(*known.bits(of).values())) == list(range(32))


def apart(programs, enumeration, flip):
    """Where a flip followed here and its replay disagree."""
    return programs.compare.differences(enumeration, flip, None)


def other_rows(programs, enumeration, store, flips):
    """Flips whose verdict in the store is another than here."""
    found = []
    for flip in flips:
        told = enumeration.follow(flip.at, enumeration.position(flip.leaf, flip.element))
        here = programs.follow.stored(enumeration.verdict(flip.at, programs.follow.nth(told, flip.bit)))
        row = programs.compare.row_of(store, flip)
        found += [(flip, name) for name in here if here[name].tobytes() != row[name]]
    return found


def test_flips_followed_anew_are_those_of_their_replays_and_of_the_store(programs, enumeration, store, known):
    """One of each outcome."""
    flips = {}
    for flip in programs.compare.sample(store, 100, 7):
        row = programs.compare.row_of(store, flip)
        flips.setdefault((row["outcome"], np.frombuffer(row["ended"], np.int8)[0] >= 0), flip)
    assert len(flips) >= 5
    assert {flip: found for flip in flips.values() if (found := apart(programs, enumeration, flip))} == {}
    others = other_rows(programs, enumeration, store, flips.values())
    assert sum(name == "outcome" for _, name in others) <= 1


def test_a_row_that_says_something_else_is_found(programs, enumeration):
    flip = programs.compare.Flip(Address(20, 3), "params/head/bias", 3, 30)
    told = programs.follow.nth(enumeration.follow(flip.at, enumeration.position(flip.leaf, flip.element)), flip.bit)
    judged = enumeration.verdict(flip.at, told)
    row = {name: value.tobytes() for name, value in programs.follow.stored(judged).items()}
    assert programs.compare.differences(enumeration, flip, row) == []
    wrong = row | {"outcome": b"\x07", "gap": b"\x00\x00"}
    assert programs.compare.differences(enumeration, flip, wrong) == [
        "outcome differs from the store",
        "gap differs from the store",
    ]


def test_pieces_that_are_done_are_not_made_again_and_damaged_ones_are(programs, enumeration, tmp_path, capsys):
    times, leaves = [Address(24, 3), Address(24, 2)], ["opt/0/count", "params/hidden/bias"]
    first, seconds = programs.enumerate.enumerated(enumeration, tmp_path, times, leaves)
    assert len(capsys.readouterr().out.splitlines()) == len(times) * len(leaves) == len(list(tmp_path.iterdir()))
    damaged = sorted(tmp_path.iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:-50])
    again, _ = programs.enumerate.enumerated(enumeration, tmp_path, times, leaves)
    assert len(capsys.readouterr().out.splitlines()) == 1 and seconds > 0
    assert {name: array.tobytes() for name, array in first.items()} == {n: a.tobytes() for n, a in again.items()}
    assert first["outcome/params/hidden/bias"].shape == (2, 4, 32)


def test_the_loop_that_does_not_repeat_the_golden_run_is_refused(programs, enumeration, monkeypatch):
    monkeypatch.setattr(enumeration, "_loss", enumeration._loss + np.float32(1e-7))
    with pytest.raises(Exception, match="does not repeat the golden run"):
        enumeration._check_golden()


@pytest.mark.slow
@only_whole
def test_a_campaign_of_a_hundred_flips_says_what_the_store_says(
    programs, enumeration, store, folder, repository, tmp_path, same_arithmetic
):
    """The plan draws from the store's flips, and each experiment is one of them."""
    text = (folder / "plan.toml").read_text().replace("results/populations", f"{repository}/results/populations")
    plan = parse_plan(text, folder / "plan.toml")
    assert len(plan.sites) == 13 and set(plan.epochs) == set(store["times"][:, 0]) and len(plan.steps) == 4
    lab, others, flips = Laboratory(plan, enumeration.golden, Conditions(), tmp_path), [], []
    for number in range(100):
        found, drawn = run_experiment(lab, number), draw_experiment(plan, number)
        flip = programs.compare.Flip(Address(drawn.epoch, drawn.step), found.site, found.first_position, found.bit)
        told = enumeration.follow(flip.at, enumeration.position(flip.leaf, flip.element))
        here = enumeration.verdict(flip.at, programs.follow.nth(told, flip.bit)).outcome
        assert (here.outcome, here.exactly_masked_after) == (found.outcome, found.exactly_masked_after)
        assert (here.worse or {}).get("test") == found.worse_test
        flips.append(flip)
    others = other_rows(programs, enumeration, store, flips)
    if same_arithmetic:
        assert others == []
    assert sum(name == "outcome" for _, name in others) <= APART * len(flips)
