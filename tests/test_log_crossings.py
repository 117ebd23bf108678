"""Restarts × skipped steps × sparse tensors × columns called alike: no fault is excused, and none is made up."""

import json

import numpy as np
import pytest

from fault_injection.commands.main import main

INF, NAN = float("inf"), float("nan")


@pytest.fixture
def detect(tmp_path, capsys):
    """Exit code, raised step, and steps with tensors of alarms that count, of a detector over a table."""

    def run(head, rows, *words, detector="nonfinite", name="log.csv"):
        path = tmp_path / name
        path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
        code = main(["detect", str(path), "--detector", detector, "--json", "--fail", *words])
        found = json.loads(capsys.readouterr().out)
        return found | {"code": code, "at": sorted({(each["step"], each["tensor"]) for each in found["alarms"]})}

    return run


def wrong(step, from_, value=NAN, right=1.0):
    return value if step >= from_ else right + step % 7 / 10


# ---- What is called as a counter, or as a scale, and is none -------------------------------


@pytest.mark.parametrize("called", ["grad_norm/LayerNorm_0/scale", "grad_norm/skip_conv", "largest/gradients/bn/scale"])
def test_a_layer_that_is_called_as_a_scale_or_a_counter_excuses_nothing(detect, called):
    """A gradient that is infinite in one step is at most half of that in the next."""
    rows = [(i, INF if i == 50 else 2 + i % 7 / 10, INF if i == 50 else 1 + i % 3 / 10) for i in range(100)]
    found = detect(f"step,loss,{called}", rows)
    assert found["at"] == [(50, called), (50, "loss")] and not found["skipped"]


def test_a_scale_of_zero_is_no_scale(detect):
    """So trainers write it that do not scale."""
    found = detect("step,loss,loss_scale", [(i, NAN if 50 <= i < 60 else 2 + i % 3 / 10, 0) for i in range(100)])
    assert [step for step, _ in found["at"]] == list(range(50, 60)) and not found["skipped"]


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("restarted", [30, 25])
def test_a_counter_since_the_beginning_says_so_where_it_rises(detect, after, restarted):
    """A restart sets it back, to what it was or to nothing; all later steps are none that were skipped."""
    counts = [(i, sum(i >= at for at in (3, 20))) for i in range(30)]
    counts += [(i, after) for i in range(restarted, 100)]
    rows = [(step, wrong(step, 80) if step not in (3, 20) else INF, count) for step, count in counts]
    found = detect("step,grad_norm,skipped_steps", rows)
    assert found["skipped"] == [3, 20] and found["raised"] == 80
    assert [step for step, _ in found["at"]] == list(range(80, 100))


def test_a_counter_of_each_row_counts_rows_that_follow_one_another(detect):
    counts = [1 if i in (0, 1, 2, 60) else 0 for i in range(100)]
    found = detect("step,grad_norm,found_inf", [(i, INF if n else 1 + i % 7, n) for i, n in enumerate(counts)])
    assert found["skipped"] == [0, 1, 2, 60] and not found["at"]


def test_no_scale_is_halved_so_often(detect):
    """A flag that stays is no flag."""
    counts = [int(20 <= i < 90) for i in range(100)]
    found = detect("step,grad_norm,overflow", [(i, wrong(i, 40), n) for i, n in enumerate(counts)])
    assert found["skipped"] == [20] and found["raised"] == 40


# ---- Restarts ------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [(0, 10), (10, 25)])
def test_a_training_that_began_anew_and_ended_sooner_misses_nothing(detect, again):
    """Also where a tensor was written before the restart alone."""
    rows = [(i, 2 + i % 7 / 10, 1 if i == 20 else "") for i in [*range(30), *range(*again)]]
    found = detect("step,loss,val_loss", [*rows])
    assert (found["code"], found["restarts"], found["at"]) == (0, 1, [])


def test_rows_without_values_say_how_far_a_log_goes(detect):
    rows = [(i, 2 + i % 7 / 10 if i < 50 else "") for i in range(200)]
    assert detect("step,loss", rows)["at"] == [(50, "loss")]


@pytest.mark.parametrize("head", ["step,loss,grad_norm", "step,grad_norm,loss"])
def test_a_restart_abandons_rows_of_tensors_that_are_not_in_every_row(detect, head):
    """The restart, at step 15, is seen in the loss alone: the norm goes from 20 to 20."""

    def row(step, norm):
        cells = {"step": step, "loss": 2 + step % 7 / 10, "grad_norm": norm if step % 10 == 0 else ""}
        return [cells[name] for name in head.split(",")]

    rows = [row(i, INF if i == 20 else 1.0) for i in range(26)] + [row(i, 1.1) for i in range(15, 60)]
    found = detect(head, rows)
    assert found["at"] == [] and [each["step"] for each in found["superseded"]] == [20]


def test_tensors_one_after_the_other_have_restarts_of_their_own(detect):
    """In a log of one value per row a later tensor's restart abandons nothing of the one before."""
    rows = [(i, "a", wrong(i, 90, INF)) for i in range(100)]
    rows += [(i, "b", 1 + i % 7) for i in [*range(80), *range(50, 100)]]
    found = detect("step,tensor,value", rows)
    assert found["at"] == [(i, "a") for i in range(90, 100)] and found["restarts"] == 1


