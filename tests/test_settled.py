"""Runs that settle end where they are as near to the golden run as a twin; rates allow for what that misses."""

# Above 400 lines: one rule, from its distances over its runs and its rates to what store and report say of it.

import collections
import dataclasses
import functools
import pathlib
import sqlite3

import campaign_stores
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from campaign_stores import TOY
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fault_injection.campaign.two_phase import Guesses, two_phase
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.conditions import CONDITIONS, Conditions
from fault_injection.questions.outcomes.experiment import Laboratory, run_experiment
from fault_injection.questions.outcomes.plan_file import FOLLOWED, parse_plan
from fault_injection.questions.outcomes.report.facts import Facts
from fault_injection.questions.outcomes.report.sections import write_report
from fault_injection.questions.outcomes.report.settled import settled as settled_section
from fault_injection.questions.outcomes.report.summary import cost
from fault_injection.questions.outcomes.result import END, HORIZON, SETTLED, Comparison
from fault_injection.questions.outcomes.sampling import choose, draw_experiment
from fault_injection.questions.outcomes.standing import standing
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.outcomes.tally import GuessKind, tally_of
from fault_injection.runs.exits import EXACT
from fault_injection.runs.follow import follow
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import MASKED, SLOW, UNDECIDED
from fault_injection.runs.steps import Address, Observer, addresses
from fault_injection.runs.twin_distance import distance, limits_of, twin_distances

MOMENTUM = pathlib.Path(__file__).with_name("momentum_training.py")
PLAN = f"""
workload = "{TOY}:linear"
[options]
epochs = 5
learning_rate = 0.03
[faults]
experiments = 24
epochs = [0, 2, 4]
schedule = "once"
[faults.models]
RD = 1
RD_CORRECT = 1
RBFLIP = 4
[run]
exit = "exact"
twins = 2
settled = 3
settled_follow = 0
"""
NEVER, ALWAYS = 0.0, np.inf


@pytest.fixture(scope="module")
def golden(cache):
    """The golden run of the linear regression, and its twins, to the end."""
    plan = parse_plan(PLAN)
    golden = Golden(plan.workload, plan.workload.program(frozenset(plan.sites), 1), cache)
    for run in (golden, golden.twin_run(1), golden.twin_run(2)):
        run.make(plan.workload.epochs)
    return golden


def laboratory(golden, limit, **changes):
    """Its experiments, where every twin is as far as `limit` after every step."""
    plan = dataclasses.replace(parse_plan(PLAN), **changes)
    lab = Laboratory(plan, golden, Conditions(), golden.folder / "walks" / "tests")
    steps, leaves = plan.workload.epochs * plan.steps_per_epoch, len(golden.program.state.leaves)
    lab.twin_limits = functools.cache(lambda: np.full((steps, leaves), limit, np.float32))
    return lab


def all_of(lab):
    return [run_experiment(lab, number) for number in range(lab.plan.experiments)]


class States(Observer):
    """Keeps the state after each step, on the host."""

    def __init__(self):
        self.kept = []

    def after_step(self, at, state, report):
        self.kept.append([np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(state))])


def apart(lab, number):
    """By an oracle of its own: the largest difference after each step from the faulty one on, followed to the end."""
    choice, program = choose(lab.plan, draw_experiment(lab.plan, number)), lab.golden.program
    found = []
    for faults in ({choice.at: choice.fault}, {}):
        states = States()
        steps = addresses(Address(choice.at.epoch, 0), lab.plan.end, program.steps_per_epoch)
        follow(program, lab.golden.fetch_state_before(choice.at.epoch), steps, faults, [states])
        found.append(states.kept[choice.at.step :])
    with np.errstate(invalid="ignore", over="ignore"):
        return [
            max(float(np.max(np.abs(a - b))) for a, b in zip(*pair, strict=True)) for pair in zip(*found, strict=True)
        ]


# --- when a run settles ---


