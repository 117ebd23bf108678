"""Several faults of one training: files, steps that several strike, and runs with them."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import momentum_training
import numpy as np
import pytest
import toy
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from injection_files import VALID, injections, own_workloads, same
from small import small

from fault_injection.commands.main import main
from fault_injection.faults.injection import ALL, Injection
from fault_injection.faults.injection_file import format_injection, parse_injection
from fault_injection.machine.errors import InputError
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand
from fault_injection.models.site import make_fault
from fault_injection.runs.follow import follow
from fault_injection.runs.records import Recorder, Run
from fault_injection.runs.replay_run import golden_for, replay
from fault_injection.runs.steps import Address, Back, Observer, addresses
from fault_injection.runs.unfinished import Keeper
from fault_injection.seam.beside import faulty_step
from fault_injection.seam.state_faults import state_sites
from fault_injection.seam.trees import same_bits
from fault_injection.workloads.registry import find_workload

OWN = f"{momentum_training.__file__}:training"
FORWARD, GRADIENT = "forward:params/fc1", "grad_wt:params/fc2"
FIRST = f"""\
workload,{OWN}
stage,fwrd_inject
fmodel,RD
target_worker,0
target_layer,{FORWARD}
target_epoch,1
target_step,2
inj_pos,0/1
inj_values,2.0
seed,1
"""
SECOND = f"""\
stage.2,bkwd_inject
fmodel.2,RD
target_worker.2,0
target_layer.2,{GRADIENT}
inj_pos.2,1/3
inj_values.2,5.0
"""
LATER = SECOND + "target_epoch.2,2\ntarget_step.2,1\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def float_of(words):
    return np.asarray(words)[:1].view(np.float32)[0]


# ---- Files ---------------------------------------------------------------------------------


def test_a_further_fault_strikes_at_the_step_of_the_first_unless_it_says_otherwise():
    both, apart = parse_injection(FIRST + SECOND), parse_injection(FIRST + LATER + "schedule.2,permanent\n")
    assert [(one.epoch, one.step, str(one.schedule)) for one in both.every] == [(1, 2, "once")] * 2
    assert [(one.epoch, one.step, str(one.schedule)) for one in apart.every] == [(1, 2, "once"), (2, 1, "permanent")]
    assert all(one.sentence() in both.sentence() for one in both.every)


@pytest.mark.parametrize("second", [SECOND, LATER, LATER.replace("epoch.2,2", "epoch.2,0")])
def test_the_order_of_the_blocks_does_not_matter(second):
    given_first = FIRST + second
    if "target_epoch.2" not in second:
        given_first += "target_epoch.2,1\ntarget_step.2,2\n"
    keys = {"stage", "fmodel", "target_worker", "target_layer", "target_epoch", "target_step", "inj_pos", "inj_values"}
    swapped = []
    for row in given_first.splitlines():
        key, _, rest = row.partition(",")
        key = key.removesuffix(".2") if key.endswith(".2") else f"{key}.2" if key in keys else key
        swapped.append(f"{key},{rest}\n")
    assert parse_injection("".join(swapped)) == parse_injection(given_first)


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_written_file_gives_an_equal_injection(data):
    workload = data.draw(own_workloads())
    drawn = [data.draw(injections(st.just(workload))) for _ in range(data.draw(st.integers(2, 3)))]
    try:
        several = Injection.together(*(dataclasses.replace(one, horizon=None) for one in drawn))
    except ValueError:
        assume(False)
    again = parse_injection(format_injection(several))
    assert all(itertools.starmap(same, zip(several.every, again.every, strict=True)))


LEAF = "target.2,params/fc/kernel\ninj_pos.2,0/0\ninj_values.2,1\n"
OTHER = "stage.2,fwrd_inject\nfmodel.2,RD\ntarget_worker.2,1\ntarget_layer.2,fc\ninj_pos.2,0/1\ninj_values.2,1\n"
COUNT = VALID.count("\n")
MISTAKES = [
    (OTHER.replace("fmodel.2,RD\n", ""), "x.csv: no row 'fmodel.2,…'"),
    (LEAF.replace("inj_pos.2,0/0\n", ""), "x.csv: no row 'inj_pos.2,…' (or 'inj_lane.2,…')"),
    (OTHER.replace(".2", ".3"), f"x.csv:{COUNT + 1}: stage.3 is of fault 3, and no row is of fault 2"),
    (OTHER.replace(".2", ".1"), f"x.csv:{COUNT + 1}: stage.1: the first fault's rows have no suffix"),
    (OTHER.replace(".2", ".02"), f"x.csv:{COUNT + 1}: stage.02: the first fault's rows have no suffix"),
    (OTHER.replace(",fc\n", ",fd\n"), f"x.csv:{COUNT + 4}: target_layer.2 'fd' is not a site"),
    (OTHER.replace("0/1", "0/1/2"), f"x.csv:{COUNT + 5}: inj_pos.2 0/1/2 has 3 coordinates"),
    (OTHER.replace("worker.2,1", "worker.2,8"), f"x.csv:{COUNT + 3}: target_worker.2 8 is not among the 8 workers"),
    (OTHER + "horizon.2,5\n", f"x.csv:{COUNT + 7}: horizon.2: all faults of a file share the row horizon"),
    (OTHER + "width.2,8\n", f"x.csv:{COUNT + 7}: width.2: all faults of a file share the row width"),
    (OTHER + "inj_poz.2,8\n", f"x.csv:{COUNT + 7}: unknown key 'inj_poz.2'; did you mean 'inj_pos'?"),
    (OTHER + "target_epoch.2,99\n", f"x.csv:{COUNT + 7}: target_epoch.2 99 is not among the 20 epochs"),
    (OTHER + "target_epoch.2,9\nhorizon,7\n", f"x.csv:{COUNT + 4}: the fault at fc strikes 77 steps after the first"),
    (
        OTHER.replace(",fc\n", ",basicblock_1_basic_0_conv1\n").replace("0/1", "0/0/0/0"),
        f"x.csv:{COUNT + 4}: in epoch 2, step 3, two faults strike basicblock_1_basic_0_conv1; put the",
    ),
    (
        LEAF + "target.3,params\ninj_pos.3,0\ninj_values.3,1\n",
        f"x.csv:{COUNT + 4}: in epoch 2, step 3, two faults strike params/fc/kernel, which is of params",
    ),
    (
        OTHER + "schedule,every 3\n" + LEAF.replace(".2", ".3") + LEAF.replace(".2", ".4")
        .replace("target", "target_epoch.3,0\nschedule.3,permanent\ntarget", 1),
        "in epoch 2, step 3, two faults strike params/fc/kernel",
    ),
    (
        "target.2,checkpoint/model/float32/1\ninj_pos.2,0\ninj_values.2,1\n"
        "target.3,checkpoint/optimizer/float32/1\ninj_pos.3,0\ninj_values.3,1\n",
        "in epoch 2, step 3, two faults strike the checkpoint that the run restarts from",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_gives_one_line(rows, expected):
    with pytest.raises(InputError) as refused:
        parse_injection(VALID + rows, "x.csv")
    assert expected in str(refused.value) and "\n" not in str(refused.value)


# ---- Steps that several faults strike --------------------------------------------------------


@jax.custom_vjp
def corrupted(tensor):
    """Element 0/1 becomes 2; the derivative is that of the clean operation."""
    return tensor.at[0, 1].set(2.0)


corrupted.defvjp(lambda tensor: (corrupted(tensor), None), lambda _, derivative: (derivative,))


def test_two_operations_of_a_step_of_ones_own_are_struck_as_in_a_step_changed_by_hand():
    workload = find_workload(OWN)
    program = workload.program(frozenset({FORWARD, GRADIENT}))
    state, batch = program.place(program.init()), program.batch(1, 2)
    faults = tuple(one.fault() for one in parse_injection(FIRST + SECOND).every)
    found, report = faulty_step(program, state, batch, 1, 2, faults)

    def loss(params):
        x, label = momentum_training.examples(1, 2)
        logits = jax.nn.relu(corrupted(x @ params["fc1"])) @ params["fc2"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], 1))

    start = momentum_training.create()
    grads = jax.grad(loss)(start["params"])
    # The operation gives the gradient transposed, as JAX writes the product.
    assert workload.sites()[GRADIENT].shapes[Operand.OUTPUT] == grads["fc2"].T.shape
    np.testing.assert_allclose(float_of(report.struck[1].old), grads["fc2"][3, 1], rtol=1e-5)
    grads["fc2"] = grads["fc2"].at[3, 1].set(5.0)
    expected = jax.tree.map(lambda w, g: w - 0.1 * g, start["params"], grads)
    for name, leaf in zip(("fc1", "fc2"), jax.tree.leaves(found)[:2], strict=True):
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-5, atol=1e-7)
    assert [float_of(one.new) for one in report.struck] == [2.0, 5.0]
    assert [int(one.hits) for one in report.struck] == [1, 1]


TOY = find_workload(f"{toy.__file__}:linear")
SITES = TOY.sites()


def toy_faults():
    """Of the output of each operation, in one worker of two; and of a slope."""
    words = [np.float32(value).view(np.uint32) for value in (7, 0.5)]
    return (
        make_fault(SITES["fc"], Operand.OUTPUT, 1, [4], flip=words[0]),
        make_fault(SITES["fc_grad_wt"], Operand.OUTPUT, 0, [2], flip=words[1]),
    )


def test_two_operations_of_an_explicit_step_are_struck_as_arithmetic_says():
    program = TOY.program()
    state = jax.device_put((np.float32([[0.5], [1], [2]]), np.float32(0.25)))
    x, y = TOY.batch(0, 3)
    (w, b), report = program.faulty_step(state, program.batch(0, 3), 0, 3, toy_faults())
    out = x.astype(float) @ [[0.5], [1], [2]]
    old = [out[1, 4, 0]]
    out[1, 4, 0] = 7
    error = out[..., 0] + 0.25 - y
    shares = np.einsum("rbf,rb->rf", x.astype(float), 2 * error / error.size)
    old.append(shares[0, 2])
    shares[0, 2] = 0.5
    np.testing.assert_allclose([float_of(one.old) for one in report.struck], old, rtol=1e-5)
    assert [float_of(one.new) for one in report.struck] == [7, 0.5]
    np.testing.assert_allclose(np.ravel(w), [0.5, 1, 2] - 0.1 * shares.sum(0), rtol=1e-5)
    np.testing.assert_allclose(b, 0.25 - 0.1 * 2 * error.mean(), rtol=1e-5)


def test_the_order_of_faults_at_a_step_changes_no_bit():
    program, faults = TOY.program(), toy_faults()
    start = jax.device_put(program.init())
    found = [program.faulty_step(start, program.batch(0, 3), 0, 3, given) for given in (faults, faults[::-1])]
    assert same_bits(found[0][0], found[1][0])
    assert same_bits(found[0][1].struck, found[1][1].struck[::-1])


def test_a_leaf_and_an_operation_of_one_step():
    program = TOY.program()
    start = jax.device_put((np.float32([[0.5], [1], [2]]), np.float32(0.25)))
    operation = toy_faults()[0]
    slope = make_fault(state_sites(program.state)["slopes"], Operand.INPUT, ALL, [1], keep=ALL_ONES, flip=0x7F800000)
    expected = program.faulty_step((start[0].at[1, 0].set(2.0), start[1]), program.batch(0, 3), 0, 3, operation)
    for faults in ((slope, operation), (operation, slope)):
        state, report = faulty_step(program, start, program.batch(0, 3), 0, 3, faults)
        assert same_bits(state, expected[0])
        of_slope, of_operation = report.struck if faults[0] is slope else report.struck[::-1]
        assert same_bits(of_operation, expected[1].struck)
        assert [float_of(of_slope.old), float_of(of_slope.new)] == [1, 2]
    assert same_bits(start, (np.float32([[0.5], [1], [2]]), np.float32(0.25)))


def test_a_gradient_that_a_worker_adds_has_what_an_operation_did_before():
    """Also in the elements that are struck again, which are summed afresh."""
    workload, names = small(), ("fc", "worker_gradient/fc/kernel")
    program = workload.program(frozenset(names))
    state, batch = program.place(program.init()), program.batch(0, 0)
    sites = workload.sites() | program.state.exchanged
    before = make_fault(sites["fc"], Operand.OUTPUT, 1, [3], flip=np.float32(100).view(np.uint32))
    silent = make_fault(sites[names[1]], Operand.INPUT, 2, [0, 3], keep=ALL_ONES, flip=0)
    struck = make_fault(sites[names[1]], Operand.INPUT, 2, [0, 3], flip=np.float32(0.5).view(np.uint32))
    alone, _ = program.faulty_step(state, batch, 0, 0, before)
    nothing, report = program.faulty_step(state, batch, 0, 0, (before, silent))
    assert same_bits(alone, nothing) and [int(one.hits) for one in report.struck] == [1, 1]
    both, report = program.faulty_step(state, batch, 0, 0, (before, struck))
    old = np.asarray(report.struck[1].old)[:2].view(np.float32)
    moments = [np.ravel(one.opt_state.m["fc"]["kernel"])[[0, 3]] for one in (alone, both)]
    np.testing.assert_allclose(moments[1] - moments[0], 0.1 * (0.5 - old), rtol=1e-3)


def test_of_two_faults_the_permanent_one_strikes_a_step_that_is_taken_again():
    class Once(Observer):
        seen = ()

        def after_step(self, at, state, report):
            told = report.struck if isinstance(report.struck, tuple) else (report.struck,)
            self.seen += (tuple(int(one.new[0]) for one in told if one is not None),)
            return Back(1, again=True) if len(self.seen) == 2 else None

    program, (permanent, transient) = TOY.program(), toy_faults()
    steps = [Address(0, number) for number in range(3)]
    every = dict.fromkeys(steps, (permanent,))
    once = Once()
    start = jax.device_put(program.init())
    follow(program, start, steps, every | {steps[1]: (permanent, transient)}, [once], keep=1, lasting=every)
    words = [int(one.flip[0]) for one in (permanent, transient)]
    assert once.seen == ((words[0],), tuple(words), (words[0],), (words[0],))


# ---- Runs --------------------------------------------------------------------------------


def rows_of(run):
    return [run.column(name).tobytes() for name in ("loss", "digest", "magnitude")]


@pytest.mark.parametrize("second", [SECOND, LATER], ids=["one step", "two steps"])
def test_a_replay_is_the_run_that_one_assembles_by_hand(second, cache):
    injection = parse_injection(FIRST + second)
    found = replay(injection, golden_for(injection, cache))
    program, faults = found.source.program, {}
    for one in injection.every:
        at = Address(one.epoch, one.step)
        faults[at] = (*faults.get(at, ()), one.fault())
    recorder = Recorder(Run(0, (), 0))
    last = Address(momentum_training.EPOCHS - 1, momentum_training.STEPS - 1)
    steps = addresses(Address(0, 0), last, momentum_training.STEPS)
    follow(program, program.place(program.init()), steps, faults, [recorder])
    by_hand = Run(1, recorder.run.epochs[1:], recorder.run.ended - 1)
    assert rows_of(found.faulty) == rows_of(by_hand)
    assert [float_of(one.new) for one in found.struck_each] == [2.0, 5.0]


def test_a_second_fault_that_changes_no_bit_leaves_the_run_of_the_first(cache):
    silent = LATER.replace("inj_values.2,5.0", "inj_bits.2,xor:00000000")
    alone, both = (parse_injection(FIRST + rows) for rows in ("", silent))
    one, other = (replay(each, golden_for(each, cache)) for each in (alone, both))
    assert rows_of(one.faulty) == rows_of(other.faulty) and one.outcome == other.outcome


def test_a_replay_that_was_killed_between_its_faults_goes_on(cache, monkeypatch):
    injection = parse_injection(FIRST + LATER)
    golden = golden_for(injection, cache)
    whole = replay(injection, golden)
    kept = Keeper.after_epoch

    def killed(keeper, *epoch):
        kept(keeper, *epoch)
        raise KeyboardInterrupt

    monkeypatch.setattr(Keeper, "after_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        replay(injection, golden)
    monkeypatch.undo()
    resumed = replay(injection, golden)
    assert rows_of(resumed.faulty) == rows_of(whole.faulty) and resumed.outcome == whole.outcome
    assert same_bits(resumed.struck_each, whole.struck_each)


def test_a_fault_after_the_end_of_the_run_is_told_as_such(cache, tmp_path):
    file = tmp_path / "both.csv"
    file.write_text(FIRST.replace("inj_values,2.0", "inj_values,nan") + LATER)
    main(["replay", str(file), "--cache", str(cache), "--out", str(tmp_path / "out")])
    outcome = json.loads((tmp_path / "out" / "outcome.json").read_text())
    assert "from" in outcome["faults"][0]
    assert outcome["faults"][1].endswith("the run had ended before, so nothing was struck.")
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["struck"][0]["elements_changed"] == 1 and provenance["struck"][1] is None
    log = (tmp_path / "out" / "replay_both.txt").read_text()
    assert f"Inject layer: {FORWARD}" in log and f"Inject layer: {GRADIENT}" not in log


def test_what_a_replay_of_two_faults_writes(cache, tmp_path):
    file = tmp_path / "both.csv"
    file.write_text(FIRST + LATER)
    options = ["--cache", str(cache), "--out", str(tmp_path / "out")]
    main(["replay", str(file), *options, "--detector", "nonfinite"])
    outcome = json.loads((tmp_path / "out" / "outcome.json").read_text())
    assert ["to 2.0" in outcome["faults"][0], "to 5.0" in outcome["faults"][1]] == [True, True]
    log = (tmp_path / "out" / "replay_both.txt").read_text()
    assert log.index(f"Inject layer: {FORWARD}") < log.index(f"Inject layer: {GRADIENT}")
    main(["results", str(tmp_path / "out"), "--curves", str(tmp_path / "curves.png")])
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("command", ["places", "formats"])
def test_commands_for_one_fault_refuse_several_in_one_line(command, tmp_path, capsys):
    file = tmp_path / "both.csv"
    file.write_text(VALID + OTHER)
    code, message = main([command, str(file)]), capsys.readouterr().err
    assert code == 2 and message.count("\n") == 1 and "the file has 2 faults" in message


def test_a_file_of_two_faults_is_scaled_fault_by_fault(tmp_path, capsys):
    file, out = tmp_path / "both.csv", tmp_path / "scaled.csv"
    file.write_text(VALID + OTHER + "target_epoch.2,10\n")
    main(["scale", str(file), "--epochs", "10", "--out", str(out)])
    assert [one.epoch for one in parse_injection(out.read_text()).every] == [1, 5]
    assert "fault 2, at fc:" in capsys.readouterr().out
