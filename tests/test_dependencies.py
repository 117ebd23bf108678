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
from fault_injection.runs.dependencies import COMPUTING, EXPERIMENT, JUDGING, REPLAY, TRIALS
from fault_injection.runs.golden_run import Golden
from fault_injection.workloads.registry import WORKLOADS, find_workload

# The file of the class of each family of workloads, and those of verdicts.
FAMILIES = {name: f"fault_injection/workloads/{name}.py" for name in ("image", "text", "click", "own")}
VERDICTS = {"replays": REPLAY, "campaigns": EXPERIMENT, "vulnerability": TRIALS}


def keys(checkout: pathlib.Path) -> dict[str, str]:
    """Hashes of what golden runs of each family, and verdicts, depend on in a checkout of the project."""
    rooms = dict.fromkeys(FAMILIES, COMPUTING)
    rooms |= {name: (*JUDGING, pathlib.PurePosixPath(root).parent.as_posix()) for name, root in VERDICTS.items()}
    return {
        name: source_hash(closure([root], rooms[name], checkout), checkout)
        for name, root in (FAMILIES | VERDICTS).items()
    }


@pytest.fixture
def copy(tmp_path):
    """A copy of the project."""
    room = "fault_injection"
    shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / room


def add(room, path, text="\n\ndef something_else():\n    return 1\n"):
    """Add code at the end of a file, or make one of it."""
    with (room / path).open("a") as file:
        file.write(text)


@functools.cache
def keys_here():
    return keys(ROOT)


def changed(room):
    """What has other keys than the project."""
    before, after = keys_here(), keys(room.parent)
    return {name for name in before if before[name] != after[name]}


def test_the_keys_of_results_are_made_of_these_hashes():
    family = {workload: pathlib.Path(*workload.sources()).stem for workload in WORKLOADS.values()}
    assert set(family.values()) == FAMILIES.keys() - {"own"}
    for workload, name in family.items():
        assert dependencies.source_of_bits(workload) == keys_here()[name]
    for name, root in VERDICTS.items():
        assert dependencies.source_of_verdicts(root) == keys_here()[name]


def test_a_new_family_of_workloads_changes_no_key(copy):
    """A layer file, a network file, the workload and its recipe, a reader, and a row in the table of workloads."""
    add(copy, "models/layers/gelu.py", "def gelu(x):\n    return x\n")
    add(copy, "models/networks/speech.py", "from ..layers.gelu import gelu\n\nspeech = gelu\n")
    add(copy, "data/sounds.py", "from .download import *\n")
    add(
        copy, "workloads/speech_recipe.py", "from ..data.sounds import *\nfrom ..models.networks.speech import speech\n"
    )
    add(copy, "workloads/speech.py", "from .speech_recipe import speech\n\nSPEECH = {'t': speech}\n")
    add(copy, "workloads/registry.py", "\nfrom .speech import SPEECH\nWORKLOADS |= SPEECH\n")
    assert changed(copy) == set()


EXPLICIT = {"image", "text", "click"}
BITS, FAULTS = set(FAMILIES), {"replays", "campaigns"}
EDITS = {
    "models/layers/convolution.py": {"image"},
    "models/layers/attention.py": {"text"},
    "models/layers/interaction.py": {"click"},
    "models/networks/densenet.py": {"image"},
    "models/networks/transformer.py": {"text"},
    "models/operations/operation.py": BITS,
    "models/operations/convolution.py": {"image"},
    "models/strike.py": EXPLICIT,
    "models/overwrite.py": BITS,
    "models/ruled.py": BITS,
    "any_step/intercept.py": {"own"},
    "explicit/engine.py": EXPLICIT,
    "explicit/optimizers.py": EXPLICIT,
    "workloads/image.py": {"image"},
    "workloads/text_recipe.py": {"text"},
    "workloads/registry.py": set(),
    "data/digits.py": {"image"},
    "data/shakespeare.py": {"text"},
    "data/batches.py": {"image"},
    "seam/digest.py": BITS | {"campaigns"},
    "seam/state_faults.py": BITS | set(VERDICTS),
    "faults/fault_models.py": FAULTS,
    "faults/schedule.py": FAULTS,
    "faults/profiles/profile.py": FAULTS,
    "faults/injection_file.py": {"replays"},
    "runs/outcome.py": FAULTS,
    "runs/follow.py": set(VERDICTS),
    "runs/exits.py": FAULTS,
    "runs/witness.py": FAULTS,
    "runs/replay_run.py": {"replays"},
    "runs/curves.py": set(),
    "questions/outcomes/conditions.py": {"campaigns"},
    "questions/outcomes/experiment.py": {"campaigns"},
    "questions/outcomes/driver.py": set(),
    "questions/vulnerability/trials.py": {"vulnerability"},
    "questions/vulnerability/page.py": set(),
    "detection/watch.py": set(),
    "campaign/page.py": set(),
    "commands/replay.py": set(),
    "machine/errors.py": set(),
}


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_changes_the_keys_of_what_it_can_alter_and_of_nothing_else(copy, path):
    assert (copy / path).is_file()
    add(copy, path)
    assert changed(copy) == EDITS[path]


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


def test_a_class_of_ones_own_depends_on_what_its_file_imports_from_beside_it(tmp_path):
    toy = (ROOT / "tests" / "toy.py").read_text()
    found = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "toy.py").write_text(f"{toy}\nimport beside\n")
        (folder / "beside.py").write_text(f"NUMBER = {number}\n")
        workload = find_workload(f"{folder / 'toy.py'}:linear")
        assert workload.sources() == (folder / "beside.py", folder / "toy.py")
        found.append(dependencies.source_of_bits(workload))
    assert found[0] != found[1]
