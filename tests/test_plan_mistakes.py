"""Whatever is wrong with a plan is answered in one line that says where and why, and nothing is written."""

import os
import pathlib
import re
import time
from random import Random

import pytest
from campaign_stores import TOY
from whole import many

from fault_injection.commands.main import main
from fault_injection.faults.fault_models import FAULT_MODELS, VALUES
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.plan import EXITS
from fault_injection.questions.outcomes.plan_file import parse_plan, read_plan

SHIPPED = pathlib.Path("injections/plans")
EVERYTHING = f"""\
workload = "{TOY}:linear"   # one's own

[options]
epochs = 6
workers = 2
learning_rate = 0.05
seed = 5

[faults]
half_width = 0.2
confidence = 0.9
epochs = [1, 2, 5]
stages = ["forward", "backward"]
sites = ["fc*", "!fc_grad_wt"]
seed = 7

[faults.models]
RD = {{ weight = 3, values = "worst_case" }}
INPUT = {{ weight = 1.5, bits = [30, 23] }}
N16_RD = {{ values = "histogram", histogram = "bits.txt" }}
ZERO = 0.5

[run]
exit = "conditions"
horizon = 20
audit = 0.5
twins = 2
"""
BITS = "# mask, weight\nflip,00800000,12.5\nset,00000000,50\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bits.txt").write_text(BITS)
    return tmp_path


def refused(folder, text):
    """What the command says of a plan that it refuses."""
    path = folder / "plan.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as error:
        read_plan(path)
    message = str(error.value)
    assert message.startswith(f"{folder}/") and message.isprintable()
    assert len(message) - len(str(folder)) < 500
    return message


def test_the_plan_with_everything_is_one(folder):
    (folder / "plan.toml").write_text(EVERYTHING)
    plan = read_plan(folder / "plan.toml")
    assert (plan.experiments, plan.sites, len(plan.models[2].options[0][1])) == (17, ("fc",), 2)


WITHOUT_EFFECT = {
    "confidence beside experiments": ("half_width = 0.2", "experiments = 9", "confidence: belongs to half_width"),
    "audit of exact verdicts": ('"conditions"', '"exact"', "audit: has no effect: the exit mode 'exact'"),
    "horizon of full runs": ('"conditions"', '"full"', "horizon: the exit mode 'full' follows every run"),
    "a negative zero": ("audit = 0.5", "audit = -0.0", "audit: -0.0; expected a number from 0 to 1"),
}


@pytest.mark.parametrize("what", WITHOUT_EFFECT)
def test_what_would_have_no_effect_is_refused_by_name(folder, what):
    before, after, message = WITHOUT_EFFECT[what]
    assert message in refused(folder, EVERYTHING.replace(before, after))


def test_audits_of_full_runs_have_no_effect():
    with pytest.raises(InputError, match="audit: has no effect: the exit mode 'full'"):
        parse_plan(EVERYTHING.replace('"conditions"', '"full"').replace("horizon = 20\n", "").replace("N16_RD", "# "))


SENSELESS = {
    "a batch larger than the data": ("batch_size = 128", "batch_size = 1440", "larger than digits, which has 1437"),
    "dropout of negative zero": ("[faults]", "dropout = -0.0\n[faults]", "dropout '-0.0'; expected a rate in [0, 1)"),
}


@pytest.mark.parametrize("what", SENSELESS)
def test_a_workload_without_sense_is_refused(folder, what):
    before, after, message = SENSELESS[what]
    text = (SHIPPED / "quick.toml").read_text().replace(before, after, 1)
    assert message.replace("dropout '", "'") in refused(folder, text)