@pytest.mark.parametrize("limit", [1e-2, 3e-2])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_run_settles_at_the_first_stretch_of_near_steps_behind_the_fault_or_an_epoch(golden, limit, steps):
    """As an oracle says that has all states: the golden run's are at hand after the fault and between epochs."""
    lab, after, others = laboratory(golden, limit, settled=steps), [], []
    for result in all_of(lab):
        distances = apart(lab, result.number)
        near = [one <= np.float32(limit) for one in distances]
        begins = [
            0,
            *range(golden.program.steps_per_epoch - 1 - result.step, len(near), golden.program.steps_per_epoch),
        ]
        settles = [begin + steps - 1 for begin in begins if len(near) > begin + steps and all(near[begin:][:steps])]
        proved = [n for n in (result.exactly_masked_after, result.first_nonfinite) if n is not None]
        if settles and (not proved or settles[0] < proved[0]):
            assert (result.exit, result.steps, result.outcome) == (SETTLED, settles[0] + 1, MASKED)
            assert result.comparison.settled_after == settles[0] and result.comparison.ended == 1
            after.append(settles[0])
        else:
            assert result.exit in (EXACT, END, "non-finite") and result.comparison.settled_after is None
            others.append(result)
    assert after and others
    assert len(set(after)) > 1  # not all of them at once


def test_golden_steps_beside_a_run_are_counted_and_few(golden):
    near, far = (all_of(laboratory(golden, limit)) for limit in (ALWAYS, NEVER))
    # The states after the fault and between epochs are at hand; the two steps after such a one are taken beside.
    assert {r.comparison.golden_steps for r in near if r.exit == SETTLED} == {2}
    assert {r.comparison.golden_steps for r in far if r.exit == END} == {0}


def test_a_run_that_is_followed_after_it_has_settled_comes_to_what_it_comes_to_without(golden):
    lab, plain = laboratory(golden, ALWAYS, settled_follow=0.5), laboratory(golden, ALWAYS, settled=None)
    followed, ended, ends = 0, 0, set()
    for result, whole in zip(all_of(lab), all_of(plain), strict=True):
        assert whole.comparison is None and whole.exit != SETTLED
        chosen = draw_experiment(lab.plan, result.number).followed
        if result.exit != SETTLED:
            assert dataclasses.replace(result, seconds=0, outside_seconds=0, setup_seconds=0, comparison=None) == (
                dataclasses.replace(whole, seconds=0, outside_seconds=0, setup_seconds=0)
            )
        elif chosen:
            assert (result.audit_outcome, result.audit_rule) == (whole.outcome, whole.rule)
            assert result.comparison.ended == 0 and result.steps + result.audit_steps == whole.steps
            assert result.curve == whole.curve
            followed += 1
            ends.add(whole.outcome)
        else:
            assert result.audit_outcome is None and whole.curve.startswith(result.curve)
            assert result.comparison == Comparison(2, 1, 2) and result.steps == 3 < whole.steps
            ended += 1
    assert followed > 2 and ended > 2 and len(ends) > 1  # the premise is wrong here, and that is seen


def test_who_is_followed_is_drawn_beforehand_and_by_the_number_alone():
    plan = parse_plan(PLAN.replace("settled_follow = 0", "settled_follow = 0.25"))
    drawn = [draw_experiment(plan, number) for number in range(2000)]
    assert np.mean([e.followed for e in drawn]) == pytest.approx(0.25, abs=0.03)
    without = dataclasses.replace(plan, settled=None, settled_follow=0.0)
    strip = [dataclasses.replace(e, followed=False) for e in drawn]
    assert strip == [draw_experiment(without, number) for number in range(2000)]  # the same faults


def test_nothing_settles_before_the_last_strike(golden):
    """The golden run is taken along from the last strike on, and what strikes later is no twin."""
    schedule = parse_plan(PLAN.replace('"once"', '"steps 5"')).schedule
    for result in all_of(laboratory(golden, ALWAYS, schedule=schedule)):
        if result.exit == SETTLED:
            assert result.comparison == Comparison(4 + 2, 1, 4 + 2)
            break
    else:
        pytest.fail("nothing has settled")


