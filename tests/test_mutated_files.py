"""Plans of every question and injection files, mutated: each is accepted, or answered with one line that says where."""

import json
import re
import tomllib
from random import Random

import pytest
from campaign_stores import TOY
from injection_files import PUBLISHED, VALID
from whole import many

from fault_injection.commands.main import main
from fault_injection.faults.injection_file import read_injection
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.plan_file import read_plan
from fault_injection.questions.scoreboard.settings import read_settings
from fault_injection.questions.vulnerability.plan_file import read_pvf_plan

PLAN = f"""\
workload = "{TOY}:linear"
[options]
epochs = 6
seed = 5
[faults]
experiments = 20
epochs = [1, 2, 5]
stages = ["forward", "backward"]
sites = ["fc*", "!fc_grad_wt"]
[faults.models]
RD = {{ weight = 3, values = "worst_case" }}
INPUT = {{ weight = 1.5, bits = [30, 23] }}
[run]
exit = "conditions"
horizon = 20
audit = 0.5
"""
SCORE = """
[score]
detectors = ["history_bound", "replay"]
window = 5
masked = 2
fault_free_seeds = 1
recovered = { rewind = 2 }
recovering = ["history_bound"]
replay_every = 2
"""
PVF = """\
workload = "dlrm"
[options]
epochs = 4
[components]
top = ["top_*"]
embeddings = ["emb_*"]
[faults]
flips = [1, 16]
bit_error_rates = [1e-5]
bursts = [4]
trials = 64
layers = false
exhaustive = ["top_1"]
format = "float32"
epoch = 3
[wrong]
criterion = "decision"
threshold = 0.5
examples = 500
"""
STATE = PLAN.replace('stages = ["forward", "backward"]\nsites = ["fc*", "!fc_grad_wt"]', 'stages = ["state"]').split(
    "[faults.models]"
)[0]
WANTED = (
    PLAN.replace("experiments = 20", "experiments = 200").replace("horizon = 20\n", "")
    + """
[wanted]
outcome = ["SlowDegrade", "SharpDegrade"]
width = 0.1
by = ["model", "bit"]
cell_width = 0.3
confidence = 0.9
"""
)
NOBN = [path.read_text() for path in sorted(PUBLISHED.glob("resnet18_nobn*.csv"))]
KINDS = {
    "campaign": (read_plan, [PLAN, STATE, WANTED]),
    "score": (read_settings, [PLAN + SCORE]),
    "pvf": (read_pvf_plan, [PVF]),
    "injection": (
        read_injection,
        [VALID, *NOBN],
    ),
}
SLOW_TO_TRACE = ("width", "batch_size", "blocks", "workers", "bottom", "top", "max_rows", "dimension")

VALUES = [
    *(0, -1, 1, 2, 10**6, 2**31, 2**63, 10**400, -(10**30), True, False, "", "*", "!", "a b", "\0", "\x1b[2J", "é😀"),
    *(float("nan"), float("inf"), -float("inf"), -0.0, 1e-320, 1e308, "nan", "1e9", "[", "../..", "/", "~", "x" * 5000),
    *([], {}, [[]], [{}], {"": 1}, {"a": {"b": {"c": []}}}, [None], ["*", 1], [1.5], [True], ["fc", "fc"], [0, 0]),
    [[[[[1]]]]],
    [2**70],
    ["x" * 5000],
]


