"""An injection file is read as exactly what it says, and written as what it was."""

import dataclasses
import math
import os
import re
import struct
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from injection_files import LAW, PUBLISHED, VALID, image_workloads, injections, own_workloads, same, with_row
from own_workload import NAME, Series

from fault_injection.commands.main import main
from fault_injection.faults.element_bits import ElementBits, from_masks
from fault_injection.faults.fault_models import FAULT_MODELS, VALUES, Pattern
from fault_injection.faults.injection import Injection
from fault_injection.faults.injection_file import format_injection, parse_injection, read_injection, write_injection
from fault_injection.models.bits import ALL_ONES, NewBits
from fault_injection.models.fault import INACTIVE, Operand, site_id
from fault_injection.models.site import make_fault
from fault_injection.workloads.registry import WORKLOADS

# ---- The published injections -------------------------------------------------------------

PLACES = {  # site, operand, its shape; epoch, step, worker, learning rate
    "resnet18-immediate_infs_nans": ("basicblock_2_basic_0_conv2 output 128/8/8/128", 19, 38, 1, 0.001),
    "resnet18-masked": ("basicblock_4_basic_0_conv2 weight 3/3/512/512", 30, 32, 3, 0.001),
    "resnet18-slow_degrade": ("basicblock_4_basic_0_downsample_grad_in input 128/4/4/512", 7, 35, 5, 0.001),
    "resnet18_nobn-short_term_infs_nans": ("basicblock_3_basic_1_conv1_grad_in input 128/6/6/256", 39, 47, 7, 0.001),
    "resnet18_nobn-slow_degrade": ("basicblock_2_basic_1_conv2_grad_in weight 3/3/128/128", 28, 23, 2, 0.001),
    "resnet18_largedecay-immediate_infs_nans": (
        "basicblock_2_basic_0_conv1_grad_in output 128/16/16/64",
        5,
        30,
        5,
        0.001,
    ),
    "resnet18_largedecay-low_test_accuracy": ("basicblock_2_basic_1_conv1 input 128/8/8/128", 19, 40, 2, 0.001),
    "resnet18_largedecay-slow_degrade": ("basicblock_4_basic_0_downsample_grad_in input 128/4/4/512", 7, 35, 5, 0.001),
    "resnet18_sgd-immediate_infs_nans": ("basicblock_3_basic_0_conv1_grad_in input 128/10/10/256", 14, 26, 0, 0.1),
    "resnet18_sgd-sharp_degrade": ("basicblock_1_basic_0_conv1_grad_in weight 3/3/64/64", 21, 9, 1, 0.001),
    "effnet-immediate_infs_nans": ("block4_mbconv_0_se_expand_conv_grad_in output 128/1/1/60", 30, 0, 0, 0.002),
    "effnet-slow_degrade": ("block2_mbconv_0_conv1_grad_in output 128/16/16/16", 24, 32, 2, 0.002),
    "densenet-immediate_infs_nans": ("densenet_dense_block_4_bottleneck_9_conv1 output 128/1/1/128", 29, 26, 6, 0.001),
    "densenet-slow_degrade": ("densenet_dense_block_1_bottleneck_5_conv2_grad_in output 128/8/8/128", 36, 38, 7, 0.001),
}


def test_every_published_injection_is_here():
    assert {path.stem for path in PUBLISHED.glob("*.csv")} == PLACES.keys()


@pytest.mark.parametrize("name", PLACES)
def test_a_published_injection_is_read_unchanged(name):
    path = PUBLISHED / f"{name}.csv"
    injection = read_injection(path)
    where, epoch, step, worker, rate = PLACES[name]
    shape = "/".join(map(str, injection.site.shapes[injection.operand]))
    assert f"{injection.layer} {injection.operand.name.lower()} {shape}" == where
    assert (injection.epoch, injection.step, injection.worker) == (epoch, step, worker)
    assert injection.workload == dataclasses.replace(WORKLOADS[name.split("-")[0]], learning_rate=rate)
    assert injection.horizon is None
    assert format_injection(injection) == path.read_text()


def test_a_published_fault_has_the_index_and_the_bits_that_its_file_says():
    fault = read_injection(PUBLISHED / "resnet18-immediate_infs_nans.csv").fault()
    assert fault.index.tolist() == [((107 * 8 + 3) * 8 + 3) * 128 + 85]
    assert fault.flip.tolist() == [struct.unpack("<I", struct.pack("<f", 2.86871514043344e24))[0]]

    fault = read_injection(PUBLISHED / "resnet18_nobn-short_term_infs_nans.csv").fault()
    assert fault.index.tolist() == [((74 * 6 + 1) * 6 + 2) * 256 + channel for channel in range(128, 192)]


@pytest.mark.parametrize("path", sorted(PUBLISHED.parent.glob("cifar10/*.csv")), ids=lambda path: path.stem)
def test_an_injection_of_ours_into_nfnet_is_at_the_published_scale(path):
    injection = read_injection(path)
    assert injection.workload == WORKLOADS["nfnet"]
    assert format_injection(injection) == path.read_text()


