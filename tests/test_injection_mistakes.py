"""Whatever is wrong with an injection file is answered in one line that says where and why."""

import math
import re
from random import Random

import numpy as np
import pytest
from injection_files import PUBLISHED, ROWS, VALID, same, with_row

from fault_injection.data import DATASETS
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection import (
    OPTIONAL,
    REQUIRED,
    STAGES,
    format_injection,
    parse_injection,
    read_injection,
)
from fault_injection.machine.errors import InputError
from fault_injection.training.workloads import AUGMENTATIONS, WORKLOADS

MISTAKES = {
    # name: (key of the row replaced, the row instead, what the message must name)
    "unknown key": (
        "target_worker",
        "target_wroker,1",
        ["unknown key 'target_wroker'", "did you mean 'target_worker'?"],
    ),
    "unknown key near none": ("seed", "zzz,1", ["unknown key 'zzz'", "inj_pos", "horizon"]),
    "unknown model": ("model", "model,resnet81", ["model 'resnet81'", "did you mean 'resnet18'?"]),
    "unknown stage": ("stage", "stage,forward", ["stage 'forward'", "fwrd_inject", "bkwd_inject"]),
    "unknown fault model": ("fmodel", "fmodel,N64WT", ["fmodel 'N64WT'", "did you mean 'N64_WT'?"]),
    "misspelled site": (
        "target_layer",
        "target_layer,basicblock_1_basic_0_conv3",
        ["'basicblock_1_basic_0_conv3' is not a site of resnet18", "did you mean 'basicblock_1_basic_0_conv"],
    ),
    "site of the other pass": (
        "target_layer",
        "target_layer,conv1_grad_wt",
        ["'conv1_grad_wt' is a backward operation", "stage is 'fwrd_inject'", "did you mean 'conv1'", "'bkwd_inject'"],
    ),
    "stage of the other pass": (
        "stage",
        "stage,bkwd_inject",
        ["is a forward operation", "'basicblock_1_basic_0_conv1_grad_in'", "'fwrd_inject'"],
    ),
    "position outside": (
        "inj_pos",
        "inj_pos,0/1/2/3,2/2/8/7",
        ["inj_pos 2/2/8/7", "[3, 3, 8, 8]", "coordinate 3 is 8, expected 0 to 7"],
    ),
    "coordinate missing": ("inj_pos", "inj_pos,0/1/2/3,2/2/7", ["inj_pos 2/2/7", "3 coordinates", "4", "[3, 3, 8, 8]"]),
    "coordinate too many": ("inj_pos", "inj_pos,0/1/2/3/0,2/2/7/7", ["inj_pos 0/1/2/3/0", "5 coordinates", "4"]),
    "negative coordinate": ("inj_pos", "inj_pos,0/1/2/-3,2/2/7/7", ["'0/1/2/-3'", "expected", "counted from 0"]),
    "commas for slashes": ("inj_pos", "inj_pos,0,1,2,3", ["inj_pos 0 has 1 coordinates", "4"]),
    "repeated position": ("inj_pos", "inj_pos,0/1/2/3,0/1/2/3", ["inj_pos 0/1/2/3", "twice"]),
    "no position": ("inj_pos", "inj_pos", ["inj_pos", "at least one", "none"]),
    "fewer values": ("inj_values", "inj_values,1.5", ["1 inj_values for 2 inj_pos", "one value for each position"]),
    "more values": ("inj_values", "inj_values,1,2,3", ["3 inj_values for 2 inj_pos", "one value for each position"]),
    "value not a number": ("inj_values", "inj_values,1.5,x", ["inj_values 'x'", "expected a number"]),
    "value empty": ("inj_values", "inj_values,1.5,", ["inj_values ''", "expected a number"]),
    "value beyond float32": ("inj_values", "inj_values,1,3.5e38", ["inj_values '3.5e38'", "at most 3.4028235e38"]),
    "value beyond float64": ("inj_values", "inj_values,1,-1e999", ["inj_values '-1e999'", "at most 3.4028235e38"]),
    "value too small": ("inj_values", "inj_values,1,-5e-46", ["inj_values '-5e-46'", "at least 1.4e-45"]),
    "value too small for float64": ("inj_values", "inj_values,1,1e-999", ["inj_values '1e-999'", "at least 1.4e-45"]),
    "worker out of range": ("target_worker", "target_worker,8", ["target_worker 8", "8 workers", "expected 0 to 7"]),
    "epoch out of range": ("target_epoch", "target_epoch,20", ["target_epoch 20", "20 epochs", "expected 0 to 19"]),
    "step out of range": ("target_step", "target_step,11", ["target_step 11", "digits", "expected 0 to 10"]),
    "epoch not a number": ("target_epoch", "target_epoch,two", ["target_epoch 'two'", "expected a whole number"]),
    "step not whole": ("target_step", "target_step,3.0", ["target_step '3.0'", "expected a whole number"]),
    "worker negative": ("target_worker", "target_worker,-1", ["target_worker '-1'", "expected a whole number from 0"]),
    "seed too large": ("seed", "seed,2147483648", ["seed '2147483648'", "to 2147483647"]),
    "learning rate zero": ("learning_rate", "learning_rate,0", ["learning_rate '0'", "expected a positive number"]),
    "learning rate nan": ("learning_rate", "learning_rate,nan", ["learning_rate 'nan'", "expected a positive number"]),
    "two seeds": ("seed", "seed,1,2", ["seed takes one value, found 2"]),
    "key given twice": ("epochs", "seed,124", ["seed is given twice, first in line 11"]),
    "unknown dataset": ("dataset", "dataset,digit", ["dataset 'digit'", "did you mean 'digits'?"]),
    "width zero": ("width", "width,0", ["width '0'", "expected a whole number from 1 to 1024"]),
    "blocks zero": ("width", "blocks,2/0/2/2", ["blocks '2/0/2/2'", "a count for each stage, such as 2/2/2/2"]),
    "blocks of another network": ("width", "blocks,6/12", ["blocks 6/12 of resnet18; expected 4 counts"]),
    "more blocks than published": ("width", "blocks,2/3/2/2", ["blocks 2/3/2/2", "to the published 2/2/2/2"]),
    "dropout one": ("epochs", "dropout,1", ["dropout '1'", "[0, 1)"]),
    "workers that do not divide the batch": ("batch_size", "batch_size,100", ["batch_size 100", "8 workers"]),
    "open quote": ("seed", 'seed,"123', ["comma-separated"]),
}


