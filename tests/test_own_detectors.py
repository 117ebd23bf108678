"""A detector in a file of one's own: what the template does, and the one line that a mistake gets."""

import numpy as np
import pytest

from fault_injection.commands.main import main
from fault_injection.detection.own_detector import own_detector
from fault_injection.detection.peers import Peers
from fault_injection.detection.spike import LossSpike
from fault_injection.machine.errors import InputError
from fault_injection.questions.scoreboard.settings import read_settings

PLAN = """
workload = "resnet18"
[options]
dataset = "digits"
width = 2
epochs = 2
[faults]
experiments = 8
[score]
detectors = ["nonfinite"]
"""


def class_of(update, init="return np.zeros(len(names))", signals="('loss', 'largest/state')"):
    """A file with a detector of these bodies; `update` begins in line 8."""
    return f"""import numpy as np

class Mine:
    signals = {signals}
    def init(self, names):
        {init}
    def update(self, memory, values):
        {update}

detector = Mine()
"""


@pytest.fixture
def template(tmp_path, capsys):
    file = tmp_path / "mine.py"
    assert main(["init", "--detector", str(file)]) == 0
    assert f"--detector {file}:detector" in capsys.readouterr().out
    return file


def scalar_template(values, margin=10.0):
    """What the template says of the values [steps, N], written one number at a time: the excess of each."""
    largest, learned, said = [0.0] * values.shape[1], [0] * values.shape[1], []
    for row in values.tolist():
        line = []
        for i, value in enumerate(row):
            if value != value or abs(value) == float("inf"):
                line.append(float("inf"))
                continue
            bound = None if learned[i] < 8 or not largest[i] else margin * largest[i]
            excess = 0.0 if bound is None else abs(value) / bound
            line.append(excess)
            if excess <= 1:
                largest[i], learned[i] = max(largest[i], abs(value)), learned[i] + 1
        said.append(line)
    return np.array(said)


def test_the_template_is_accepted_and_does_what_its_docstring_says(template):
    detector, rng = own_detector(f"{template}:detector"), np.random.default_rng(3)
    assert template.read_text().count("EDIT") >= 4 and "NAME" not in template.read_text()
    values = rng.lognormal(0, 1, (200, 3))
    values[50, 0], values[60, 1], values[61, 1], values[100, 2], values[120, 0] = np.nan, np.inf, 1e30, 0.0, 500.0
    memory, said = detector.init(["a", "b", "c"]), []
    for row in values:
        memory, alarms = detector.update(memory, row)
        assert np.array_equal(alarms.level == 1, alarms.excess > 1)
        said.append(alarms.excess)
    np.testing.assert_array_equal(np.array(said), scalar_template(values))
    assert np.max(said[120]) > 1 and np.isinf(said[50][0])


def test_a_detector_of_this_project_with_other_settings_is_one_too(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import fault_injection\n\ndef detector():\n    return fault_injection.LossSpike(deviations=3.0)\n")
    own, theirs, values = own_detector(f"{file}:detector"), LossSpike(deviations=3.0), np.ones((150, 1))
    values[:, 0] += np.random.default_rng(1).normal(0, 0.3, 150) ** 3
    memories, stopped = [own.init(["loss"]), theirs.init(["loss"])], 0
    for row in values:
        (memories[0], one), (memories[1], other) = own.update(memories[0], row), theirs.update(memories[1], row)
        stopped += int(one.level[0])
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))
    assert own.signals == ("loss",) and stopped


def test_a_detector_that_compares_workers_or_looks_now_and_then_is_tried_out_as_it_will_watch(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from fault_injection.detection.checksum import SampledChecksum\n"
        "from fault_injection.detection.peers import Peers\n"
        "def compares():\n    return Peers(steps=1e6)\n"
        "def seldom():\n    return SampledChecksum(every=32)\n"
    )
    assert own_detector(f"{file}:compares").signals == Peers.signals
    assert own_detector(f"{file}:seldom").reported_every == 32 and own_detector(f"{file}:compares").reported_every == 1


