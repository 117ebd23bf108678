"""The command `replay` with a detector and a recovery: what was detected, and what became of it."""

import json

import numpy as np
import pytest
from small import SITE, flags
from whole import only_whole

from fault_injection.commands.main import main
from fault_injection.detection.recovery import RECOVERIES
from fault_injection.machine.files import read_arrays

pytestmark = pytest.mark.usefixtures("compiled_quickly")

LATENT = f"""model,resnet18
stage,bkwd_inject
fmodel,INPUT
target_worker,1
target_layer,{SITE}
target_epoch,1
target_step,2
inj_pos,0/1/1/0
inj_values,1e17
"""


@pytest.fixture(scope="module")
def latent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("latent")
    words = flags(epochs=3)
    rows = zip(words[::2], words[1::2], strict=True)
    text = LATENT + "".join(f"{name.removeprefix('--').replace('-', '_')},{value}\n" for name, value in rows)
    text += "seed,123\n"
    (folder / "latent.csv").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("detector", "recovery"),
    [
        ("history_bound", "rewind"),
        pytest.param("gradient_norm", "skip", marks=[pytest.mark.slow, only_whole]),
        pytest.param("history_bound", "inverse", marks=pytest.mark.slow),
        pytest.param("dr_dna_published", "recompute", marks=[pytest.mark.slow, only_whole]),
        pytest.param("replay", "rewind", marks=[pytest.mark.slow, only_whole]),
    ],
)
def test_a_replay_tells_what_was_detected_and_what_became_of_it(latent, detector, recovery):
    out = latent / f"{detector}_{recovery}"
    words = ["replay", str(latent / "latent.csv"), "--detector", detector, "--recovery", recovery]
    words += {"gradient_norm": ["--set", "warm_up=5"], "replay": ["--set", "every=14"]}.get(detector, [])
    assert main([*words, "--out", str(out), "--cache", str(latent / "cache")]) == 0
    found = json.loads((out / "detection.json").read_text())
    late = detector == "dr_dna_published"  # it looks at the forward pass, and the fault is in the backward pass
    assert found["detected"] and found["steps_from_fault_to_alarm"] == late
    assert found["alarms_before_the_fault"] == 0
    assert found["actions"][0]["at"] == [1, 2 + late]
    record = read_arrays(out / "record.npz")
    recovered, golden = (record[f"{name}/steps/loss"] for name in ("recovered", "golden"))
    if late:
        assert found["after_recovery"]["outcome"] == found["outcome"] != "Masked"
    elif recovery == "inverse":  # the gradients are so large that nothing of the moments comes back
        assert found["actions"][0]["steps_undone"] == 2 and found["after_recovery"]["exactly_masked_after"] is None
    elif recovery != "skip":
        assert found["actions"][0]["steps_undone"] == RECOVERIES[recovery].steps
        assert found["after_recovery"]["exactly_masked_after"] == 0
        np.testing.assert_array_equal(recovered, golden[11:])
    else:
        assert (recovered[:2] == golden[11:13]).all()
        assert len(recovered) == 22 and not (recovered == golden[11:]).all()
    assert (out / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--detector", "asdd"], "detector 'asdd' is unknown; did you mean 'asd'?"),
        (["--detector", "asd", "--recovery", "rewin"], "recovery 'rewin' is unknown; did you mean 'rewind'?"),
        (["--recovery", "rewind"], "--recovery needs --detector NAME"),
        (["--detector", "gradient_norm", "--set", "deviation=3"], "no setting 'deviation'; did you mean 'deviations'?"),
        (["--detector", "gradient_norm", "--set", "deviations=x"], "deviations='x'; expected a value such as 6.0"),
        (["--detector", "history_bound", "--set", "bounds=1"], "has no setting 'bounds'"),
        (["--detector", "replicas"], "replicas compares the copies on several devices; this run has one device"),
    ],
)
def test_a_wrong_detector_is_refused_in_one_line(latent, capsys, words, message):
    assert main(["replay", str(latent / "latent.csv"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