# Python's float takes these; in a file they are likelier a slip than a number.
NOT_WRITTEN_SO = ["1_5", "٣", "１.5", "-nan", "+nan", "NaN", "infinity", "-Infinity", "INF"]
NOT_WRITTEN_SO += ["1e", "1e+", ".", "-", "1.5.2", "0x10"]


@pytest.mark.parametrize("text", NOT_WRITTEN_SO)
@pytest.mark.parametrize("key", ["inj_values", "learning_rate"])
def test_a_number_is_written_in_plain_digits(key, text):
    with pytest.raises(InputError, match=f"{key} {re.escape(repr(text))}; expected a (positive )?number"):
        parse_injection(with_row(key, f"{key},{text}"))


NUMBERS = {"+1.5": 1.5, "1e5": 1e5, ".5": 0.5, "5.": 5.0, "-1.E-3": -1e-3, "007": 7.0, "0e-999": 0.0, "-.0": -0.0}
NUMBERS |= {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "1e-45": 1e-45, "3.4028235e38": 3.4028235e38}


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_read_as_what_it_says(text):
    injection = parse_injection(with_row("inj_values", f"inj_values,{text},{text}"))
    assert np.array(injection.values).tobytes() == np.array([NUMBERS[text]] * 2).tobytes()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_numbers_are_the_editors(end):
    """Which counts no line at a form feed or at Unicode's separators."""
    rows = VALID.replace("resnet18", "resnet18 \x0b\x0c\x1c\x85\u2028").replace("epochs,20", "epochs,x")
    with pytest.raises(InputError, match=r"^injection:16: epochs 'x'"):
        parse_injection(rows.replace("\n", end))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_its_line_what_was_found_and_what_was_expected(tmp_path, mistake):
    key, row, fragments = MISTAKES[mistake]
    path = tmp_path / "injection.csv"
    path.write_text(with_row(key, row))
    with pytest.raises(InputError) as error:
        read_injection(path)
    message = str(error.value)
    # Where two rows contradict each other, the site's row is named, and the site's stage is the fact.
    line = [*ROWS].index("target_layer" if mistake == "stage of the other pass" else key) + 1
    assert message.startswith(f"{path}:{line}: ")
    assert message.isprintable()
    assert [fragment for fragment in fragments if fragment not in message] == []


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_row_is_named(tmp_path, key):
    path = tmp_path / "injection.csv"
    path.write_text(with_row(key, None))
    with pytest.raises(InputError) as error:
        read_injection(path)
    assert str(error.value) == f"{path}: no row '{key},…'"