# ---- Laws over all valid injections -------------------------------------------------------


@pytest.mark.law
@LAW
@given(injections())
def test_writing_then_reading_gives_the_same_injection(tmp_path_factory, injection):
    path = tmp_path_factory.getbasetemp() / "written.csv"
    write_injection(path, injection)
    assert same(read_injection(path), injection)


@LAW
@given(injections())
def test_a_fault_has_the_listed_elements_and_their_bits(injection):
    fault, count = injection.fault(), len(injection.positions)
    assert (fault.site, fault.operand, fault.worker) == (
        site_id(injection.layer),
        Operand.INPUT if injection.of_leaf else FAULT_MODELS[injection.fmodel].operand,
        injection.worker,
    )
    shape = injection.site.shapes[injection.operand]

    def row_major(position):
        flat = 0
        for at, size in zip(position, shape, strict=True):
            flat = flat * size + at
        return flat

    index = [row_major(position) for position in injection.positions]
    assert fault.index[:count].tolist() == index
    assert (fault.index[count:] == INACTIVE).all()
    source, keep, flip = (mask[:count].tolist() for mask in (fault.source, fault.keep, fault.flip))
    if injection.values:
        assert not fault.keep.any()
        if injection.tensor.dtype == np.float32:
            assert fault.flip[:count].tobytes() == struct.pack(f"<{count}f", *injection.values)
        else:
            dtype = injection.tensor.dtype  # bfloat16, or int32 of tokens
            assert flip == np.array(injection.values).astype(dtype).view(f"u{dtype.itemsize}").tolist()
    else:
        assert flip == [new.flip for new in injection.bits]
        assert keep == [new.keep & 0xFFFFFFFF for new in injection.bits]
        sources = [
            at if new.source is None else row_major(new.source) for at, new in zip(index, injection.bits, strict=True)
        ]
        assert source == sources


PATTERNS = (Pattern(True, 0x00800000, 3.0), Pattern(False, 0x7FC00001, 1.0), Pattern(True, 0, 1.0))


@LAW
@given(image_workloads(("resnet18", "nfnet")) | own_workloads(), st.data())
def test_what_any_fault_model_draws_is_an_injection_before_anything_runs(workload, data):
    """And the file says the same fault, bit by bit."""
    site = data.draw(st.sampled_from(list(workload.sites().values())))
    fmodel, values = data.draw(st.sampled_from(list(FAULT_MODELS))), data.draw(st.sampled_from(list(VALUES)))
    rng, operand = np.random.default_rng(data.draw(st.integers(0, 9999))), FAULT_MODELS[fmodel].operand
    size = math.prod(site.shapes[operand])
    index = FAULT_MODELS[fmodel].places(rng, size)[:200]
    bits = VALUES[values](*[PATTERNS] * (values == "histogram"))(rng, index, size)
    injection = Injection.drawn(
        workload=workload, site=site, fmodel=fmodel, worker=0, epoch=0, step=0, bits=bits, horizon=3
    )
    assert parse_injection(format_injection(injection)) == injection
    low = 16 ** (2 * injection.tensor.dtype.itemsize) - 1  # the bits that count
    drawn = make_fault(site, operand, 0, index, source=bits.source, keep=bits.keep, flip=bits.flip & np.uint32(low))
    of_positions = vars(injection.fault())
    assert of_positions.pop("rule") is None  # that of a defect profile
    for name, mask in of_positions.items():
        counting = np.uint32(low) if name == "keep" else ~np.zeros((), mask.dtype)
        np.testing.assert_array_equal(mask & counting, getattr(drawn, name) & counting, err_msg=name)


@pytest.mark.parametrize("masks", [(0, 0x7FFFFFFF, 1), (1, ALL_ONES, 5), (1, 0xFFFF, 0)])
def test_masks_that_no_form_expresses_are_no_injection(masks):
    """Some bits set and others inverted, or a copy with other bits than its source: a file has no words for them."""
    source, keep, flip = (np.array([mask]) for mask in masks)
    tensor = parse_injection(VALID).tensor
    with pytest.raises(ValueError, match=r"several of these|all its bits as they are"):
        from_masks(NewBits(np.array([0]), source, keep.astype(np.uint32), flip.astype(np.uint32)), tensor)


def test_an_injection_has_either_values_or_bits_one_for_each_position():
    valid = parse_injection(VALID)
    with pytest.raises(ValueError, match="either values or bits"):
        dataclasses.replace(valid, values=())
    with pytest.raises(ValueError, match="either values or bits"):
        dataclasses.replace(valid, bits=(ElementBits(1), ElementBits(2)))
    with pytest.raises(ValueError, match="1 values or bits for 2 positions"):
        dataclasses.replace(valid, values=(1.0,))


@pytest.mark.parametrize("position", [(0, 1, 2, 8), (3, 0, 0, 0), (-1, 0, 0, 0)])
def test_a_position_outside_the_operand_makes_no_fault(position):
    valid = parse_injection(VALID)
    with pytest.raises(ValueError):
        dataclasses.replace(valid, positions=((0, 1, 2, 3), position)).fault()


