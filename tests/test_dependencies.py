"""Cached results outlive every change that cannot alter them, and no other."""

import dataclasses
import functools
import pathlib
import shutil

import pytest

from fault_injection.machine.sources import ROOT, closure, source_hash
from fault_injection.questions.outcomes import jobs
from fault_injection.questions.outcomes.conditions import Conditions
from fault_injection.questions.outcomes.experiment import Laboratory
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.runs import dependencies
from fault_injection.runs.dependencies import COMPUTING, EXPERIMENT, JUDGING, REPLAY, STRIKING
from fault_injection.runs.golden_run import Golden
from fault_injection.workloads.registry import WORKLOADS, find_workload, make_workload

ALL = {**WORKLOADS, "resnet18 on digits": make_workload("resnet18", dataset="digits")}
VERDICTS = {"replays": REPLAY, "campaigns": EXPERIMENT}


def keys(checkout: pathlib.Path) -> dict[str, str]:
    """Hashes of what golden runs of each workload, and verdicts, depend on in a checkout of the project."""
    found = {}
    for name, workload in ALL.items():
        roots = [path.resolve().relative_to(ROOT) for path in workload.sources()]
        found[name] = source_hash(closure(roots, COMPUTING, checkout), checkout)
    for name, root in VERDICTS.items():
        found[name] = source_hash(closure([root], (*STRIKING, *JUDGING), checkout), checkout)
    return found


@pytest.fixture
def copy(tmp_path):
    """A copy of the project."""
    for room in ("models", "fault_injection"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def add(checkout, path, text="\n\ndef something_else():\n    return 1\n"):
    """Add code at the end of a file, or make one of it."""
    with (checkout / path).open("a") as file:
        file.write(text)


@functools.cache
def keys_here():
    return keys(ROOT)


def changed(checkout):
    """What has other keys than the project."""
    before, after = keys_here(), keys(checkout)
    return {name for name in before if before[name] != after[name]}


def test_the_keys_of_results_are_made_of_these_hashes():
    here = keys(ROOT)
    assert {name: dependencies.source_of_bits(workload) for name, workload in ALL.items()} == {
        name: here[name] for name in ALL
    }
    assert {name: dependencies.source_of_verdicts(root) for name, root in VERDICTS.items()} == {
        name: here[name] for name in VERDICTS
    }


def test_a_new_workload_changes_no_key(copy):
    """A layer file, a network file, and a row in each of the tables that name networks and workloads."""
    add(copy, "models/layers/gelu.py", "def gelu(x):\n    return x\n")
    add(copy, "models/networks/other.py", "from ..layers.gelu import gelu\n\nother = gelu\n")
    add(copy, "models/networks/__init__.py", "\nfrom .other import other\nNETWORKS['t'] = other\n")
    add(copy, "fault_injection/workloads/image.py", "\nPUBLISHED['t'] = ImageWorkload(name='t', network='t')\n")
    add(copy, "fault_injection/workloads/registry.py", "\nWORKLOADS['t'] = PUBLISHED['t']\n")
    assert changed(copy) == set()


ONLY_DIGITS = {"resnet18 on digits"}
ONLY_TEXT = {"transformer"}
ONLY_CLICKS = {"dlrm", "dlrm_criteo"}
IMAGES = set(ALL) - ONLY_TEXT - ONLY_CLICKS
EDITS = {
    "models/layers/convolution.py": IMAGES,
    "models/layers/standardisation.py": {"nfnet"},
    "models/layers/normalisation.py": IMAGES - {"nfnet"},
    "models/layers/attention.py": ONLY_TEXT,
    "models/layers/interaction.py": ONLY_CLICKS,
    "models/networks/densenet.py": {"densenet"},
    "models/operations/operation.py": set(ALL),
    "models/operations/lookup.py": set(ALL),
    "models/operations/convolution.py": IMAGES,
    "models/operations/product.py": ONLY_TEXT | ONLY_CLICKS,
    "models/strike.py": set(ALL),
    "fault_injection/explicit/engine.py": set(ALL),
    "fault_injection/explicit/optimizers.py": set(ALL),
    "fault_injection/data/digits.py": ONLY_DIGITS,
    "fault_injection/data/shakespeare.py": ONLY_TEXT,
    "fault_injection/data/token_folder.py": set(),
    "fault_injection/data/batches.py": IMAGES,
    "fault_injection/faults/fault_models.py": set(VERDICTS),
    "fault_injection/runs/outcome.py": set(VERDICTS),
    "fault_injection/runs/follow.py": set(VERDICTS),
    "fault_injection/seam/state_faults.py": set(VERDICTS),
    "fault_injection/faults/schedule.py": set(VERDICTS),
    "fault_injection/runs/exits.py": set(VERDICTS),
    "fault_injection/runs/replay_run.py": set(VERDICTS),  # which checks what an experiment's fault did, too
    "fault_injection/questions/outcomes/conditions.py": {"campaigns"},
    "fault_injection/questions/outcomes/experiment.py": {"campaigns"},
    "fault_injection/questions/outcomes/sampling.py": {"campaigns"},
    "fault_injection/campaign/page.py": set(),
    "fault_injection/questions/outcomes/driver.py": set(),
    "fault_injection/runs/curves.py": set(),
    "fault_injection/commands/replay.py": set(),
    "fault_injection/machine/errors.py": set(),
}


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_changes_the_keys_of_what_it_can_alter_and_of_nothing_else(copy, path):
    add(copy, path)
    found = changed(copy)
    assert found == EDITS[path]


def test_the_code_that_judges_is_part_of_a_campaigns_key_and_of_no_golden_runs(tmp_path, monkeypatch):
    plan = parse_plan(f'workload = "{ROOT / "tests" / "toy.py"}:linear"\n[faults]\nexperiments = 2')
    golden = Golden(plan.workload, plan.workload.program(), tmp_path)
    lab = Laboratory(plan, golden, Conditions(), tmp_path)
    campaign, run = jobs.plan_key(lab), golden.key
    monkeypatch.setattr(jobs, "source_of_verdicts", lambda root: f"other {root}")
    assert jobs.plan_key(lab) != campaign
    assert dataclasses.replace(golden).key == run
    monkeypatch.setattr("fault_injection.runs.golden_run.source_of_bits", lambda workload: "other bits")
    other = dataclasses.replace(golden)
    assert other.key != run
    assert jobs.plan_key(Laboratory(plan, other, Conditions(), tmp_path)) != campaign


def test_a_workload_of_ones_own_depends_on_its_file_wherever_that_is(tmp_path):
    toy = (ROOT / "tests" / "toy.py").read_text()
    found = []
    for folder, text in (("one", toy), ("other", toy), ("edited", f"{toy}\nSTEPS = 9\n")):
        path = tmp_path / folder / "toy.py"
        path.parent.mkdir()
        path.write_text(text)
        workload = find_workload(f"{path}:linear")
        assert workload.sources() == (path,)
        found.append(dependencies.source_of_bits(workload))
    assert found[0] == found[1] != found[2]
