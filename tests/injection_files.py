"""Injection files and injections that several tests use."""

import math
import pathlib

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from own_workload import NAME

from fault_injection.data import DATASETS
from fault_injection.data.texts import TEXTS
from fault_injection.faults.element_bits import ElementBits
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection import ALL, STAGES, Injection
from fault_injection.faults.number_formats import format_of
from fault_injection.faults.schedule import Schedule
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand
from fault_injection.workloads.image import AUGMENTATIONS
from fault_injection.workloads.image import PUBLISHED as IMAGE_WORKLOADS
from fault_injection.workloads.registry import make_workload

PUBLISHED = pathlib.Path(__file__).parent.parent / "injections" / "published"

VALID = """\
model,resnet18
stage,fwrd_inject
fmodel,N64_WT
target_worker,1
target_layer,basicblock_1_basic_0_conv1
target_epoch,2
target_step,3
inj_pos,0/1/2/3,2/2/7/7
inj_values,1.5,-2e10
learning_rate,0.001
seed,123
dataset,digits
width,8
batch_size,128
workers,8
epochs,20
"""
ROWS = dict(row.split(",", 1) for row in VALID.splitlines())


def small_file(path, model, options, rate, *, stage, fmodel, layer, position, value):
    """Write an injection at epoch 1, step 3 into worker 1 of a small workload with these options."""
    rows = {"model": model, "stage": stage, "fmodel": fmodel, "target_worker": 1, "target_layer": layer}
    rows |= {"target_epoch": 1, "target_step": 3, "inj_pos": position, "inj_values": value}
    rows |= {"learning_rate": rate, "seed": 123, **options}
    words = {k: "/".join(map(str, v)) if isinstance(v, tuple) else v for k, v in rows.items()}
    path.write_text("".join(f"{k},{v}\n" for k, v in words.items()))
    return path


def with_row(key, row):
    """`VALID` with the row of `key` replaced by `row`, or taken out."""
    rows = [f"{k},{v}" if k != key else row for k, v in ROWS.items()]
    return "\n".join(row for row in rows if row is not None)


def same(one: Injection, other: Injection):
    """Equal, the values bit by bit, but for a NaN's sign and payload, which text does not carry."""
    # As numbers, −0 equals 0, and NaN nothing.
    bits = [np.where(np.isnan(i.values), np.nan, i.values).tobytes() for i in (one, other)]
    rest = [{**vars(i), "values": len(i.values)} for i in (one, other)]
    return bits[0] == bits[1] and rest[0] == rest[1]


FLOAT32 = st.one_of(
    st.floats(width=32),  # with nan, inf, −0 and subnormals
    # What the file says need not be a float32, only near one.
    st.floats(-3.4028234e38, 3.4028234e38).filter(lambda value: value == 0 or abs(value) > 1e-45),
    st.sampled_from([-0.0, math.nan, math.inf, -math.inf, 1e-45, 3.4028235e38]),
)


def values_of(format):
    """What a file may say that elements of this format become; the narrower ones have few enough to draw their bits."""
    if not format.exponent:
        return st.integers(-(2**31), 2**31 - 1).map(float)
    if format.width == 32:
        return FLOAT32
    return st.integers(0, (1 << format.width) - 1).map(lambda word: float(format.values([word])[0]))


# Sites are traced anew for each network at each of these: width, most blocks of a stage, examples of a worker.
TRACED = [(4, 2, 1), (64, 1, 128)]


@st.composite
def image_workloads(draw, names=tuple(IMAGE_WORKLOADS)):
    """Any workload of images; the numbers that sites are traced for come from a small set."""
    optional = {
        "dataset": st.sampled_from(list(DATASETS)),
        "dropout": st.floats(0, 1, exclude_max=True),
        "augmentation": st.sampled_from(AUGMENTATIONS),
        "epochs": st.integers(1, 100_000),
        "learning_rate": st.floats(1e-29, 1e29),
        "seed": st.integers(0, 2**31 - 1),
        "workers": st.sampled_from([1, 2, 1024]),
    }
    options = draw(st.fixed_dictionaries({}, optional=optional))
    name = draw(st.sampled_from(names))
    options["width"], most, examples = draw(st.sampled_from(TRACED))
    options["batch_size"] = options.get("workers", 8) * examples
    if options["batch_size"] > DATASETS[options.get("dataset", "cifar10")].train:
        options["workers"], options["batch_size"] = 2, 2 * examples
    options["blocks"] = tuple(min(most, count) for count in IMAGE_WORKLOADS[name].blocks)
    return make_workload(name, **options)


