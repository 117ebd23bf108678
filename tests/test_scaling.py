"""Scaling an injection keeps every place at the same fraction of what it counts in, and says what it did."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from injection_files import LAW, PUBLISHED, image_workloads, injections, own_workloads, same
from own_workload import NAME

from fault_injection.faults.element_bits import ElementBits
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection import ALL
from fault_injection.faults.injection_file import format_injection, parse_injection, read_injection
from fault_injection.faults.scaling import scale, scale_options, scaled_name
from fault_injection.machine.errors import InputError
from fault_injection.models.bits import ALL_ONES

SMALL = {"width": 8, "epochs": 20, "batch_size": 128}
RUN = read_injection(PUBLISHED / "resnet18_nobn-short_term_infs_nans.csv")  # 64 elements of 128/6/6/256


def flat(injection):
    """The positions as row-major indices."""
    return np.ravel_multi_index(np.array(injection.positions).T, injection.site.shapes[injection.operand])


def is_run(injection):
    return len(injection.positions) > 1 and (np.diff(flat(injection)) == 1).all()


def nearest(old, new):
    """⌊c·new/old⌋ of every coordinate."""
    shapes = [injection.site.shapes[injection.operand] for injection in (old, new)]
    return [tuple(c * b // a for c, a, b in zip(position, *shapes, strict=True)) for position in old.positions]


# ---- The published injections -------------------------------------------------------------

SCALED = {  # epoch, step, worker, first and last position
    "resnet18-immediate_infs_nans": (4, 8, 1, "13/3/3/10"),
    "resnet18-masked": (7, 7, 3, "2/2/47/25"),
    "resnet18-slow_degrade": (1, 7, 5, "15/3/1/56"),
    "resnet18_nobn-short_term_infs_nans": (9, 10, 7, "9/1/2/0 9/1/3/31"),
    "resnet18_nobn-slow_degrade": (7, 5, 2, "0/0/9/3"),
    "resnet18_sgd-immediate_infs_nans": (3, 5, 0, "7/3/8/19"),
    "resnet18_sgd-sharp_degrade": (5, 2, 1, "2/2/7/5"),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_published_injection_scales_to_the_embedded_size(name):
    old = read_injection(PUBLISHED / f"{name}.csv")
    new, _ = scale(old, dataset="digits", **SMALL)
    ends = dict.fromkeys(["/".join(map(str, new.positions[end])) for end in (0, -1)])
    assert (new.epoch, new.step, new.worker, " ".join(ends)) == SCALED[name]
    assert new.values == old.values
    assert (new.workload.dropout, new.workload.augmentation) == (0, "crop")  # as digits implies
    assert same(parse_injection(format_injection(new)), new)


@pytest.mark.parametrize(
    ("name", "blocks", "position"),
    [
        ("effnet-immediate_infs_nans", (1, 1, 1, 1, 1, 1, 1), "5/0/0/5 6/0/0/5"),
        ("densenet-slow_degrade", (6, 1, 1, 1), "12/6/6/0 12/6/6/15"),
    ],
)
def test_fewer_blocks_keep_the_layer(name, blocks, position):
    old = read_injection(PUBLISHED / f"{name}.csv")
    new, _ = scale(old, dataset="digits", blocks=blocks, **SMALL)
    assert (new.layer, new.workload.blocks, new.values) == (old.layer, blocks, old.values)
    assert " ".join(dict.fromkeys("/".join(map(str, new.positions[end])) for end in (0, -1))) == position
    assert same(parse_injection(format_injection(new)), new)


def test_a_layer_that_fewer_blocks_leave_out_is_refused():
    injection = read_injection(PUBLISHED / "densenet-slow_degrade.csv")
    left_out = r"bottleneck_5_conv2_grad_in is not a site of densenet with blocks 2/2/2/2, .*; did you mean 'dense"
    with pytest.raises(InputError, match=left_out):
        scale(injection, blocks=(2, 2, 2, 2))


@pytest.mark.parametrize("name", SCALED)
def test_a_published_injection_scales_on_its_own_dataset(name):
    old = read_injection(PUBLISHED / f"{name}.csv")
    new, _ = scale(old, **SMALL)
    assert new.step == old.step * 391 // 49
    assert (new.workload.dropout, new.workload.augmentation) == (old.workload.dropout, old.workload.augmentation)
    assert same(parse_injection(format_injection(new)), new)


def test_the_mapping_names_every_change_and_what_did_not_change():
    _, mapping = scale(dataclasses.replace(RUN, horizon=40), dataset="digits", workers=4, **SMALL)
    assert mapping == [
        "workload: dataset cifar10 -> digits, width 64 -> 8, dropout 0.15 -> 0.0, augmentation flip+crop -> crop, "
        "epochs 80 -> 20, batch_size 1024 -> 128, workers 8 -> 4",
        "each coordinate c -> ⌊c·new/old⌋, counted from 0:",
        "epoch: 39 of 80 -> 9 of 20",
        "step: 47 of 49 -> 10 of 11",
        "worker: 7 of 8 -> 3 of 4",
        "run of 64 elements: 74/1/2/128 to 74/1/2/191 of the input [128×6×6×256] -> "
        "18/1/2/0 to 18/1/3/31 of the input [32×6×6×32], from a multiple of 64",
        "values: unchanged",
        "horizon: 40 of 3920 steps -> 2 of 220",
        "learning rate: not scaled, 0.001 to 0.0001 within 5000 steps, of which the training goes through "
        "78% (3920 steps) -> 4% (220 steps)",
    ]


# ---- Several elements ---------------------------------------------------------------------


def at(shape_positions, **changes):
    """The published run of 64 with other positions."""
    positions = tuple(tuple(map(int, position)) for position in shape_positions)
    return dataclasses.replace(RUN, positions=positions, values=tuple(map(float, range(len(positions)))), **changes)


def run_from(first, count):
    return np.array(np.unravel_index(np.arange(first, first + count), (128, 6, 6, 256))).T


def test_a_run_that_the_operand_has_no_room_for_is_shortened_and_that_is_said():
    old = at(run_from(128 * 6 * 6 * 256 - 512, 512))
    new, mapping = scale(old, **SMALL)
    assert flat(new).tolist() == list(range(16 * 6 * 6 * 32 - 64, 16 * 6 * 6 * 32))
    assert new.values == old.values[:64]
    assert "; shortened to 64, for which there is room" in "\n".join(mapping)
    assert "values: unchanged, but for the last 448, left out" in mapping


def test_a_run_that_was_not_aligned_stays_where_it_falls():
    new, _ = scale(at(run_from(64 + 7, 5)), **SMALL)
    assert flat(new).tolist() == list(range(71 * 32 // 256, 71 * 32 // 256 + 5))


def test_elements_that_are_no_run_are_mapped_one_by_one():
    new, mapping = scale(at([(100, 5, 0, 255), (0, 0, 0, 8), (0, 0, 0, 24)]), **SMALL)
    assert new.positions == ((12, 5, 0, 31), (0, 0, 0, 1), (0, 0, 0, 3))
    assert sum(line.startswith("element: ") for line in mapping) == 3


def test_elements_that_would_become_one_are_refused():
    with pytest.raises(InputError) as error:
        scale(at([(0, 0, 0, 8), (3, 0, 0, 9)]), **SMALL)
    line = "inj_pos 0/0/0/8 and 3/0/0/9 would both become 0/0/0/1; keep one of them, or scale less"
    assert str(error.value) == line


def test_bits_stay_and_the_elements_copied_are_mapped_like_any_other():
    bits = (
        ElementBits(5),
        ElementBits(0, ALL_ONES, (127, 0, 5, 9)),
        ElementBits(0, ALL_ONES, (0, 0, 0, 25)),
        ElementBits.inverted(1),
    )
    old = at([(100, 5, 0, 255), (0, 0, 0, 8), (0, 0, 0, 24), (9, 5, 5, 0)])
    new, mapping = scale(dataclasses.replace(old, values=(), bits=bits), **SMALL)
    assert new.bits == (
        ElementBits(5),
        ElementBits(0, ALL_ONES, (15, 0, 5, 1)),
        ElementBits(0, ALL_ONES, (0, 0, 0, 3)),
        ElementBits.inverted(1),
    )
    line = "copied from: 127/0/5/9 -> 15/0/5/1, and 1 more; 1 of them now copy themselves, which changes nothing"
    assert mapping[-3:-1] == [line, "bits: unchanged"]


def test_a_run_of_copies_is_shortened_with_its_positions():
    old = at(run_from(128 * 6 * 6 * 256 - 512, 512))
    copies = tuple(ElementBits(0, ALL_ONES, position) for position in reversed(old.positions))
    new, mapping = scale(dataclasses.replace(old, values=(), bits=copies), **SMALL)
    assert len(new.bits) == len(new.positions) == 64
    assert new.bits[0].source == (15, 5, 5, 31)
    assert "bits: unchanged, but for the last 448, left out" in mapping


def test_an_operand_that_grows_too_large_is_refused():
    with pytest.raises(InputError, match=r"^the input of .* elements; expected at most 2147483647$"):
        scale(RUN, workers=1, batch_size=32768, width=1024)


OWN = f"""\
model,{NAME}
stage,fwrd_inject
fmodel,N64_INPUT
target_worker,1
target_layer,layer2
target_epoch,5
target_step,9
inj_pos,4
inj_bits,copy:2
learning_rate,0.1
seed,123
"""


def test_a_workload_of_ones_own_scales_by_its_own_options():
    new, mapping = scale(parse_injection(OWN), features=3, points=4, epochs=2)
    assert (new.positions, new.bits, new.epoch, new.step) == (((2,),), (ElementBits(0, ALL_ONES, (1,)),), 1, 3)
    assert mapping == [
        "workload: points 12 -> 4, features 6 -> 3, epochs 10 -> 2",
        "each coordinate c -> ⌊c·new/old⌋, counted from 0:",
        "epoch: 5 of 10 -> 1 of 2",
        "step: 9 of 12 -> 3 of 4",
        "worker: 1 of 2 -> 1 of 2",
        "element: 4 of the input [6] -> 2 of the input [3]",
        "copied from: 2 -> 1",
        "bits: unchanged",
    ]
    name = "x_points4_layers2.csv"
    assert scaled_name("x", new.workload, {"layers": 2, "points": 4, "seed": 1}) == name
    with pytest.raises(InputError, match=r"layer2 is not a site of .* with layers 2, expected layers that keep it"):
        scale(new, layers=2)


@pytest.mark.parametrize(
    ("fmodel", "size"), {"N64_WT_GLB": 64, "N64_INPUT": 64, "N16_RD": 16, "RD_GLB": 16, "RD": 1, "WT_16": 1}.items()
)
def test_the_group_of_a_fault_model(fmodel, size):
    assert FAULT_MODELS[fmodel].group == size


# ---- Laws ---------------------------------------------------------------------------------


@st.composite
def scalable(draw):
    """Any valid injection, half of them with a run for their positions."""
    old = dataclasses.replace(draw(injections(WORKLOADS)), horizon=draw(st.none() | st.integers(0, 100)))
    shape = old.site.shapes[old.operand]
    size, unit = math.prod(shape), draw(st.sampled_from([1, FAULT_MODELS[old.fmodel].group if old.fmodel else 1]))
    if draw(st.booleans()) or unit >= size:
        return old
    groups = size // unit
    first = draw(st.integers(0, groups - 1) | st.just(max(0, groups - 8))) * unit  # or the last ones
    count = min(draw(st.integers(1, 8)) * unit, size - first)
    positions = np.array(np.unravel_index(np.arange(first, first + count), shape)).T
    return dataclasses.replace(
        old, positions=tuple(map(tuple, positions.tolist())), values=tuple(map(float, range(count))), bits=()
    )


WORKLOADS = image_workloads(("resnet18", "resnet18_sgd", "nfnet")) | own_workloads()
EPOCHS = st.sampled_from([1, 20, 80, 97])
IMAGE_SCALES = st.fixed_dictionaries(
    {},
    optional={
        "dataset": st.sampled_from(["digits", "cifar10"]),
        "width": st.sampled_from([4, 64]),
        "epochs": EPOCHS,
        "sizes": st.sampled_from([(1, 1), (8, 1), (8, 128)]),  # workers, batch of each
    },
)
OWN_SCALES = st.fixed_dictionaries(
    {},
    optional={
        "features": st.integers(1, 50),
        "epochs": EPOCHS,
        "sizes": st.tuples(st.integers(1, 9), st.integers(1, 9)),  # workers, points of each
    },
)


@LAW
@given(scalable(), st.data())
def test_a_scaled_injection_is_valid_and_keeps_what_it_can(old, data):
    images = "batch_size" in old.workload.OPTIONS
    options = data.draw(IMAGE_SCALES if images else OWN_SCALES)
    if sizes := options.pop("sizes", None):
        options |= {"workers": sizes[0], "batch_size" if images else "points": sizes[0] * sizes[1]}
    try:
        new, mapping = scale(old, **options)
    except InputError as error:
        assert "would both become" in str(error)
        assert not is_run(old)
        return
    assert same(parse_injection(format_injection(new)), new)  # so in range and distinct
    assert {name: getattr(new.workload, name) for name in options} == options
    assert new.epoch == old.epoch * new.workload.epochs // old.workload.epochs
    assert new.step == old.step * new.steps_per_epoch // old.steps_per_epoch
    assert new.worker == (ALL if old.worker == ALL else old.worker * new.workload.workers // old.workload.workers)
    assert (new.horizon is None, new.horizon == 0) == (old.horizon is None, old.horizon == 0)
    kept = len(new.positions)
    assert np.array(new.values).tobytes() == np.array(old.values[:kept]).tobytes()
    shapes = [injection.site.shapes[injection.operand] for injection in (old, new)]
    for was, is_ in zip(old.bits[:kept], new.bits, strict=True):
        mapped = was.source and tuple(c * b // a for c, a, b in zip(was.source, *shapes, strict=True))
        assert is_ == dataclasses.replace(was, source=mapped)
    assert all(line.isprintable() for line in mapping)
    if not is_run(old):
        assert list(new.positions) == nearest(old, new)
        return
    index, size = flat(new), math.prod(new.site.shapes[new.operand])
    assert (np.diff(index) == 1).all()
    expected = int(np.ravel_multi_index(nearest(old, new)[0], new.site.shapes[new.operand]))
    group = FAULT_MODELS[old.fmodel].group if old.fmodel else 1
    if flat(old)[0] % group == 0:
        assert index[0] % group == 0
        assert 0 <= expected - index[0] < group
    else:
        assert index[0] == expected
    assert kept == len(old.positions) or index[-1] == size - 1


@LAW
@given(scalable())
def test_scaling_to_the_same_scale_changes_nothing(old):
    new, mapping = scale(old, **{name: getattr(old.workload, name) for name in scale_options(old.workload)})
    assert format_injection(new) == format_injection(old)
    assert mapping[0] == "workload: unchanged"