def test_what_checks_a_settled_run_goes_on_beyond_the_horizon(golden):
    found = all_of(laboratory(golden, ALWAYS, horizon=4, settled_follow=1.0))
    assert {r.exit for r in found} >= {SETTLED}
    assert {r.audit_outcome for r in found if r.exit == SETTLED}.isdisjoint({UNDECIDED, None})
    cut = [r for r in all_of(laboratory(golden, NEVER, horizon=4)) if r.exit == HORIZON]
    assert cut and {r.outcome for r in cut} == {UNDECIDED}


def test_an_audit_ends_where_its_run_settles_unless_it_is_followed(golden):
    conditions = {"exit": CONDITIONS, "audit": 1.0}
    ended, followed, plain = (
        all_of(laboratory(golden, ALWAYS, **conditions, **changes))
        for changes in ({"settled_follow": 0.0, "settled": 6}, {"settled_follow": 1.0, "settled": 6}, {"settled": None})
    )
    audits = 0
    for short, long, whole in zip(ended, followed, plain, strict=True):
        assert (short.exit, short.outcome, short.steps) == (long.exit, long.outcome, long.steps)
        if whole.exit != CONDITIONS or short.comparison.settled_after is None:
            continue
        assert (short.outcome, short.steps) == (whole.outcome, whole.steps)  # the early verdict is the same
        assert short.audit_outcome == UNDECIDED and short.audit_rule.startswith("settled: for 6 step(s), up to step 5")
        assert short.steps + short.audit_steps == 6
        assert (long.audit_outcome, long.curve) == (whole.audit_outcome, whole.curve)
        audits += 1
    assert audits > 2


def test_an_audit_that_becomes_the_golden_run_bit_by_bit_ends_there(golden):
    """What proves a run masked ends its audit too: such audits cost next to nothing, whatever the plan says."""
    fast = parse_plan(PLAN.replace("learning_rate = 0.03", "learning_rate = 0.5"))
    program = fast.workload.program(frozenset(fast.sites), 1)
    run = Golden(fast.workload, program, golden.cache)
    run.make(fast.workload.epochs)
    plan = dataclasses.replace(fast, exit=CONDITIONS, audit=1.0, settled=None, twins=0)
    found = all_of(Laboratory(plan, run, Conditions(), run.folder / "walks" / "tests"))
    proved = [r for r in found if r.exit == CONDITIONS and r.exactly_masked_after is not None]
    assert proved
    for r in proved:
        assert r.audit_outcome == MASKED and r.audit_rule.startswith("exactly masked")
        assert r.steps + r.audit_steps == r.exactly_masked_after + 1 < plan.followed(r.epoch, r.step)
    at_once = [r for r in found if r.exit == EXACT]
    assert at_once and all(r.audit_steps == 0 and r.audit_outcome is None for r in at_once)  # no guess, no audit


def test_an_array_without_numbers_keeps_a_run_from_settling(cache, tmp_path):
    """A count has no distance: as long as one of its bits differs, the run is no twin."""
    counting = MOMENTUM.read_text().replace(
        '"params": params, "trace"', '"count": jnp.int32(0), "params": params, "trace"'
    )
    counting = counting.replace('return {"params": jax', 'return {"count": state["count"] + 1, "params": jax')
    (tmp_path / "counting.py").write_text(counting)
    text = f'workload = "{tmp_path / "counting.py"}:training"\n[faults]\nexperiments = 4\nstages = ["state"]\n'
    text += 'sites = ["SITES"]\n[run]\nexit = "exact"\ntwins = 2\nsettled = 2\nsettled_follow = 0\n'
    found = {}
    for sites in ("count", "params*"):
        plan = parse_plan(text.replace("SITES", sites))
        golden = Golden(plan.workload, plan.workload.program(plan.supported, 1), cache)
        golden.make(plan.workload.epochs)
        lab = Laboratory(plan, golden, Conditions(), golden.folder / "walks" / sites.strip("*"))
        shape = (plan.workload.epochs * plan.steps_per_epoch, len(golden.program.state.leaves))
        lab.twin_limits = lambda shape=shape: np.full(shape, ALWAYS, np.float32)
        found[sites] = {r.exit for r in all_of(lab)}
    assert SETTLED not in found["count"]
    assert SETTLED in found["params*"]


# --- distances ---