@st.composite
def own_workloads(draw):
    """Any workload of `own_workload`."""
    workers = draw(st.integers(1, 9))
    optional = {"features": st.integers(1, 40), "layers": st.integers(1, 9), "epochs": st.integers(1, 99)}
    options = draw(st.fixed_dictionaries({}, optional=optional))
    return make_workload(NAME, workers=workers, points=workers * draw(st.integers(1, 9)), **options)


@st.composite
def text_workloads(draw):
    """Any workload of texts; the numbers that sites are traced for come from a small set."""
    width, heads, kv_heads = draw(st.sampled_from([(4, 2, 1), (12, 2, 2)]))
    workers = draw(st.sampled_from([1, 2]))
    optional = {
        "dataset": st.sampled_from(list(TEXTS)),
        "tied": st.sampled_from(["yes", "no"]),
        "epochs": st.integers(1, 100_000),
        "steps_per_epoch": st.integers(1, 1_000_000),
        "seed": st.integers(0, 2**31 - 1),
    }
    options = draw(st.fixed_dictionaries({}, optional=optional))
    sizes = {"width": width, "heads": heads, "kv_heads": kv_heads, "context": 3, "blocks": 1}
    return make_workload("transformer", **options, **sizes, workers=workers, batch_size=2 * workers)


ANY_WORKLOAD = image_workloads() | text_workloads() | own_workloads()


NOTHING, COPIED = st.just(0), st.just(ALL_ONES)
REPEATED = st.sampled_from([{}, {"every": 1}]) | st.builds(lambda n: {"every": n}, st.integers(2, 2**31 - 1))
CHANCE = st.builds(lambda p: {"probability": p}, st.floats(0, 1, exclude_min=True, exclude_max=True))
SCHEDULES = st.builds(
    lambda when, steps, attempts, device: Schedule(**when, steps=steps if when else None, attempts=attempts).of_device(
        device
    ),
    REPEATED | CHANCE,
    st.none() | st.integers(2, 2**31 - 1),
    st.none() | st.booleans(),
    st.integers(0, 2**31 - 1),
)


@st.composite
def injections(draw, workloads=ANY_WORKLOAD):
    """Any valid injection."""
    workload = draw(workloads)
    # Leaves of a workload that is traced quickly.
    found = [*workload.sites().values(), *(workload.leaves().values() if workload.name == NAME else [])]
    site = draw(st.sampled_from(found))
    of_leaf = site.stage not in STAGES.values()
    fmodel = "" if of_leaf else draw(st.sampled_from(list(FAULT_MODELS)))
    tensor = site.operands[Operand.INPUT if of_leaf else FAULT_MODELS[fmodel].operand]
    places = st.tuples(*(st.integers(0, size - 1) for size in tensor.shape))
    positions = draw(st.lists(places, min_size=1, max_size=70, unique=True))
    masks = st.integers(0, 256**tensor.dtype.itemsize - 1)
    bits = (
        st.builds(ElementBits, masks)
        | st.builds(ElementBits.inverted, masks)
        | st.builds(ElementBits, NOTHING, COPIED, places)
    )
    bits |= st.builds(ElementBits.stuck, st.sampled_from([0, 1]), masks)
    become, each = draw(st.sampled_from([("values", values_of(format_of(tensor.dtype))), ("bits", bits)]))
    return Injection(
        workload=workload,
        stage=site.stage if of_leaf else next(stage for stage, name in STAGES.items() if name == site.stage),
        fmodel=fmodel,
        worker=ALL if of_leaf else draw(st.integers(0, workload.workers - 1)),
        layer=site.name,
        epoch=draw(st.integers(0, workload.epochs - 1)),
        step=draw(st.integers(0, workload.steps_per_epoch - 1)),
        positions=tuple(positions),
        **{become: tuple(draw(st.lists(each, min_size=len(positions), max_size=len(positions))))},
        horizon=draw(st.none() | st.sampled_from([0, 2**31 - 1]) | st.integers(0, 5000)),
        schedule=draw(SCHEDULES),
    )


LAW = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