DIGITS = "7" * 4000
HUGE = {
    **{f"{key} of 4,000 digits": re.sub(rf"(?m)^{key} = .*", f"{key} = {DIGITS}", EVERYTHING) for key in (
        *("workload", "epochs", "learning_rate", "half_width", "stages", "sites", "seed", "ZERO", "exit", "audit"),
    )},
    "hexadecimal digits that cannot be printed": EVERYTHING.replace("seed = 7", f"seed = 0x{'f' * 9000}"),
    "bits that cannot be printed": EVERYTHING.replace("[30, 23]", f"[30, 0x{'f' * 9000}]"),
    "epochs that cannot be printed": EVERYTHING.replace("[1, 2, 5]", f"[1, 0x{'f' * 9000}]"),
    "a weight that cannot be printed": EVERYTHING.replace("weight = 3", f"weight = 0x{'f' * 9000}"),
    "an option that cannot be printed": EVERYTHING.replace("workers = 2", f"workers = 0x{'f' * 9000}"),
    "lists nested 300 deep": EVERYTHING.replace("twins = 2", f"twins = {'[' * 300}{']' * 300}"),
    "lists nested 3,000 deep": EVERYTHING.replace("twins = 2", f"twins = {'[' * 3000}{']' * 3000}"),
    "tables nested 900 deep": EVERYTHING.replace("twins = 2", f"twins{'.a' * 900} = 2"),
    "tables nested 3,000 deep": EVERYTHING.replace("twins = 2", f"twins{'.a' * 3000} = 2"),
    "a table nested 3,000 deep": EVERYTHING + f"[a{'.a' * 3000}]\n",
    "an option nested 900 deep": EVERYTHING.replace("workers = 2", f"workers{'.a' * 900} = 2"),
    "a key of a million letters": EVERYTHING + f"{'k' * 10**6} = 1\n",
    "a name of a million letters": EVERYTHING.replace("linear", "l" * 10**6),
    "a file name that is too long": EVERYTHING.replace("bits.txt", "b" * 300),
    "a site of a million letters": EVERYTHING.replace('"fc*"', f'"{"f" * 10**6}"'),
    "a million blank lines and nothing": "\n" * 10**6 + "x",
    "NUL": EVERYTHING.replace("fc*", "f\0c"),
    "NUL in a name": EVERYTHING.replace("linear", r"lin\u0000ear"),
    "NUL in the name of a workload's file": EVERYTHING.replace("toy.py", r"toy\u0000.py"),
    "NUL in a histogram's": EVERYTHING.replace("bits.txt", r"bits\u0000.txt"),
    "an escape in a name": EVERYTHING.replace("linear", r"\u001b[2J"),
    "an escape in a key": EVERYTHING + '"\\u001b[2J" = 1\n',
    "an escape in a histogram's": EVERYTHING.replace("bits.txt", r"\u009b2J"),
    "not UTF-8": EVERYTHING.encode().replace(b"one's", b"\xff"),
}  # fmt: skip


@pytest.mark.parametrize("what", HUGE)
def test_what_is_too_much_is_one_short_line_at_once(folder, what):
    begun = time.monotonic()
    assert "\x1b" not in refused(folder, HUGE[what])
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("place", ["zero", "pipe", "folder", "loop", "none", "large"])
def test_only_a_regular_file_is_read(folder, place, capsys):
    (folder / "zero").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    with (folder / "large").open("wb") as file:
        file.truncate(2**24 + 1)
    message = refused(folder, EVERYTHING.replace("bits.txt", place))
    expected = {"zero": "is a device, expected a file", "pipe": "is a pipe, expected a file"}
    expected |= {"folder": "Is a directory", "large": "has more than 16,777,216 bytes"}
    assert message.startswith(f"{folder / place}: {expected.get(place, '')}")
    for command in (["campaign", folder / place], ["replay", folder / place], ["scale", folder / place, "--width=4"]):
        assert main(list(map(str, command))) == 2
        assert capsys.readouterr().err.count("\n") == 1


# ---- Any file whatsoever ------------------------------------------------------------------

NASTY = [
    *("", "0", "-1", "-0", "-0.0", "1", "2", "7", "1.5", "nan", "inf", "-inf", "1e999", "0x1F", "0o7", "1_000"),
    *("9223372036854775808", DIGITS, f"0x{'f' * 5000}", "true", "false", "[]", "{}", '""', "''", '"a"', '"*"', '"!"'),
    *('"!*"', '"fc"', '["fc"]', '["*", "!*"]', '["[a-"]', "[0]", "[1, 1]", "[0, 99]", "[[0]]", "[1.0]", "[true]"),
    *("{ a = 1 }", "{ weight = 1 }", '{ values = "zero" }', "{ bits = [0] }", '{ values = "histogram" }', "12:30:00"),
    *("1979-05-27", "1979-05-27T07:32:00Z", '"""\n"""', "'''x'''", r'"\u0000"', r'"\u001b[2J"', '"é"', '"\U0001f600"'),
    *('"resnet18"', '"effnet"', '"resnet81"', '"/"', '"bits.txt"', f'"{TOY}:linear"', f'"{TOY}:nothing"'),
    *(f'"{name}"' for name in (*EXITS, *VALUES, "forward", "backward", "digits", "cifar10", "crop", "none")),
    *FAULT_MODELS,
    *("[run]", "[faults]", "[faults.models]", "[options]", "[[run]]", "[a.b.c]", "model,resnet18", "# comment"),
]  # fmt: skip
# Each new value of these would be traced, for a second.
TRACED = re.compile(r"\s*(width|batch_size|blocks|workers)\b")