def test_a_restart_into_an_earlier_epoch_counts_from_where_that_began(detect):
    rows = [(epoch, i, NAN if i == 10 else 2 + i % 7 / 10) for epoch in (0,) for i in range(20)]
    rows += [(1, i, 2 + i % 7 / 10) for i in range(20)]
    rows += [(epoch, i, 2 + i % 7 / 10) for epoch, first in ((0, 5), (1, 0), (2, 0)) for i in range(first, 20)]
    found = detect("loss,epoch,step", [(loss, epoch, step) for epoch, step, loss in rows])
    assert found["at"] == [] and [each["step"] for each in found["superseded"]] == [10]
    assert "1 restart(s), step 5 after step 39: the later values count" in found["notes"]


@pytest.mark.parametrize("steps", ["iteration", "global_step"])
def test_a_column_of_epochs_before_that_of_steps_counts_no_steps(detect, steps):
    rows = [(i // 100, i, NAN if (n, i) == (0, 250) else 2 + i % 7 / 10) for n in (0, 1) for i in range(210 * n, 300)]
    found = detect(f"epoch,{steps},loss", rows)
    assert found["at"] == [] and [each["step"] for each in found["superseded"]] == [250]


# ---- Which columns are looked at -----------------------------------------------------------


@pytest.mark.parametrize("head", ["step,name,loss,value", "step,key,grad_norm,value"])
def test_a_value_beside_a_loss_is_one_tensor_of_several(detect, head):
    found = detect(head, [(i, "run1", wrong(i, 50), 1 + i % 3) for i in range(100)])
    assert found["at"] == [(i, head.split(",")[2]) for i in range(50, 100)]


def test_columns_beside_those_of_one_value_per_row_are_named(detect):
    found = detect("step,tensor,value,other", [(i, "loss", 1 + i % 7, i) for i in range(100)])
    assert "columns that are not looked at: 'other'" in found["notes"]


def test_a_loss_scaler_is_no_loss_that_stands_still(detect):
    found = detect("step,loss,loss_scaler", [(i, 2 + i % 7 / 10, 65536) for i in range(200)], detector="loss_spike")
    assert (found["code"], found["at"]) == (0, [])


def test_a_zero_before_the_first_step_hides_no_later_fall_to_zero(detect):
    rows = [(i, 2 + i % 7 / 10, 0 if i == 0 or i >= 50 else 1 + i % 7 / 1000) for i in range(100)]
    assert detect("step,loss,grad_norm", rows)["at"] == [(50, "grad_norm")]


def test_a_value_that_one_worker_alone_has_blinds_no_comparison(detect):
    norms = [(i, *(1 + (i * k) % 7 / 10 for k in (1, 2)), 3.0, 1.1) for i in range(60)]
    head = "step," + ",".join(f"rank{k}/grad_norm" for k in range(4))
    expected = detect(head, norms, detector="peers")
    rows = [(*each, 1.0 if each[0] % 20 == 0 else "") for each in norms]
    found = detect(f"{head},rank0/grad_norm_clipped", rows, detector="peers")
    assert found["at"] == expected["at"] and {tensor for _, tensor in found["at"]} == {"rank2/grad_norm"}
    assert any("not looked at: rank0/grad_norm_clipped" in note for note in found["notes"])


# ---- Numbers beyond what they are meant for -------------------------------------------------


def test_a_whole_number_beyond_float64_is_infinite(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {i}, "loss": {"9" * 400 if i else 1}}}\n' for i in range(2)))
    assert main(["detect", str(path), "--detector", "nonfinite", "--fail"]) == 3
    assert "raised at step 1" in capsys.readouterr().out


@pytest.mark.parametrize("window", [10**6 + 1, 10**20])
def test_a_window_that_no_memory_holds_is_refused(tmp_path, capsys, window):
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n0,1\n")
    assert main(["detect", str(path), "--detector", "loss_spike", "--set", f"window={window}"]) == 2
    assert capsys.readouterr().err == f"loss_spike: window='{window}'; expected a value such as 100\n"


# ---- Thresholds from logs of one's own -----------------------------------------------------


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("name", ["asd", "asd_v1", "asd_v3", "gradient_norm"])
def test_what_a_calibrated_detector_stops_is_what_its_calibration_says(detect, tmp_path, name, shifted):
    """Also of detectors that do not remember what they stop; and none warns below its calibrated threshold."""
    rng = np.random.default_rng(3)
    values = np.exp(rng.normal(size=2000) / 2) * np.where(np.arange(2000) < 1000, 1, 5 if shifted else 1)
    rows = [(i, f"{x:.6g}") for i, x in enumerate(values)]
    words = ("--calibrate", str(tmp_path / "log.csv"), "--rate", "0.01")
    found = detect("step,grad_norm", rows, *words, detector=name)
    assert found["calibration"]["above"] == len(found["alarms"]) and found["calibration"]["rate"] <= 0.01
