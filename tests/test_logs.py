"""Logs of every family are read as they are; what is wrong in them is answered with one line."""

import json
import random
import re
import shutil
import sys

import numpy as np
import pytest
from log_files import FAULTY, START, STEPS, event_file, values, write, written
from mutations import bytes_of, json_of

from fault_injection.commands.main import main
from fault_injection.detection.calibration import bound
from fault_injection.logs.families import read_log
from fault_injection.logs.log import lineage
from fault_injection.machine.errors import InputError

FAMILIES = tuple(written())


def detect(capsys, path, *words, detector="loss_spike"):
    """Exit code and JSON of the command."""
    code = main(["detect", str(path), "--detector", detector, "--json", *words])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if code in (0, 3) else captured.err


def csv(tmp_path, rows, head="step,tensor,value"):
    path = tmp_path / "log.csv"
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_read_as_it_is(tmp_path, capsys, family):
    path = write(tmp_path, family)
    code, found = detect(capsys, path, "--fail")
    assert (code, found["raised"], found["restarts"]) == (3, FAULTY, 0)
    assert [(a["step"], a["value"]) for a in found["alarms"]] == [(FAULTY, 50.0)]
    log = read_log(path)
    name = found["alarms"][0]["tensor"]
    one = log.of([name])
    assert one.steps.tolist() == list(range(STEPS))
    np.testing.assert_allclose(one.values, values()[0], rtol=1e-6)
    if log.times is not None and family not in ("torchtitan", "Megatron"):
        assert one.times[0] in (0, START) and 0 < np.diff(one.times)[0] <= 1


def test_event_files_are_read_by_tensorboard(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="the extra logs")
    losses, _ = values()
    raw = event_file([(i, "loss", x) for i, x in enumerate(losses)])
    path = tmp_path / "events.out.tfevents.1700000000.host"
    path.write_bytes(raw)
    for where in (path, tmp_path):
        code, found = detect(capsys, where)
        assert (code, found["raised"], found["family"]) == (0, FAULTY, "TensorBoard event files")
    path.write_bytes(raw[:-9])
    code, found = detect(capsys, path)
    assert code == 0 and any("cut off or damaged after" in note for note in found["notes"])
    for number in range(300):
        path.write_bytes(bytes_of(raw, random.Random(number)))
        code = main(["detect", str(path), "--detector", "nonfinite"])
        assert code in (0, 2) and "Traceback" not in capsys.readouterr().err