def mutated(original, random):
    """The bytes of a valid plan after a few edits."""
    lines = original.splitlines()

    def place():
        return random.randrange(len(lines))

    def swap_tokens():
        a, b = place(), place()
        some, other = (re.split(r"(\s*[=,\[\]{}\s]\s*)", lines[at]) for at in (a, b))
        i, j = random.randrange(len(some)), random.randrange(len(other))
        some[i], other[j] = other[j], some[i]
        lines[a], lines[b] = "".join(some), "".join(other)

    def replace_value():
        at = place()
        key, equals, _ = lines[at].partition("=")
        if equals and not TRACED.match(key):
            lines[at] = f"{key}= {random.choice(NASTY)}"

    def replace_item():
        at = place()
        if not TRACED.match(lines[at]):
            lines[at] = re.sub(r'"[^"]*"|[\d.]+', lambda m: random.choice([m[0], random.choice(NASTY)]), lines[at])

    def edit_digit():
        at = place()
        if not TRACED.match(lines[at]):
            lines[at] = re.sub(r"\d", lambda m: random.choice([m[0], random.choice("0123456789")]), lines[at])

    def drop():
        if len(lines) > 1:
            del lines[place()]

    def repeat():
        lines.insert(place(), lines[place()])

    def swap_lines():
        a, b = place(), place()
        lines[a], lines[b] = lines[b], lines[a]

    def add():
        key = random.choice(["experiments", "half_width", "seed", "bits", "audit", "horizon", "ZERO", "x", '"a b"', ""])
        lines.insert(place(), f"{key} = {random.choice(NASTY)}" if key else random.choice(NASTY))

    often = [swap_tokens, replace_value, replace_value, replace_item, edit_digit, edit_digit]
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        random.choice([*often, *often, drop, repeat, swap_lines, add])()
    raw = bytearray("\n".join(lines).encode())
    if random.random() < 0.3:  # bytes flipped, inserted, deleted
        at = random.randrange(len(raw))
        match random.randrange(3):
            case 0:
                raw[at] ^= 1 << random.randrange(8)
            case 1:
                raw[at:at] = random.randbytes(random.randrange(4))
            case 2:
                del raw[at : at + random.randrange(20)]
    return bytes(raw)


@pytest.mark.parametrize("count", [800, pytest.param(many(4_000), marks=pytest.mark.slow)])
def test_any_file_is_a_plan_or_one_line(folder, capsys, count):
    originals = [EVERYTHING, EVERYTHING, *(path.read_text() for path in sorted(SHIPPED.glob("*.toml")))]
    path, valid, answers = folder / "plan.toml", 0, set()
    for seed in range(count):
        random = Random(seed)
        raw = mutated(random.choice(originals), random)
        path.write_bytes(raw)
        try:
            if seed % 20:
                plan = read_plan(path)
                assert plan.sentence() and plan.experiments > 0
                message = "valid"
            else:  # the whole command, which stops where it would begin
                assert main(["campaign", str(path)]) == 2
                lines = capsys.readouterr().err.splitlines()
                assert len(lines) == 1, raw
                message = lines[0] if "--out DIR is missing" not in lines[0] else "valid"
        except InputError as error:
            message = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {raw!r}") from error
        assert message.isprintable() and len(message.replace(str(folder), "")) < 500, raw
        valid += message == "valid"
        answers.add(re.sub("[0-9]+|'[^']*'", "_", message.replace(str(folder), ""))[:60])
    assert sorted(p.name for p in folder.iterdir()) == ["bits.txt", "plan.toml"]
    # The mutations reach every check, and what lies behind them.
    assert valid > count / 10
    assert len(answers) > 60