def toml(value):
    """A value as TOML writes it; None as nothing."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "" if value is None else repr(value)


def mutated_values(text, random):
    """A plan one or two of whose values are others, are gone, nested, or have another name."""
    document = tomllib.loads(text)
    for _ in range(random.choice([1, 1, 2])):
        places = [(document, key) for key in document]
        for table, key in places:
            if isinstance(table[key], dict):
                places += [(table[key], inner) for inner in table[key]]
        table, key = random.choice(places)
        value = table.pop(key)
        match random.randrange(6):
            case 0:
                pass
            case 1:
                table[random.choice([key + "s", key[:-1], key.upper(), "", "a.b", "\0", "é"])] = value
            case 2:
                table[key] = random.choice([[value], {key: value}, [value, value], str(value)])
            case _ if key in SLOW_TO_TRACE:
                table[key] = random.choice(
                    [value for value in VALUES if type(value) is not int or not 0 < value < 2**31]
                )
            case _:
                table[key] = random.choice(VALUES)
        if not places:
            break
    lines = [f"{json.dumps(key)} = {toml(value)}" for key, value in document.items() if not isinstance(value, dict)]
    for name, table in document.items():
        if isinstance(table, dict):
            lines += [f"[{json.dumps(name)}]", *(f"{json.dumps(key)} = {toml(value)}" for key, value in table.items())]
    return "\n".join(lines).encode(errors="surrogatepass")


def mutated_text(text, random):
    """A file with other tokens, lines that are gone or there twice, in other encodings, with other bytes."""
    lines = text.splitlines()
    tokens = re.findall(r"[\w.\-+:/*!]+|\S", text)
    for _ in range(random.choice([0, 1, 2])):
        at = random.randrange(len(lines))
        match random.randrange(5):
            case 0:
                lines.insert(random.randrange(len(lines)), lines[at])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines[at] = lines[at][: random.randrange(len(lines[at]) + 1)]
            case _ if not lines[at].startswith(SLOW_TO_TRACE):
                found = re.findall(r"[\w.\-+:/*!]+|\W", lines[at]) or [""]
                others = [*tokens, "nan", "-inf", "9" * 400, "1e999", "0x1p3", "1_0", "٣", "true", '"', "\0", "\ufeff"]
                found[random.randrange(len(found))] = random.choice(others)
                lines[at] = "".join(found)
    text = random.choice(["\n", "\n", "\r\n", "\r"]).join(lines)
    encoding = random.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "utf-7"])
    raw = bytearray(text.encode(encoding, errors="replace"))
    for _ in range(random.choice([0, 0, 1, 3])):
        at = random.randrange(len(raw))
        match random.randrange(3):
            case 0:
                raw[at] = random.randrange(256)
            case 1:
                raw[at:at] = random.randbytes(random.randrange(5))
            case _:
                del raw[at : at + random.randrange(30)]
                raw = raw or bytearray(b"x")
    return bytes(raw)


# Whole commands, up to where they would begin: without --out those of plans stop there.
COMMANDS = {kind: ["replay", "--check"] if kind == "injection" else [kind] for kind in KINDS}


@pytest.mark.parametrize("count", [120, pytest.param(many(1_000), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_file_is_accepted_or_one_line(tmp_path, capsys, kind, count):
    read, originals = KINDS[kind]
    path, accepted, answers = tmp_path / ("file.csv" if kind == "injection" else "file.toml"), 0, set()
    for original in originals:
        path.write_text(original)
        read(path)
    for seed in range(count):
        random = Random(f"{kind} {seed}")
        mutate = mutated_text if kind == "injection" or seed % 2 else mutated_values
        raw = mutate(random.choice(originals), random)
        path.write_bytes(raw)
        try:
            read(path)
        except InputError as error:
            message = str(error)
            assert message.startswith(str(path)) and message.isprintable() and len(message) < 800, raw
            answers.add(re.sub("[0-9]+|'[^']*'", "_", message.replace(str(path), ""))[:60])
        except Exception as error:
            raise AssertionError(f"seed {seed}: {raw!r}") from error
        else:
            accepted += 1
        if seed % 50 == 0:
            code = main([*COMMANDS[kind], str(path), "--cache", str(tmp_path)])
            out, err = capsys.readouterr()
            assert (code, err.count("\n")) in ((2, 1), (0, 0)), (raw, out, err)
    assert accepted > count / 20 and len(answers) > 12
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