def test_a_distance_loses_no_nan_and_calls_equal_infinities_near():
    big = np.zeros(5000, np.float32)
    worse = big.copy()
    worse[4321] = np.nan
    one = [big, np.float32([np.inf, 1]), jnp.bfloat16([1, 2]), np.complex64([1 + 2j]), np.int32([7]), np.zeros(0, "f")]
    other = [
        worse,
        np.float32([np.inf, 3]),
        jnp.bfloat16([1, 5]),
        np.complex64([1 - 2j]),
        np.int32([8]),
        np.zeros(0, "f"),
    ]
    found = np.asarray(distance(*([jnp.asarray(leaf) for leaf in leaves] for leaves in (one, other))))
    np.testing.assert_array_equal(found, np.float32([np.nan, 2, 3, 4, 0, 0]))
    assert np.asarray(distance([jnp.asarray(worse)], [jnp.asarray(worse)])).tolist() != [0.0]  # NaN is never near


def test_distances_of_twins_are_measured_and_kept(golden, tmp_path, capsys):
    program, epochs = golden.program, 5
    found = twin_distances(golden, 2, epochs, tmp_path / "kept.npz")
    runs = []
    for run in (golden, golden.twin_run(1), golden.twin_run(2)):
        states = States()
        steps = addresses(Address(0, 0), Address(epochs, -1), program.steps_per_epoch)
        follow(program, run.fetch_state_before(0), steps, observers=[states])
        runs.append(states.kept)
    expected = [
        [
            [np.max(np.abs(leaf - golden)) for leaf, golden in zip(*pair, strict=True)]
            for pair in zip(twin, runs[0], strict=True)
        ]
        for twin in runs[1:]
    ]
    np.testing.assert_array_equal(found, np.float32(expected))
    assert found.shape == (2, 40, 2)
    again = twin_distances(golden, 2, epochs, tmp_path / "kept.npz")
    np.testing.assert_array_equal(found, again)
    (tmp_path / "kept.npz").write_bytes((tmp_path / "kept.npz").read_bytes()[:-40])
    np.testing.assert_array_equal(twin_distances(golden, 2, epochs, tmp_path / "kept.npz"), found)
    assert "kept.npz is damaged" in capsys.readouterr().err


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(1, 5)),
        elements=st.floats(0, 9, width=32),
    )
)
@example(np.float32([[[1, 2**-126, 2**-126]], [[2**-126, 4, 2**-126]]]))  # four times the factor overflows
def test_a_limit_is_what_keeps_twins_twins(distances):
    """No twin is beyond it, and of each step it is the least factor by which one twin is within the others."""
    limits = limits_of(distances)
    assert (limits >= distances.max(axis=0)).all() and np.isfinite(limits).all()
    for at in range(distances.shape[1]):
        most = distances[:, at].max(axis=0)
        normal = most >= np.finfo(np.float32).tiny  # smaller numbers round by more than a ratio tells
        factors = limits[at][normal] / most[normal]
        if not factors.size or not np.isfinite(factors).all():
            continue
        assert np.ptp(factors) <= 1e-4 * factors[0]
        within = [
            (distances[t, at] <= np.float64(factors[0]) * 1.0001 * np.delete(distances[:, at], t, 0).max(axis=0)).all()
            for t in range(len(distances))
        ]
        assert any(within) or factors[0] == pytest.approx(1)


# --- plans ---

REFUSED = {
    "twins = 2": ("twins = 0", "run.settled: compares runs with twins, and the plan has none"),
    '"exact"': ('"full"', "run.settled: the exit mode 'full' follows every run to the end"),
    "settled = 3": ("settled = 0", "run.settled: 0; expected a whole number from 1 to 1000000"),
    "settled = 3\n": ("", "run.settled_follow: has no effect without run.settled"),
    "settled_follow = 0": ("settled_follow = 1.5", "run.settled_follow: 1.5; expected a number from 0 to 1"),
    '"once"': ('"permanent"', "run.settled: does not go with the schedule 'permanent', which strikes to the end"),
}