def test_without_tensorboard_one_line_says_how_to_install_it(tmp_path, capsys, monkeypatch):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(event_file([(0, "loss", 1.0)]))
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["detect", str(tmp_path), "--detector", "loss_spike"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'fault-injection[logs]'" in error and error.count("\n") == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mutated_log_is_read_or_answered_with_one_line(tmp_path, capsys, family):
    path, answers = write(tmp_path, family), set()
    file = path / "metrics" / "train" / "loss" if path.is_dir() else path
    content = file.read_bytes()
    for number in range(300):
        rng = random.Random(f"{family} {number}")
        mutated = (json_of if family == "trainer_state" and number % 2 else bytes_of)(content, rng)
        file.write_bytes(mutated)
        try:
            read_log(path)
            code = 0
        except InputError as error:
            code, message = 2, str(error)
            assert message.startswith(str(path)) and message.isprintable(), mutated
            answers.add(re.sub("[0-9]+|'[^']*'", "_", message.replace(str(path), ""))[:40])
        if number % 10 == 0:
            said = main(["detect", str(path), "--detector", "loss_spike"])
            err = capsys.readouterr().err
            assert said == code or (said, code) == (2, 0), mutated
            assert said == 0 or err.count("\n") == 1, err
        assert file.read_bytes() == mutated
    assert answers
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not list(tmp_path.iterdir())


def test_a_step_that_falls_begins_a_segment(tmp_path, capsys):
    """The values are those of the log without the superseded rows; alarms in these do not count, and are said."""
    losses, _ = values(260)
    rows = [(i, "loss", losses[i]) for i in range(213)]
    rows[205] = (205, "loss", 1e6)
    again = [(i, "loss", losses[i]) for i in range(201, 260)]
    code, found = detect(capsys, csv(tmp_path, rows + again))
    straight = [(i, "loss", losses[i]) for i in range(260)]
    _, expected = detect(capsys, csv(tmp_path, straight))
    assert code == 0 and found["restarts"] == 1 and found["alarms"] == expected["alarms"]
    assert [a["step"] for a in found["superseded"]] == [205]
    assert any("step 201 after step 212" in note for note in found["notes"])


def test_a_lineage_is_that_of_a_stack():
    """Independent: the rows that remain are the last ones of their step, in rising order."""
    from fault_injection.logs.log import Log

    rng = np.random.default_rng(1)
    for _ in range(200):
        steps = rng.integers(0, 8, 12)
        zeros = np.zeros(12, int)
        found = lineage(Log("", steps, ("x",), zeros, zeros * 1.0, None, zeros, 8))
        kept = [i for i in range(12) if all(steps[j] >= steps[i] for j in range(i + 1, 12))]
        fallen = [
            i for i in kept if not any(steps[j] == steps[i] and (steps[i:j] > steps[j]).any() for j in range(i, 12))
        ]
        assert np.flatnonzero(~found.superseded).tolist() == fallen


def test_skipped_steps_are_counted_and_are_no_alarms(tmp_path, capsys):
    """Infinities under a scale that is halved next; without the scale, and where it is not halved, they are alarms."""
    scale = [2.0 ** (16 - min(i, 3)) for i in range(80)]
    norm = [float("inf") if i in (0, 1, 2, 60) else 1 + i % 7 / 50 for i in range(80)]
    rows = [(i, scale[i], norm[i]) for i in range(80)]
    code, found = detect(capsys, csv(tmp_path, rows, "step,loss_scale,grad_norm"), detector="gradient_norm")
    assert code == 0 and found["skipped"] == [0, 1, 2] and [a["step"] for a in found["alarms"]] == [60]
    rows = [(i, int(i == 60), norm[i]) for i in range(80)]
    _, found = detect(capsys, csv(tmp_path, rows, "step,skipped,grad_norm"), detector="gradient_norm")
    assert found["skipped"] == [60] and [a["step"] for a in found["alarms"]] == [0, 1, 2]


def test_what_no_detector_of_values_says_is_an_alarm(tmp_path, capsys):
    rng = np.random.default_rng(0)
    loss = [round(1.2 + 0.02 * x, 4) for x in rng.normal(size=400)]

    def whys(rows, head="step,tensor,value", **words):
        return [(a["step"], a.get("why", "")) for a in detect(capsys, csv(tmp_path, rows, head), **words)[1]["alarms"]]

    ((step, why),) = whys([(i, "loss", loss[i] if i < 300 else 0.0) for i in range(400)], detector="nonfinite")
    assert step == 300 and why.endswith("to exactly zero")
    ((step, why),) = whys([(i, "loss", loss[min(i, 300)]) for i in range(400)])
    assert 300 < step < 320 and "stays exactly" in why and "from step 300 on" in why
    rows = [(i, name, loss[i]) for i in range(400) for name in ("loss", "g") if i < 200 or name == "g"]
    ((step, why),) = whys(rows)
    assert step == 200 and why == "is missing after step 199; the log goes on to step 399"
    ((step, why),) = whys([(i, loss[i], "nan" if i == 90 else 1.0) for i in range(400)], "step,loss,grad_norm")
    assert step == 90 and "a mean may hide a NaN" in why
    # A loss that is rounded to a few units, a clipped norm and a metric that is rare are none.
    assert not whys([(i, "loss", round(max(0.0003 - i / 1e6, 0), 4)) for i in range(400)], detector="nonfinite")
    assert not whys(
        [(i, loss[i], 1.0, loss[i] if i % 50 == 0 else "") for i in range(400)], "step,loss,grad_norm,val_loss"
    )


def test_a_spike_in_the_warm_up_hides_no_later_one(tmp_path, capsys):
    values = [1e10 if i == 5 else 50.0 if i >= 150 and i % 10 == 0 else 2 + i % 7 / 100 for i in range(600)]
    _, found = detect(capsys, csv(tmp_path, [(i, "loss", x) for i, x in enumerate(values)]))
    assert [a["step"] for a in found["alarms"]] == [5, *range(150, 600, 10)]


def test_the_bound_of_a_calibrated_threshold_covers():
    """By simulation: the threshold at the (j + 1)-th largest of n uniform values is exceeded by at most the bound."""
    rng = np.random.default_rng(0)
    for count, above in ((50, 0), (500, 2)):
        drawn = np.sort(rng.random((4000, count)), axis=1)[:, -1 - above]
        assert 0.935 < np.mean(1 - drawn <= bound(above, count)) < 0.965


def test_thresholds_of_fault_free_logs_keep_their_rate(tmp_path, capsys):
    rng = np.random.default_rng(2)
    free, other = tmp_path / "free.csv", tmp_path / "other.csv"
    for path, count in ((free, 4000), (other, 4000)):
        rows = [f"{i},grad_norm,{x}" for i, x in enumerate(np.exp(rng.normal(size=count)))]
        path.write_text("\n".join(["step,tensor,value", *rows]) + "\n")
    words = ("--calibrate", str(free), "--rate", "0.005")
    _, found = detect(capsys, other, *words, detector="gradient_norm")
    calibration = found["calibration"]
    assert calibration["rate"] <= 0.005 and calibration["values"] == 3980 and len(found["alarms"]) < 0.008 * 4000
    _, found = detect(capsys, other, "--calibrate", str(free), "--rate", "1e-5", detector="gradient_norm")
    assert found["calibration"]["rate"] == pytest.approx(1 - 0.05 ** (1 / 3980)) and found["calibration"]["above"] == 0


def test_a_picture_has_values_threshold_and_alarms(tmp_path, capsys):
    path, picture = write(tmp_path, "wide"), tmp_path / "a.svg"
    assert main(["detect", str(path), "--detector", "loss_spike", "--picture", str(picture)]) == 0
    assert picture.read_text().count("<path") > 5 and capsys.readouterr().out.endswith(f"drawn in {picture}\n")


def test_a_choice_is_left_to_the_person(tmp_path, capsys):
    rows = [(i, 2.0 + i % 3, 3.0 + i % 3) for i in range(30)]
    path = csv(tmp_path, rows, "n,first_loss,second_loss")
    code, error = detect(capsys, path)
    assert code == 2 and "which of these is a loss? --value NAME chooses" in error and error.count("\n") == 1
    code, found = detect(capsys, path, "--value", "second_loss", "--step", "n")
    assert code == 0 and not found["alarms"] and any("second_loss" in note for note in found["notes"])