# ---- Bits ---------------------------------------------------------------------------------

TWO = "inj_pos,0/1/2/3,2/2/7/7"


def with_bits(row, values=None):
    """`VALID` with this row of bits in place of the values, or after these."""
    return with_row("inj_values", f"inj_values,{values}\n{row}" if values else row)


def test_bits_are_given_inverted_or_copied():
    injection = parse_injection(with_bits("inj_bits,0x7F800000,xor:00800000"))
    assert injection.bits == (ElementBits(0x7F800000), ElementBits.inverted(0x00800000))
    fault = injection.fault()
    assert fault.flip[:2].tolist() == [0x7F800000, 0x00800000]
    assert fault.keep[:2].tolist() == [0, 0xFFFFFFFF]

    fault = parse_injection(with_bits("inj_bits,copy:1/1/1/1,5")).fault()
    assert fault.source[0] == ((1 * 3 + 1) * 8 + 1) * 8 + 1
    assert (fault.keep[:2].tolist(), fault.flip[:2].tolist()) == ([0xFFFFFFFF, 0], [0, 5])


@pytest.mark.parametrize(
    ("bits", "words"),
    {
        "7f800000": "element 0/1/2/3 gets the bits 7f800000 in the weight [3×3×8×8]",
        "xor:1": "element 0/1/2/3 has its bits 00000001 inverted in the weight",
        "copy:2/0/0/1": "element 0/1/2/3 becomes a copy of element 2/0/0/1 in the weight",
    }.items(),
)
def test_the_sentence_says_what_becomes_of_the_bits(bits, words):
    text = with_bits(f"inj_bits,{bits}").replace(TWO, "inj_pos,0/1/2/3")
    assert words in parse_injection(text).sentence()


@pytest.mark.parametrize(
    ("bits", "values"),
    {
        "3fc00000,d09502f9": "1.5,-2e10",
        "0x3fc00000,7fc00000": "1.5,nan",
        "ffffffff,7f800001": "nan,nan",  # any NaN is a NaN
        "80000000,ff800000": "-0.0,-inf",
    }.items(),
)
def test_values_beside_bits_say_the_same(bits, values):
    """The bits are kept, since they say which NaN."""
    assert parse_injection(with_bits(f"inj_bits,{bits}", values)) == parse_injection(with_bits(f"inj_bits,{bits}"))


# ---- A workload of one's own --------------------------------------------------------------

OWN = f"""\
model,{NAME}
stage,bkwd_inject
fmodel,WT
target_worker,1
target_layer,layer1_grad_wt
target_epoch,3
target_step,4
inj_pos,2/1
inj_bits,xor:8000
learning_rate,0.5
seed,1
features,3
"""


def test_a_file_for_a_workload_without_images():
    injection = parse_injection(OWN)
    assert type(injection.workload).__name__ == Series.__name__
    assert (injection.workload.features, injection.workload.learning_rate) == (3, 0.5)
    assert injection.tensor.dtype == jnp.bfloat16
    assert format_injection(injection) == OWN


def test_a_signalling_nan_of_a_narrow_format_is_a_nan_without_a_warning():
    text = OWN.replace("xor:8000", "7f81")
    assert parse_injection(text + "inj_values,nan\n") == parse_injection(text)


# ---- Comments -----------------------------------------------------------------------------


def test_comments_are_passed_over():
    rows = re.sub("^", "# model,resnet81\n", VALID, flags=re.MULTILINE)
    assert parse_injection(f"  \t# first\n#\n{rows}#last") == parse_injection(VALID)


# ---- The command --------------------------------------------------------------------------


def test_checking_a_bad_file_prints_one_line_to_stderr_and_writes_nothing(repository, tmp_path):
    (tmp_path / "here").mkdir()
    path = tmp_path / "injection.csv"
    path.write_text(with_row("target_epoch", "target_epoch,20"))
    done = subprocess.run(
        [sys.executable, str(repository / "reproduce_injections.py"), "--file", str(path), "--check"],
        cwd=tmp_path / "here",
        env={**os.environ, "FAULT_INJECTION_CACHE": str(tmp_path / "cache"), "JAX_COMPILATION_CACHE_DIR": ""},
        capture_output=True,
        text=True,
    )
    line = f"{path}:6: target_epoch 20 is not among the 20 epochs; expected 0 to 19 (row epochs, line 16, says 20 "
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(line)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["here", "injection.csv"]


def test_checking_a_good_file_says_what_would_happen_and_writes_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "injection.csv").write_text(VALID)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FAULT_INJECTION_CACHE", str(tmp_path / "cache"))
    assert main(["replay", "--file", "../injection.csv", "--check"]) == 0
    printed = capsys.readouterr()
    assert (printed.out.splitlines()[0], printed.err) == (parse_injection(VALID).sentence(), "")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["here", "injection.csv"]