@pytest.mark.parametrize("found", REFUSED)
def test_a_plan_says_in_one_line_where_runs_cannot_settle(found):
    wrong, message = REFUSED[found]
    assert found in PLAN
    with pytest.raises(InputError) as error:
        parse_plan(PLAN.replace(found, wrong, 1))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_restarts_from_checkpoints_are_followed():
    text = PLAN.replace('schedule = "once"', 'stages = ["checkpoint"]').partition("[faults.models]")[0]
    with pytest.raises(InputError, match=r"run.settled: does not go with checkpoints"):
        parse_plan(text + "[run]\ntwins = 2\nsettled = 5\n")


def test_without_the_key_nothing_settles_and_plans_are_what_they_were():
    plan = parse_plan('workload = "resnet18"\n[faults]\nexperiments = 9\n')
    assert (plan.settled, plan.settled_follow) == (None, 0.0)
    assert not {"settled", "settled_follow"} & plan.identity().keys()
    ours = parse_plan(PLAN.replace("settled_follow = 0\n", ""))
    assert (ours.settled, ours.settled_follow) == (3, FOLLOWED)
    assert ours.identity()["settled"] == 3
    assert "as near to the golden run as a twin for 3 steps, 50% of these to the end" in ours.sentence()


# --- rates ---


def row(n, outcome=MASKED, exit=CONDITIONS, ended=None, settled=None):
    return {"exit": exit, "outcome": outcome, "near": 0, "early_rule": "", "ended": ended, "nested": settled, "n": n}


PLAIN = parse_plan('workload = "resnet18"\n[faults]\nexperiments = 100')


def test_a_settled_run_is_a_guess_and_one_more_kind():
    rows = [row(10, SLOW, END), row(30, exit=SETTLED, settled=1), row(8, exit=SETTLED, ended=MASKED, settled=0)]
    rows += [row(2, exit=SETTLED, ended=SLOW, settled=0)]
    tally = tally_of(rows, PLAIN)
    assert tally.known == {SLOW: 10} and tally.early.keys() == {GuessKind(False, True, SETTLED)}
    rate = tally.not_masked(0.95)
    assert rate.share == pytest.approx((10 + 40 * 2 / 10) / 50)
    assert (rate.guesses, rate.audits, rate.unaudited, rate.found) == (30, 10, 0, 12)
    assert rate == tally_of([row(10, SLOW, END)], PLAIN).rate([SLOW], 0.95)._replace(**rate._asdict())
    none = tally_of(rows[:2], PLAIN).not_masked(0.95)
    assert none.unaudited == 30 and none.high > 0.9


def test_audits_that_settled_count_as_those_of_them_that_were_followed_say():
    """Of 20 audits 4 came to another end without settling, and 16 settled, of which 8 were followed: 2 differ."""
    rows = [row(80), row(4, ended=SLOW), row(8, ended=UNDECIDED, settled=1)]
    rows += [row(6, ended=MASKED, settled=0), row(2, ended=SLOW, settled=0)]
    tally = tally_of(rows, PLAIN)
    rate = tally.not_masked(0.95)
    assert rate.share == pytest.approx(4 / 20 + 16 / 20 * 2 / 8)
    assert (rate.guesses, rate.audits, rate.total) == (88, 12, 100)
    assert tally.rate([MASKED], 0.95).share == pytest.approx(1 - rate.share)
    (kind,) = tally.early.values()
    assert (kind.followed, kind.changes, kind.unfollowed) == (12, 6, 88)
    # Where all that settled was followed, it is as if nothing had.
    whole = tally_of([row(80), row(4, ended=SLOW), *(dict(r, n=2 * r["n"]) for r in rows[3:])], PLAIN).not_masked(0.95)
    plain = tally_of([row(80), row(8, ended=SLOW), row(12, ended=MASKED)], PLAIN).not_masked(0.95)
    assert whole.share == pytest.approx(plain.share)
    assert whole.high >= plain.high - 0.02 and rate.high > whole.high  # what was not followed widens the interval


numbers = st.integers(0, 300)