REMEMBERS = (
    "self.count = getattr(self, 'count', 0) + 1; return memory, np.zeros(len(values)) + (self.count % 7 == 0) * 2"
)
MISTAKES = [
    (class_of("return memory, 1 / 0"), ":8: update of detector raised ZeroDivisionError: division by zero"),
    (class_of("return memory"), ":7: update of detector returned float64 [3]; expected (memory, excess)"),
    (
        class_of("return memory, values[:1]"),
        "returned the excess as float64 [1]; expected a NumPy array with one number",
    ),
    (class_of("return memory, values > 1"), "returned the excess as bool [3]; expected a NumPy array"),
    (class_of("return memory, None"), "returned the excess as nothing; expected a NumPy array"),
    (class_of("return memory, values * np.nan"), "returned an excess that is NaN; expected inf"),
    (
        class_of("values[0] = 1; return memory, values"),
        ":8: update of detector raised ValueError: assignment destination",
    ),
    (
        class_of("memory += 1; return memory, np.zeros(len(values))"),
        "changed the memory that it was given; expected a new one",
    ),
    (class_of(REMEMBERS), "said something else of the same values a second time, from step"),
    (
        class_of("return memory, np.zeros(len(values))", init="raise KeyError(names[0])"),
        ":6: init of detector raised KeyError",
    ),
    (class_of("return memory, np.zeros(len(values))", init="return lambda: 0"), "keeps a memory that cannot be stored"),
    (class_of("return memory, np.zeros(len(values))", signals="'loss'"), "signals are str; expected kinds of values"),
    (
        class_of("return memory, np.zeros(len(values))", signals="('los',)"),
        "signal 'los' is unknown; did you mean 'loss'?",
    ),
    (class_of("return memory, np.zeros(len(values))", signals="('loss', 'loss')"), "a signal is listed twice"),
    (
        class_of("return memory, np.zeros(len(values))", signals="('dr_dna_places/activations',)"),
        "'dr_dna_places/activations' is unknown",
    ),
    ("detector = 3\n", "is no object with signals, init and update, and calling it fails: TypeError"),
    ("class detector:\n    def update(self):\n        pass\n", "has no init; expected signals, init and update"),
    (
        "class detector:\n    @property\n    def signals(self):\n        raise ValueError('none')\n"
        "    def init(self, names): ...\n    def update(self, memory, values): ...\n",
        "reading signals, init and update raised ValueError: none",
    ),
    (class_of("raise SystemExit(3)"), ":8: update of detector raised SystemExit: 3"),
    ("import nothing_of_this_name\n", "ModuleNotFoundError on import: No module named 'nothing_of_this_name'"),
    ("other = 1\n", "no 'detector' here"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_a_mistake_is_one_line_that_names_the_file(tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(InputError) as found:
        own_detector(f"{file}:detector")
    assert str(found.value).startswith(str(file)) and message in str(found.value) and "\n" not in str(found.value)


def test_a_later_mistake_is_one_line_too(tmp_path):
    """What trying out does not meet: a step that it has not seen."""
    file = tmp_path / "mine.py"
    file.write_text(class_of("return memory + 1, np.zeros(len(values) - (memory[0] > 400))"))
    detector = own_detector(f"{file}:detector")
    memory = detector.init(["loss"])
    with pytest.raises(InputError, match=r"mine.py:7: update of detector returned the excess as float64 \[0\]"):
        for _ in range(500):
            memory, _ = detector.update(memory, np.ones(1))


def test_what_cannot_be_scored_is_refused_before_anything_runs(tmp_path, capsys, template):
    plan, other = tmp_path / "plan.toml", tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    plan.write_text(PLAN)
    other.write_text(template.read_text() + "\nchanged = 1\n")
    asked = {
        ("--detector", "asd4"): "--detector 'asd4' is unknown; did you mean 'asd'?",
        ("--detector", "no.py:detector"): "no.py:detector': there is no such file",
        ("--detector", f"{template}:detector", "--detector", f"{other}:detector"): "two files of this name",
        ("--alarms", "a.csv"): "--alarms FILE.csv and --name NAME go together",
        ("--alarms", "a.csv", "--name", "asd"): "--name 'asd' is a detector that watches; choose another name",
        ("--alarms", "a.csv", "--name", "\x1b"): "expected 1 to 60 characters that can be printed",
        ("--alarms", "a.csv", "--name", "x", "--export-logs", "l"): "--export-logs and --alarms are two steps",
        ("--table", "latex", "--json"): "--table goes neither with --json",
    }
    for words, message in asked.items():
        assert main(["score", str(plan), "--out", str(tmp_path / "out"), *words]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_only_its_code_decides_whether_a_scoreboard_goes_on(tmp_path, template):
    plan, digests = tmp_path / "plan.toml", {}
    plan.write_text(PLAN)
    (tmp_path / "helper.py").write_text("MARGIN = 3\n")
    texts = {
        "plain": template.read_text(),
        "comment": f"# a comment\n{template.read_text()}",
        "margin": template.read_text().replace("margin = 10.0", "margin = 11.0"),
        "helped": f"import helper\n{template.read_text()}",
    }
    for name, text in texts.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "mine.py").write_text(text)
        (folder / "helper.py").write_text("MARGIN = 3\n")
        _, settings = read_settings(plan, [f"{folder}/mine.py:detector", "asd"])
        assert settings.detectors == ("nonfinite", "mine.py:detector", "asd")
        digests[name] = settings.determining()
    assert digests["plain"] == digests["comment"]
    assert len({str(digests[name]) for name in ("plain", "margin", "helped")}) == 3
    assert "own" not in read_settings(plan)[1].determining()
