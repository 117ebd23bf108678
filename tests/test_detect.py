"""`detect`: a detector over a user's own log, as a command."""

import json
import random

import pytest

from fault_injection.commands.main import main

MINUTES = 60


def run(capsys, tmp_path, text, *words, detector="asd"):
    """Exit code, standard output and standard error of the command on a log."""
    path = tmp_path / "values.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code = main(["detect", str(path), "--detector", detector, *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def log(special, steps=200, tensors=("a", "b"), minutes=1.0):
    """A log of quiet values, but for those of `special` by (step, tensor)."""
    rng = random.Random(1)
    rows = ["step,tensor,value,time"]
    for step in range(steps):
        for tensor in tensors:
            value = special.get((step, tensor), rng.uniform(0.5, 1.5))
            rows.append(f"{step},{tensor},{value},{step * minutes * MINUTES}")
    return "\n".join(rows) + "\n"


def test_alarms_are_listed_in_order_and_raised_at_the_third_strike(capsys, tmp_path):
    """Steps 52 and 150 are too near a counted alarm; each tensor has a memory of its own."""
    special = {(50, "b"): 1e5, (52, "a"): "nan", (60, "a"): 1e6, (90, "b"): "inf", (91, "a"): 1e5}
    code, out, err = run(capsys, tmp_path, log(special), "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [(a["step"], a["tensor"]) for a in found["alarms"]] == [(s, t) for s, t in sorted(special)]
    assert found["raised"] == 90
    assert found["alarms"][0] == {
        "step": 50, "tensor": "b", "value": 1e5, "level": 1, "threshold": found["alarms"][0]["threshold"],
        "excess": pytest.approx(1e5 / found["alarms"][0]["threshold"]),
    }  # fmt: skip
    assert 900 < found["alarms"][0]["threshold"] < 1500
    # The same in two logs of one tensor each, put together.
    alone = [json.loads(run(capsys, tmp_path, log(special, tensors=(t,)), "--json")[1])["alarms"] for t in ("a", "b")]
    assert {a["step"] for part in alone for a in part} == {s for s, _ in special}


def test_without_a_clock_nothing_strikes_out(capsys, tmp_path):
    text = log({(50, "a"): 1e5, (100, "a"): 1e5, (150, "a"): 1e5})
    without = "\n".join(line.rpartition(",")[0] for line in text.splitlines())
    code, out, err = run(capsys, tmp_path, without, "--json")
    found = json.loads(out)
    assert code == 0 and len(found["alarms"]) == 3 and found["raised"] is None
    assert err == "nothing that asd says can be raised: it counts strikes on a clock, and the log has no time\n"
    assert json.loads(run(capsys, tmp_path, text, "--json")[1])["raised"] == 150


@pytest.mark.parametrize(
    ("detector", "environment", "raised", "alarms"),
    [
        ("asd_v1", {}, 120, 2),
        ("asd_v1", {"NPU_ASD_ENABLE": "1"}, None, 2),
        ("asd_v1", {"NPU_ASD_ENABLE": "0"}, None, 0),
        ("asd_v1", {"NPU_ASD_UPPER_THRESH": "100000,3"}, 120, 3),
        ("asd_v3", {}, 120, 2),
        ("gradient_norm", {}, 110, 3),
        ("nonfinite", {}, 130, 1),
        ("asd", {"NPU_ASD_CONFIG": "strikes_num:1"}, 120, 2),
    ],
)
def test_each_detector_and_its_environment(capsys, tmp_path, monkeypatch, detector, environment, raised, alarms):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    special = {(110, "a"): 4.0, (120, "a"): 2e6, (130, "a"): "-inf"}
    code, out, _ = run(capsys, tmp_path, log(special, tensors=("a",)), "--json", detector=detector)
    found = json.loads(out)
    assert (code, found["raised"], len(found["alarms"])) == (0, raised, alarms)


def test_columns_in_any_order_and_a_table_for_people(capsys, tmp_path):
    rows = [f"{1 + step % 3 / 10},{step},loss" for step in range(60)]
    text = "\r\n".join(["\ufeffvalue,step,tensor", *rows, "9,60,loss", ""])
    code, out, _ = run(capsys, tmp_path, text, detector="loss_spike")
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ["step", "tensor", "value", "level", "threshold"]
    assert lines[1].split()[:4] == ["60", "loss", "9", "1"]
    assert lines[2] == "loss_spike: 1 alarm(s) in 61 values of 1 tensor(s); raised at step 60"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; expected a log: TensorBoard event files, MLflow metrics, Hugging Face trainer_state.json"),
        ("step,tensor,value\n", "no values: there is nothing but the header"),
        (
            "step,tensor\n1,a\n",
            "read as CSV with one column per tensor: no values: tensor has 'a' in line 2, which is no number",
        ),
        ("step,tensor,value\n1,a\n", ":2: 2 cells; expected 3: step,tensor,value"),
        ("step,tensor,value\nx,a,1\n", ":2: step 'x'; expected a whole number from 0"),
        ("step,tensor,value\n-1,a,1\n", ":2: step '-1'; expected a whole number from 0"),
        ("step,tensor,value\n1.5,a,1\n", ":2: step '1.5'; expected a whole number from 0"),
        ("step,tensor,value\n1,,1\n", ":2: no tensor; expected a name"),
        ("step,tensor,value\n1,a,x\n", ":2: value 'x'; expected a number, nan or inf"),
        ('step,tensor,value\n1,a,"1,234"\n', ":2: value '1,234'; expected a number, nan or inf"),
        ("step,tensor,value\n1,a,-2\n", ":2: value -2 of 'a'; expected a norm or a largest absolute value, from 0"),
        ("step,tensor,value,time\n1,a,1,x\n", ":2: time 'x'; expected seconds, or a date and time of ISO 8601"),
        ("step,tensor,value,time\n1,a,1,5\n2,a,1,4\n", ":3: time 4 of 'a' after 5; expected the rows in order"),
        ("step,loss,loss\n1,2,3\n", ":1: column 'loss' stands 2 times"),
        ("step,loss,lr\n1,2,3\n", "which of these is the gradient? --value NAME chooses: 'loss', 'lr'"),
        ("<html>\n", "begins with '<html>'; expected a log: "),
        ('step,tensor,value\n1,"a,1\n', "not a row of separated values"),
        (b"\xff\xfe\x00", "not UTF-8 text, and no log that is known"),
    ],
)
def test_a_malformed_log_gets_one_line(capsys, tmp_path, text, message):
    code, out, err = run(capsys, tmp_path, text)
    assert code == 2 and out == "" and err.count("\n") == 1
    assert message in err and "values.csv" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--detector", "asd2"], "detector 'asd2' is unknown; did you mean 'asd'?"),
        (["--detector", "asd", "--set", "uper=3"], "asd has no setting 'uper'; did you mean 'upper'?"),
        (["--detector", "asd", "--set", "upper"], "--set 'upper'; expected SETTING=VALUE"),
        (["--detector", "asd_v1", "--set", "upper=3"], "asd_v1: upper='3'; expected a value such as"),
        (["--detector", "asd", "--step", "steps"], "--step 'steps': no such column; did you mean 'step'?"),
        (["--detector", "asd", "--value", "b"], "--value 'b': no such values; expected one of a"),
        (["--detector", "asd", "--rate", "2"], "--rate 2.0; expected a share of values between 0 and 1"),
        (["--detector", "asd", "--picture", "x.gif"], "x.gif: --picture: expected a log to draw, and a file .svg"),
        (["--detector", "nonfinite", "--calibrate", "{log}"], "NonFinite has no threshold that could be calibrated"),
        (["--detector", "asd", "--calibrate", "{log}"], "no value is above what a threshold is counted from"),
        (["--detector", "history_bound"], "detector 'history_bound' is unknown; expected one of nonfinite"),
    ],
)
def test_a_wrong_command_gets_one_line(capsys, tmp_path, words, message):
    path = tmp_path / "values.csv"
    path.write_text("step,tensor,value\n1,a,1\n")
    assert main(["detect", str(path), *(word.format(log=path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