@st.composite
def nested(draw):
    followed, rest, open = draw(numbers), draw(numbers), draw(st.integers(0, 2))
    total = followed + rest + open
    inner = Guesses(total, draw(st.sampled_from([0, total])), followed, draw(st.integers(0, followed)), open)
    audited, more = draw(numbers), draw(numbers)
    outer = audited + total + more
    return Guesses(outer, draw(st.integers(0, outer)), audited, draw(st.integers(0, audited)), 0, inner)


@given(numbers, numbers, nested().filter(lambda kind: kind.total))
def test_the_rate_of_an_outcome_and_that_of_all_others_are_one_with_settled_audits_too(found, others, kind):
    rate = two_phase(found, others, [kind])
    assert 0 <= rate.low <= rate.share <= rate.high <= 1
    s = kind.nested
    mirrored = kind._replace(
        saying=kind.total - kind.saying,
        found=kind.audited - kind.found,
        nested=s._replace(saying=s.total - s.saying, found=s.audited - s.found),
    )
    other = two_phase(others, found, [mirrored])
    assert other.share == pytest.approx(1 - rate.share)
    near = 0.15 * (rate.high - rate.low) + 0.002
    assert (other.low, other.high) == pytest.approx((1 - rate.high, 1 - rate.low), abs=near)


class Campaigns:
    """Campaigns of a population in which early verdicts are wrong, and runs that settled too, as shares say.

    Args:
      early: share with an early verdict, of the others all are followed; all verdicts say Masked.
      wrong: share of early verdicts whose run does not settle and is not masked.
      settles: shares that settle, of runs with an early verdict and of those without.
      false: shares of these that are not masked all the same.
      bad: share not masked of runs without an early verdict that do not settle.
    """

    def __init__(self, early, wrong, settles, false, bad):
        self.early, self.wrong, self.settles, self.false, self.bad = early, wrong, settles, false, bad
        of_early = settles[0] * false[0] + (1 - settles[0]) * wrong
        of_others = settles[1] * false[1] + (1 - settles[1]) * bad
        self.rate = early * of_early + (1 - early) * of_others

    def rows(self, rng, experiments, audit, follow):
        with_verdict = rng.random(experiments) < self.early
        audited = rng.random(experiments) < audit
        side = np.where(with_verdict, 0, 1)
        settles = rng.random(experiments) < np.array(self.settles)[side]
        share = np.where(settles, np.array(self.false)[side], np.array([self.wrong, self.bad])[side])
        harm = rng.random(experiments) < share
        followed = rng.random(experiments) < follow
        found = collections.Counter()
        for v, a, s, h, f in zip(with_verdict, audited, settles, harm, followed, strict=True):
            end = SLOW if h else MASKED
            if v and not a:
                one = (MASKED, CONDITIONS, None, None)
            elif v and s:
                one = (MASKED, CONDITIONS, end if f else UNDECIDED, int(not f))
            elif v:
                one = (MASKED, CONDITIONS, end, None)
            elif s:
                one = (MASKED, SETTLED, end if f else None, int(not f))
            else:
                one = (end, END, None, None)
            found[one] += 1
        return [row(n, *one) for one, n in found.items()]

    def coverage(self, campaigns, experiments, audit, follow, seed=0):
        rng, hits = np.random.default_rng(seed), 0
        for _ in range(campaigns):
            rate = tally_of(self.rows(rng, experiments, audit, follow), PLAIN).not_masked(0.95)
            hits += rate.low <= self.rate <= rate.high
        return hits / campaigns


CASES = {
    "the premise holds": Campaigns(0.75, 0.5, (0.9, 0.5), (0.0, 0.0), 0.5),
    "it is wrong now and then": Campaigns(0.75, 0.3, (0.8, 0.5), (0.02, 0.1), 0.5),
    "it is always wrong": Campaigns(0.75, 0.3, (0.8, 0.5), (1.0, 1.0), 0.5),
    "it is wrong for audits alone": Campaigns(0.75, 0.0, (0.5, 0.5), (0.3, 0.0), 0.1),
    "harm is rare": Campaigns(0.9, 0.01, (0.95, 0.9), (0.003, 0.0), 0.02),
}


