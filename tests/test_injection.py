"""An injection file is read as exactly what it says, and written as what it was."""

import dataclasses
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from injection_files import LAW, PUBLISHED, VALID, injections, same, with_row

from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection import format_injection, parse_injection, read_injection, write_injection
from fault_injection.training.workloads import WORKLOADS
from models.fault import INACTIVE, site_id

# ---- The published injections -------------------------------------------------------------

PLACES = {  # site, operand, its shape; epoch, step, worker, learning rate
    "resnet18-immediate_infs_nans": ("basicblock_2_basic_0_conv2 output 128/8/8/128", 19, 38, 1, 0.001),
    "resnet18-masked": ("basicblock_4_basic_0_conv2 weight 3/3/512/512", 30, 32, 3, 0.001),
    "resnet18-slow_degrade": ("basicblock_4_basic_0_downsample_grad_in input 128/4/4/512", 7, 35, 5, 0.001),
    "resnet18_nobn-short_term_infs_nans": ("basicblock_3_basic_1_conv1_grad_in input 128/6/6/256", 39, 47, 7, 0.001),
    "resnet18_nobn-slow_degrade": ("basicblock_2_basic_1_conv2_grad_in weight 3/3/128/128", 28, 23, 2, 0.001),
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


@LAW
@given(injections())
def test_writing_then_reading_gives_the_same_injection(tmp_path_factory, injection):
    path = tmp_path_factory.getbasetemp() / "written.csv"
    write_injection(path, injection)
    assert same(read_injection(path), injection)


@LAW
@given(injections())
def test_a_fault_sets_the_listed_elements_to_the_listed_float32(injection):
    fault, count = injection.fault(), len(injection.positions)
    assert (fault.site, fault.operand, fault.worker) == (
        site_id(injection.layer),
        FAULT_MODELS[injection.fmodel].operand,
        injection.worker,
    )
    index = []
    for position in injection.positions:  # row-major
        flat = 0
        for at, size in zip(position, injection.site.shapes[injection.operand], strict=True):
            flat = flat * size + at
        index.append(flat)
    assert fault.index[:count].tolist() == index
    assert (fault.index[count:] == INACTIVE).all()
    assert fault.flip[:count].tobytes() == struct.pack(f"<{count}f", *injection.values)
    assert not fault.keep.any()


# ---- The command --------------------------------------------------------------------------


def check(repository, tmp_path, text):
    """`reproduce_injections.py --check` in an empty folder."""
    (tmp_path / "here").mkdir()
    path = tmp_path / "injection.csv"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(repository / "reproduce_injections.py"), "--file", str(path), "--check"],
        cwd=tmp_path / "here",
        env={**os.environ, "FAULT_INJECTION_CACHE": str(tmp_path / "cache"), "JAX_COMPILATION_CACHE_DIR": ""},
        capture_output=True,
        text=True,
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "injection.csv"]
    assert list((tmp_path / "here").iterdir()) == []
    return done


def test_checking_a_bad_file_prints_one_line_to_stderr_and_writes_nothing(repository, tmp_path):
    done = check(repository, tmp_path, with_row("target_epoch", "target_epoch,20"))
    line = f"{tmp_path / 'injection.csv'}:6: target_epoch 20 is not among the 20 epochs; expected 0 to 19; "
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(line)


def test_checking_a_good_file_says_what_would_happen_and_writes_nothing(repository, tmp_path):
    done = check(repository, tmp_path, VALID)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == parse_injection(VALID).sentence()