def test_what_is_no_injection_file_at_all_is_refused_by_its_name(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "picture").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "utf16").write_bytes(VALID.encode("utf-16"))
    (tmp_path / "empty").write_bytes(b"")
    for name, fragment in {
        "missing": "No such file",
        "folder": "Is a directory",
        "picture": "not a text file: byte 0",
        "utf16": "not a text file: byte 0",
        "empty": "no row 'model,…'",
    }.items():
        with pytest.raises(InputError) as error:
            read_injection(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}: {fragment}")


def test_a_file_name_of_two_lines_still_gives_one(tmp_path):
    with pytest.raises(InputError) as error:
        read_injection(tmp_path / "two\nlines.csv")
    assert str(error.value) == f"{tmp_path}/two lines.csv: No such file or directory"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + VALID,
        VALID.replace("\n", "\r\n"),
        "\n" + VALID.replace("\n", "\n\n  \n"),
        VALID.replace(",", " , ").replace("\n", " \n\t"),
        VALID.removesuffix("\n"),
        "\n".join(reversed(VALID.splitlines())),
        "\n".join(",".join(f'"{cell}"' for cell in row.split(",")) for row in VALID.splitlines()),
        VALID.replace("\n", "\r"),
    ],
    ids=["byte order mark", "CRLF", "blank lines", "spaces", "no last newline", "another order", "quotes", "CR"],
)
def test_how_a_spreadsheet_or_an_editor_saves_a_file_makes_no_difference(tmp_path, text):
    path = tmp_path / "injection.csv"
    path.write_bytes(text.encode())
    assert read_injection(path) == parse_injection(VALID)


# ---- Any file whatsoever ------------------------------------------------------------------

SMALL = VALID.replace("width,8", "width,4").replace("inj_pos,0/1/2/3,2/2/7/7", "inj_pos,0/1/2/3,2/2/3/3")
# Values for which sites have to be traced (0.2 s for each new combination) are few.
CELLS = [
    *("", " ", "-1", "0", "1", "7", "8", "2147483647", "2147483648", "99999999999999999999", "0x10", "1_0", "1e3"),
    *("nan", "-nan", "inf", "-inf", "-0.0", "1e-999", "1e999", "3.4028235e38", "3.4028236e38", "٣", "²", "½"),
    *("0/0/0/0", "1/2/3/4", "////", "2147483647/2147483647/2147483647/2147483647", '"', '"a,b"', "a\0b", "\x85"),
    *WORKLOADS,
    *STAGES,
    *FAULT_MODELS,
    *DATASETS,
    *AUGMENTATIONS,
    *REQUIRED,
    *OPTIONAL,
    *("conv1", "fc", "conv1_grad_wt", "basicblock_2_basic_0_downsample_grad_in", "bn1", "basicblock_1_basic_0_conv"),
]
EXTRA_ROWS = [
    *("blocks,1/1/1/1", "blocks,2/2/2"),
    *("dataset,digits", "dataset,cifar10", "width,4", "width,1024", "workers,1", "batch_size,1048576", "horizon,3"),
    *("batch_size,8", "workers,4096", "dropout,0.5", "epochs,100000", "augmentation,none", "# a comment", ","),
]
CHARACTERS = ",/\"' \t\n\r\0\x0b\x1c\u2028\ufeff-+._0123456789einfa٣é×"


