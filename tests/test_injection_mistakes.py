"""Whatever is wrong with an injection file is answered in one line that says where and why."""

# Above 400 lines: a table of mistakes, each a few lines, around one sound file.

import math
import re
import shlex
from random import Random

import numpy as np
import pytest
from injection_files import PUBLISHED, ROWS, VALID, same, with_row
from own_workload import NAME
from whole import many

from fault_injection.data import DATASETS
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection import STAGES
from fault_injection.faults.injection_file import (
    FAULT_ROWS,
    OWN_ROWS,
    format_injection,
    parse_injection,
    read_injection,
)
from fault_injection.machine.errors import InputError
from fault_injection.workloads.image import AUGMENTATIONS, ImageWorkload
from fault_injection.workloads.registry import WORKLOADS

REQUIRED = (*FAULT_ROWS, *ImageWorkload.REQUIRED)
OPTIONAL = (*OWN_ROWS, *ImageWorkload.OPTIONS)

MISTAKES = {
    # name: (key of the row replaced, the row instead, what the message must name)
    "unknown key": (
        "target_worker",
        "target_wroker,1",
        ["unknown key 'target_wroker'", "did you mean 'target_worker'?"],
    ),
    "unknown key near none": ("seed", "zzz,1", ["unknown key 'zzz'", "inj_pos", "horizon"]),
    "unknown model": ("model", "model,resnet81", ["workload 'resnet81'", "did you mean 'resnet18'?"]),
    "misspelled model row": ("model", "modle,resnet18", ["unknown key 'modle'", "did you mean 'model'?"]),
    "a key of ours, misspelled": ("seed", "inj_bit,1", ["unknown key 'inj_bit'", "did you mean 'inj_bits'?"]),
    "an option, misspelled": ("width", "widht,8", ["unknown key 'widht'", "did you mean 'width'?"]),
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
    "bits not hexadecimal": ("inj_values", "inj_bits,7f8x,1", ["inj_bits '7f8x'", "at most 8 hexadecimal digits"]),
    "bits too many": (
        "inj_values",
        "inj_bits,07f800000,1",
        ["inj_bits '07f800000'", "8 hexadecimal digits", "float32"],
    ),
    "mask too long": ("inj_values", "inj_bits,1,xor:123456789", ["inj_bits 'xor:123456789'", "8 hexadecimal digits"]),
    "bits empty": ("inj_values", "inj_bits,1,", ["inj_bits ''", "expected at most 8 hexadecimal digits"]),
    "signed bits": ("inj_values", "inj_bits,1,-1", ["inj_bits '-1'", "expected at most 8 hexadecimal digits"]),
    "fewer bits": ("inj_values", "inj_bits,1", ["1 inj_bits for 2 inj_pos", "one cell for each position"]),
    "copy of nothing": ("inj_values", "inj_bits,1,copy:", ["inj_bits 'copy:'", "copy:107/3/3/85"]),
    "copy from outside": (
        "inj_values",
        "inj_bits,1,copy:0/0/8/0",
        ["inj_bits 0/0/8/0 lies outside", "[3, 3, 8, 8]", "coordinate 3 is 8, expected 0 to 7", "row width, line 13"],
    ),
    "copy with a coordinate missing": ("inj_values", "inj_bits,1,copy:0/0/8", ["inj_bits 0/0/8 has 3 coordinates"]),
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


@pytest.mark.parametrize("key", [key for key in REQUIRED if key != "inj_values"])
def test_a_missing_row_is_named(tmp_path, key):
    path = tmp_path / "injection.csv"
    path.write_text(with_row(key, None))
    with pytest.raises(InputError) as error:
        read_injection(path)
    other = " (or 'inj_lane,…')" if key == "inj_pos" else ""
    assert str(error.value) == f"{path}: no row '{key},…'{other}"


def test_values_are_required_unless_there_are_bits():
    with pytest.raises(InputError) as error:
        parse_injection(with_row("inj_values", None))
    assert str(error.value) == "injection: no row 'inj_values,…' (or 'inj_bits,…')"
    parse_injection(with_row("inj_values", "inj_bits,1,2"))


ONLY_KNOWN = "leave out inj_values, because what becomes of an element's own or copied bits is only known when it runs"


@pytest.mark.parametrize(
    ("bits", "message"),
    {
        "3fc00000,d09502f8": "inj_values -20000000000.0 has the bits d09502f9, but inj_bits says d09502f8; "
        "leave out one row",
        "7fc00000,d09502f9": "inj_values 1.5 has the bits 3fc00000, but inj_bits says 7fc00000; leave out one row",
        "3fc00000,xor:1": ONLY_KNOWN,
        "copy:0/0/0/0,1": ONLY_KNOWN,
    }.items(),
)
def test_values_that_are_not_those_of_the_bits_are_refused(bits, message):
    with pytest.raises(InputError) as error:
        parse_injection(f"{VALID}inj_bits,{bits}\n")
    assert str(error.value) == f"injection:9: {message}"


NOT_A_NUMBER = {"NaN": "nan", "NAN": "nan", "Nan": "nan", "-nan": "nan", "+NaN": "nan"}
NOT_A_NUMBER |= {"Inf": "inf", "INF": "inf", "+inf": "inf", "infinity": "inf", "+Infinity": "inf", "INFINITY": "inf"}
NOT_A_NUMBER |= {"-Inf": "-inf", "-INF": "-inf", "-Infinity": "-inf", "-infinity": "-inf"}


@pytest.mark.parametrize("text", NOT_A_NUMBER)
def test_another_spelling_of_nan_or_infinity_is_answered_with_ours(text):
    with pytest.raises(InputError) as error:
        parse_injection(with_row("inj_values", f"inj_values,1,{text}"))
    expected = f"expected a number such as -1.5e10, nan or inf; did you mean '{NOT_A_NUMBER[text]}'?"
    assert str(error.value) == f"injection:9: inj_values {text!r}; {expected}"


# ---- The row at fault ---------------------------------------------------------------------


def answer(text):
    with pytest.raises(InputError) as error:
        parse_injection(text, "x.csv")
    return str(error.value)


SCALE = (
    "If the file was written for the published scale: take out its rows dataset, width, epochs, batch_size, then "
    "python -m fault_injection scale FILE --dataset digits --width 8 --epochs 20 --batch-size 128"
)


@pytest.mark.parametrize(
    ("row", "message"),
    {
        "target_epoch,30": "x.csv:6: target_epoch 30 is not among the 20 epochs; expected 0 to 19 "
        "(row epochs, line 16, says 20 where the published run has 80). " + SCALE,
        # With the published batch, digits have but one step: the dataset alone is at fault.
        "target_step,11": "x.csv:7: target_step 11 is not among the 11 steps of an epoch; expected 0 to 10 "
        "(row dataset, line 12, says digits where the published run has cifar10). " + SCALE,
        # A weight does not depend on the batch, whatever a position may depend on elsewhere.
        "inj_pos,0/1/2/3,2/2/7/8": "x.csv:8: inj_pos 2/2/7/8 lies outside the weight of basicblock_1_basic_0_conv1, "
        "which is [3, 3, 8, 8]: coordinate 4 is 8, expected 0 to 7 "
        "(row width, line 13, says 8 where the published run has 64). " + SCALE,
        # Nor is such a place inside at the published scale: nothing to scale.
        "target_epoch,80": "x.csv:6: target_epoch 80 is not among the 20 epochs; expected 0 to 19 "
        "(row epochs, line 16, says 20 where the published run has 80)",
        # No row of the file says how many workers there are, other than the published run has.
        "target_worker,8": "x.csv:4: target_worker 8 is not among the 8 workers; expected 0 to 7",
    }.items(),
)
def test_a_place_outside_is_answered_with_the_row_that_says_so(row, message):
    assert answer(with_row(row.split(",")[0], row)) == message


def test_a_contradiction_is_answered_with_the_row_at_fault():
    message = "batch_size 100 is not a multiple of the 8 workers"
    hint = "(row batch_size, line 14, says 100 where the published run has 1024)"
    assert answer(with_row("batch_size", "batch_size,100")) == f"x.csv:14: {message} {hint}"

    message = "batch_size 1024 is not a multiple of the 3 workers"
    hint = "(row workers, line 14, says 3 where the published run has 8)"
    assert answer(with_row("batch_size", None).replace("workers,8", "workers,3")) == f"x.csv:14: {message} {hint}"


def large(width):
    """A file whose one worker has most of the training images in a batch."""
    text = with_row("batch_size", "batch_size,32768").replace("width,8", f"width,{width}")
    for small, big in (("dataset,digits", "dataset,cifar10"), ("workers,8", "workers,1"), ("worker,1", "worker,0")):
        text = text.replace(small, big)
    return text.replace("target_step,3", "target_step,0")


def test_an_operand_too_large_is_answered_with_the_row_at_fault():
    assert answer(large(256)) == (
        "x.csv:13: the input of basicblock_1_basic_0_conv1 has 2147483648 elements; expected at most 2147483647 "
        "(row width, line 13, says 256 where the published run has 64 and row batch_size, line 14, says 32768 where "
        "the published run has 1024 and row workers, line 15, says 1 where the published run has 8)"
    )


def test_an_operand_may_have_as_many_elements_as_positions_can_count_whatever_the_others_have():
    sizes = [math.prod(shape) for shape in parse_injection(large(255)).site.shapes.values()]
    assert max(sizes) < 2**31 < sum(sizes)


def test_a_layer_that_fewer_blocks_leave_out_is_answered_with_the_row_at_fault():
    text = with_row("target_layer", "target_layer,basicblock_1_basic_1_conv1") + "\nblocks,1/1/1/1"
    assert answer(text) == (
        "x.csv:5: target_layer 'basicblock_1_basic_1_conv1' is not a site of resnet18 with blocks 1/1/1/1 "
        "(row blocks, line 17, says 1/1/1/1 where the published run has 2/2/2/2) "
        "(list them: python -m fault_injection sites resnet18 --blocks 1/1/1/1)"
    )


OWN = f"""\
# A workload of one's own, which has rows of its own.
model,{NAME}
stage,fwrd_inject
fmodel,WT
target_worker,1
target_layer,layer1
target_epoch,3
target_step,4
inj_pos,2/1
inj_values,1.5
learning_rate,0.5
seed,1
"""


@pytest.mark.parametrize(
    ("rows", "message"),
    {
        "width,8": "x.csv:13: unknown key 'width'; expected one of model, ",
        "feature,8": "x.csv:13: unknown key 'feature'; did you mean 'features'?",
        "features,0": "x.csv:13: features '0'; expected a whole number from 1 to 2147483647",
        "features,2": "x.csv:9: inj_pos 2/1 lies outside the weight of layer1, which is [2, 2]: coordinate 1 is 2, "
        "expected 0 to 1 (row features, line 13, says 2 where the workload itself has 6). If the file was written for "
        "the scale of the workload itself: take out its row features, then python -m fault_injection scale FILE "
        "--features 2",
        "workers,5": "x.csv:13: points 12 is not a multiple of the 5 workers "
        "(row workers, line 13, says 5 where the workload itself has 2)",
        "layers,1": f"x.csv:6: target_layer 'layer1' is not a site of {NAME} with layers 1 "
        "(row layers, line 13, says 1 where the workload itself has 4)",
        "features,2000000000": "x.csv:13: the weight of layer1 has 4000000000 elements; expected at most 2147483647 "
        "(row features, line 13, says 2000000000 where the workload itself has 6)",
        "inj_bits,10000": "x.csv:13: inj_bits '10000'; expected at most 4 hexadecimal digits for bfloat16",
    }.items(),
)
def test_a_workload_of_ones_own_brings_its_rows_and_their_hints(rows, message):
    assert answer(OWN + rows).startswith(message)


def test_a_workload_that_is_not_there_is_named_with_its_line():
    assert answer(OWN.replace(NAME, "nowhere.py:series")).startswith(
        "x.csv:2: workload 'nowhere.py:series': there is no"
    )


# ---- Something else altogether ------------------------------------------------------------


@pytest.mark.parametrize("name", ["plan.toml", "PLAN.TOML", "plan.csv", "my plan"])
def test_a_plan_for_an_injection_file_is_answered_with_the_command_for_plans(repository, tmp_path, name):
    path = tmp_path / name
    path.write_bytes((repository / "injections" / "plans" / "quick.toml").read_bytes())
    with pytest.raises(InputError) as error:
        read_injection(path)
    command = f"python -m fault_injection campaign {shlex.quote(str(path))} --out DIR"
    what = "this is the plan of a campaign, not an injection file"
    assert str(error.value) == f"{path}: {what}; run it with: {command}"


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
SMALL_BITS = SMALL.replace("inj_values,1.5,-2e10", "inj_bits,7f800000,xor:00800000")
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
    *(
        "7f800000",
        "0x1",
        "xor:00800000",
        "xor:",
        "copy:0/0/0/0",
        "copy:9/9/9/9",
        "copy:",
        "NaN",
        "-Infinity",
        NAME,
        "a.py:f",
    ),
    *("conv1", "fc", "conv1_grad_wt", "basicblock_2_basic_0_downsample_grad_in", "bn1", "basicblock_1_basic_0_conv"),
]
EXTRA_ROWS = [
    *("blocks,1/1/1/1", "blocks,2/2/2"),
    *("dataset,digits", "dataset,cifar10", "width,4", "width,1024", "workers,1", "batch_size,32768", "horizon,3"),
    *("batch_size,8", "workers,4096", "dropout,0.5", "epochs,100000", "augmentation,none", "# a comment", ","),
    *("inj_bits,1,xor:2", "inj_bits,3fc00000,d09502f9", "inj_bits,copy:1/1/1/1", "points,4", "features,9", "[faults]"),
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
        if digits and rows[row][0] not in ("width", "batch_size", "blocks"):  # each new size would be traced
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


@pytest.mark.parametrize("count", [500, pytest.param(many(4_000), marks=pytest.mark.slow)])
def test_any_file_is_an_injection_or_one_line(tmp_path, count):
    # Those into the other networks have the same rows, but each new size of these takes seconds to trace.
    published = [path.read_text() for path in sorted(PUBLISHED.glob("resnet18*.csv"))]
    originals = [SMALL, SMALL, SMALL, SMALL_BITS, OWN, *published]
    path = tmp_path / "mutated.csv"
    valid, answers = 0, set()
    for seed in range(count):
        random = Random(seed)
        raw = mutated(random.choice(originals), random)
        try:
            if seed % 10 and raw.isascii():
                injection = parse_injection(raw.decode(), path)
            else:  # what else bytes can be is found in reading them
                path.write_bytes(raw)
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
            assert injection.fault().index.max() < math.prod(injection.tensor.shape), raw
            assert same(parse_injection(format_injection(injection)), injection), raw
            valid += 1
    # The mutations reach every check, and what lies behind them.
    assert valid > count / 5
    assert len(answers) > 60
