"""How the error of an altered checkpoint moves through the layers: writes `spread.json` beside this file.

    python results/checkpoints/spread.py        # three minutes on two cores

It trains `resnet18` of width 8 on digits, alters the checkpoint before epoch 10 of 20 in two ways, trains on from each,
and compares the states one and ten epochs later with those of the fault-free run: medians of the relative error over
the kernels of each stage.
"""

import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

WORKLOAD = ["resnet18", "--dataset", "digits", "--width", "8", "--batch-size", "128", "--epochs", "20"]
EPOCH, LATER = 10, (10, 19)
ALTERED = {
    "ten flips of bits 0 to 29": ["--count", "10", "--bits", "0-29", "--seed", "1"],
    "the lowest bit of one parameter": ["--count", "1", "--bits", "0-0", "--seed", "1"],
}
STAGES = ("conv1", "basicblock_1", "basicblock_2", "basicblock_3", "basicblock_4", "fc")


def said(*words, codes=(0,)):
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fault_injection", *map(str, words)], stdout=subprocess.PIPE, check=False
    )
    if done.returncode not in codes:
        sys.exit(done.returncode)
    return done.stdout


def stage_of(name):
    """The stage of a kernel; None of another array."""
    found = re.fullmatch(r"params/(\D*\d*)\S*/kernel", name)
    return found and next((stage for stage in STAGES if re.match(rf"{stage}(_|$)", found[1])), None)


def main():
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        said("golden", *WORKLOAD, "--cache", here / "cache")
        (states,) = here.glob("cache/golden/*/checkpoints")
        for number, (name, how) in enumerate(ALTERED.items()):
            altered, out = here / f"{number}.npz", here / f"out_{number}"
            said("alter", states / f"{EPOCH:04d}.npz", "--out", altered, "--part", "model", *how)
            kept = ["--keep-states", ",".join(map(str, LATER)), "--out", out, "--cache", here / "cache"]
            said("continue", altered, *WORKLOAD, "--epoch", EPOCH, *kept)
            found[name] = {}
            for epoch in LATER:
                both = states / f"{epoch + 1:04d}.npz", out / f"state_after_{epoch:04d}.npz"
                arrays = json.loads(said("diff", *both, "--json", codes=(0, 1)))["arrays"]
                errors = {stage: [a["error"] for a in arrays if stage_of(a["name"]) == stage] for stage in STAGES}
                found[name][epoch + 1 - EPOCH] = {stage: statistics.median(each) for stage, each in errors.items()}
    path = pathlib.Path(__file__).parent / "spread.json"
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