def test_an_interval_covers_whatever_settled_runs_come_to():
    assert CASES["it is wrong now and then"].coverage(60, 300, 0.3, 0.5) >= 0.94
    believing = CASES["it is always wrong"].coverage(30, 300, 0.3, 0.5)
    assert believing >= 0.94


@pytest.mark.slow
@pytest.mark.parametrize("follow", [0.1, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_nominal_95_percent_covers_at_least_94_where_runs_settle(case, follow):
    assert CASES[case].coverage(150, 400, 0.25, follow, seed=len(case)) >= 0.94


# --- store and report ---


def settled_campaign(folder, experiments=40):
    """A store with audits and runs that settled; every eighth of these was followed, and one is not masked."""
    text = f'workload = "{TOY}:linear"\n[faults]\nexperiments = {experiments}\n[faults.models]\nRD = 1\nINPUT = 1\n'
    plan = parse_plan(text + "[run]\ntwins = 3\nsettled = 2\naudit = 0.5\n")

    def changes(number):
        nothing = {"comparison": Comparison(None, 0, 1)}
        if number % 6 == 0:
            return nothing
        if number % 5 == 0:  # an audit, which settles
            ends = {"audit_outcome": UNDECIDED, "comparison": Comparison(4, 1, 4)}
            return {"audit_outcome": MASKED, "comparison": Comparison(4, 0, 4)} if number == 25 else ends
        if number % 4 == 1:  # no early verdict
            ours = {"exit": SETTLED, "early_rule": None, "early_outcome": None, "early_after": None}
            ours |= {"comparison": Comparison(2, 1, 2)}
            ends = {"audit_outcome": SLOW if number == 9 else MASKED, "comparison": Comparison(2, 0, 2)}
            return ours | ends if number in (9, 17) else ours
        return nothing

    return campaign_stores.fill(folder, plan, changes)


def test_store_report_and_status_say_the_same_of_settled_runs(tmp_path):
    folder = settled_campaign(tmp_path / "campaign")
    with Store(folder) as store:
        facts = Facts(store)
        section, spent = settled_section(facts), cost(facts)
        rows = store.query("SELECT * FROM comparisons")
    assert len(rows) == 40
    settled = [tuple(r) for r in rows if r["settled_after"] is not None]
    total, followed = len(settled), sum(r[2] == 0 for r in settled)
    assert f"Runs that settled: {total}; followed to the end: {followed}; not Masked there: 1." in section.text[1]
    assert spent.beside == sum(r["golden_steps"] for r in rows)
    assert [r["experiment that settled"] for r in section.parts[1].rows] == ["9"]
    rate = standing(folder).not_masked
    assert 0 < rate.low < rate.share < rate.high < 1 and rate.audits == followed
    page = write_report(folder).read_text()
    assert "Settled runs" in page and "golden run, beside runs that may settle" in page


def test_a_store_of_before_is_read_as_it_was(tmp_path):
    folder = campaign_stores.fill(tmp_path / "old", campaign_stores.toy_plan())
    now = standing(folder).as_dict()
    with sqlite3.connect(folder / "campaign.sqlite") as file:
        file.execute("DROP TABLE comparisons")
    assert standing(folder).as_dict() == now


def test_an_experiment_whose_comparison_is_damaged_is_made_again(tmp_path):
    folder = settled_campaign(tmp_path / "campaign")
    with sqlite3.connect(folder / "campaign.sqlite") as file:
        file.execute("UPDATE comparisons SET ended = 1 WHERE experiment = 25")  # a followed run, as if it had ended
    with pytest.raises(InputError, match="damaged: comparison 25"):
        Store(folder)
    with Store(folder, write=True) as store:
        assert store.mend() == "comparison 25"
        assert store.done() == set(range(40)) - {25}


@pytest.mark.parametrize("wrong", [(None, 1, 0), (2, 3, 0), (2, 0, -1), (-2, 0, 1)])
def test_a_comparison_that_this_program_never_writes_is_refused(tmp_path, wrong):
    changes = {"comparison": Comparison(*wrong)}
    campaign_stores.fill(tmp_path, campaign_stores.toy_plan(1), lambda number: changes)
    with pytest.raises(InputError, match="comparison 0 is not what this program writes"):
        Store(tmp_path)