def mutated(original, random):
    """The bytes of a valid file after a few edits, most of them in what its rows say."""
    rows = [row.split(",") for row in original.splitlines()]

    def place(key=0.1):
        row = random.randrange(len(rows))
        return row, random.randrange(1, len(rows[row])) if len(rows[row]) > 1 and random.random() > key else 0

    def text():
        some = [random.choice(CHARACTERS), chr(random.randrange(0xD800)), chr(random.randrange(0xE000, 0x110000))]
        return "".join(random.choices(some, k=random.randrange(4)))

    def swap_cells():
        (a, b), (c, d) = place(), place()
        rows[a][b], rows[c][d] = rows[c][d], rows[a][b]

    def replace_cell():
        row, cell = place()
        rows[row][cell] = random.choice([random.choice(CELLS), text()])

    def edit_cell():
        row, cell = place()
        found = rows[row][cell]
        at = random.randrange(len(found) + 1)
        rows[row][cell] = found[:at] + text() + found[at + random.randrange(3) :]

    def edit_digit():
        row, cell = place()
        digits = [at for at, character in enumerate(rows[row][cell]) if character.isdigit()]
        if digits and rows[row][0] not in ("width", "batch_size"):  # each new size would be traced
            at = random.choice(digits)
            rows[row][cell] = rows[row][cell][:at] + random.choice("0123456789") + rows[row][cell][at + 1 :]

    def repeat_cell():
        row, cell = place()
        rows[row][cell:cell] = [rows[row][cell]] * random.choice([1, 1, 1, 100])

    def lengthen_cell():
        row, cell = place()
        rows[row][cell] *= random.choice([2, 100])

    def drop_cell():
        row, cell = place(0)
        del rows[row][cell]

    def drop_row():
        if len(rows) > 1:
            del rows[place()[0]]

    def repeat_row():
        rows.insert(place()[0], list(rows[place()[0]]))

    def add_row():
        rows.insert(place()[0], random.choice(EXTRA_ROWS).split(","))

    rare = [repeat_cell, lengthen_cell, drop_cell, drop_row, repeat_row]
    often = [swap_cells, replace_cell, replace_cell, edit_cell, edit_digit, edit_digit, add_row]
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        random.choice([*rare, *often, *often, *often])()
        rows = [row for row in rows if row] or [[""]]
    raw = bytearray("\n".join(map(",".join, rows)).encode())
    if random.random() < 0.1:
        at = random.randrange(len(raw) + 1)
        raw[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
    return bytes(raw)


def test_any_file_is_an_injection_or_one_line(tmp_path):
    originals = [SMALL, SMALL, SMALL, *(path.read_text() for path in sorted(PUBLISHED.glob("*.csv")))]
    path = tmp_path / "mutated.csv"
    valid, answers = 0, set()
    for seed in range(6000):
        random = Random(seed)
        raw = mutated(random.choice(originals), random)
        path.write_bytes(raw)
        try:
            injection = read_injection(path)
        except InputError as error:
            message = str(error)
            place, _, answer = message.partition(": ")
            assert re.fullmatch(re.escape(str(path)) + "(:[0-9]+)?", place), raw
            assert answer.isprintable(), raw  # so it is one line
            assert len(answer) < 600, raw
            answers.add(re.sub("[0-9]+|'[^']*'", "_", answer)[:60])
        except Exception as error:
            raise AssertionError(f"seed {seed}: {raw}") from error
        else:
            assert injection.sentence().isprintable(), raw
            assert injection.fault().index.max() < math.prod(injection.site.shapes[injection.operand]), raw
            assert same(parse_injection(format_injection(injection)), injection), raw
            valid += 1
    # The mutations reach every check, and what lies behind them.
    assert valid > 600
    assert len(answers) > 60
