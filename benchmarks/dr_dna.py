"""What Dr. DNA detects of errors that change an answer, and how often it raises an alarm without one (no timing).

A trial is one inference of one example, in which one error strikes the input, the weight or the output of one forward
operation; which operation, operand, position and example, is drawn uniformly.  A trial counts if the example's
prediction changes or its loss is not finite.  So each example is judged by itself, and so is each trial.

The network is trained first, the profile is made of training batches, and the examples are others: training batches
of later epochs, which are augmented anew, and for false alarms the test data as well.  `vit` is a step of one's own
(`vit.py`): its activations are watched, and not clamped.

Thresholds follow from fault-free examples alone.  The margins that multiply them are swept; the claims are about the
detectors' own.
"""

import argparse
import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import pairs

from fault_injection.campaign.rates import Rate, wilson
from fault_injection.detection.dr_dna import DrDna, DrDnaPublished, make_profile, sample_places, samples_of
from fault_injection.faults.fault_models import Places, Values, bit_flip, group_of, lane, random_finite, stuck
from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.observe.dr_dna import BEYOND_LAYER, BEYOND_PLACES, NAMES, SUM, VALUES, Profile
from fault_injection.models.site import Site, make_fault
from fault_injection.runs.follow import follow
from fault_injection.runs.steps import Address, addresses
from fault_injection.seam.leaves import Batch, State
from fault_injection.seam.program import ForwardPasses, Program
from fault_injection.seam.report import Inference
from fault_injection.workloads.registry import find_workload, make_workload

# Positions and new bits of each.  The first four are claimed.  RD and N16_RD are the published fault models
# (docs/fault_models.md), here of any operand.  The highest exponent bit is what public re-implementations of Dr. DNA
# flip, and sign and exponent are the bits that can change much.  The last two are hard: of a stuck mantissa bit little
# comes, and a flip of any bit seldom changes an answer but for a near tie.
ERRORS: dict[str, tuple[Places, Values]] = {
    "SIGN_OR_EXPONENT": (group_of(1), bit_flip(tuple(range(23, 32)))),
    "EXPONENT_30": (group_of(1), bit_flip((30,))),
    "RD": (group_of(1), random_finite),
    "N16_RD": (group_of(16), random_finite),
    "LANE_16": (lane(16), stuck()),
    "ANY_BIT": (group_of(1), bit_flip()),
}
CLAIMED = tuple(ERRORS)[:4]
DETECTORS = {
    "dr_dna": (DrDna.margin, (BEYOND_PLACES, BEYOND_LAYER)),
    "its places alone": (DrDna.margin, (BEYOND_PLACES,)),
    "its layers alone": (DrDna.margin, (BEYOND_LAYER,)),
    "dr_dna_published": (DrDnaPublished.margin, (SUM,)),
}
MENDED = "mended by mitigation"
MARGINS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
FALSE, DETECTED = 1e-3, 0.9  # bounds of the claims
EXAMPLES, PROFILED, MANY = 400, 2, 16  # examples that trials draw from; epochs of the profile; tokens that are many
OPTIONS = {
    "resnet18": ({"dataset": "digits"}, 8, 10, 20),  # further options, width, epochs of training, fault-free epochs
    "transformer": ({}, 64, 6, 6),
    "vit": ({}, None, None, 20),
}
VIT = os.path.relpath(pathlib.Path(__file__).parent / "vit.py")


class Trial(NamedTuple):
    """A trial that counts.

    Attributes:
      at: which layer of the pass was struck.
      operand: of it.
      changed: predictions of the example that changed.
      nonfinite: whether its loss is not finite.
      excess: by name of `NAMES`, its largest value of a layer in units of the layer's limit.
      mended: whether, with mitigation, all predictions are as without the error and the loss is finite; None where
        nothing is clamped.
    """

    at: int
    operand: Operand
    changed: int
    nonfinite: bool
    excess: dict[str, float]
    mended: bool | None

    @property
    def many(self) -> bool:
        """Whether much of the answer changed."""
        return self.nonfinite or self.changed >= MANY


class Trained(NamedTuple):
    """A trained network.

    Attributes:
      details: what was trained.
      program: whose forward passes infer a batch.
      single: whose forward passes infer one example, and strike it.
      sites: by name, which `single` strikes.
      state: on the host.
      epochs: that it was trained for.
      mitigates: whether its activations can be clamped.
    """

    details: str
    program: Program
    single: Program
    sites: Mapping[str, Site]
    state: State
    epochs: int
    mitigates: bool


def trained(options: argparse.Namespace) -> Trained:
    """The network of the options, trained."""
    return (own if options.workload == "vit" else explicit)(options)


def followed(workload: Any) -> State:
    """The state after a workload's training, on the host."""
    program = workload.program(frozenset(), devices=1)
    last = Address(workload.epochs - 1, program.steps_per_epoch - 1)
    steps = addresses(Address(0, 0), last, program.steps_per_epoch)
    state = follow(program, program.place(program.init()), steps).state
    print(f"{workload.title}: {workload.details}; {program.evaluate(state)}", flush=True)
    return jax.device_get(state)


def explicit(options: argparse.Namespace) -> Trained:
    """A network of this project."""
    more, width, epochs, _ = OPTIONS[options.workload]
    width = options.width or width
    workload = make_workload(
        options.workload, **more, width=width, epochs=epochs, **({"batch_size": 128} if "dataset" in more else {})
    )
    state = followed(workload)
    single = dataclasses.replace(workload, workers=1, batch_size=1)
    sites = {name: site for name, site in single.sites().items() if site.stage == "forward"}
    programs = workload.program(frozenset(), devices=1), single.program(frozenset(sites), devices=1)
    return Trained(workload.details, *programs, sites, state, epochs, mitigates=True)


def own(options: argparse.Namespace) -> Trained:
    """The step of one's own."""
    workload, many, one = (find_workload(f"{VIT}:{name}") for name in ("training", "inference", "inference_of_one"))
    names = [leaf.name for leaf in workload.program(frozenset()).state.leaves]
    parameters = dict(zip(names, jax.tree.leaves(followed(workload)), strict=True))
    sites = {name: site for name, site in one.sites().items() if site.stage == "forward"}
    programs = (inferring(made, parameters) for made in (many.program(frozenset()), one.program(frozenset(sites))))
    return Trained(workload.details, *programs, sites, (), workload.epochs, mitigates=False)


def inferring(program: Program, parameters: Mapping[str, Any]) -> Program:
    """A program whose step infers, as one with forward passes; its state is these parameters."""
    leaves, names = jax.tree.leaves(program.init()), [leaf.name for leaf in program.state.leaves]
    given = [parameters.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    state = jax.tree.unflatten(jax.tree.structure(program.state.abstract), given)

    def infer(_: State, batch: Batch, fault: Any) -> Inference:
        placed = program.place(state)
        new, report = (
            program.step(placed, batch["leaves"], 0, 0)
            if fault is None
            else program.faulty_step(placed, batch["leaves"], 0, 0, fault)
        )
        told = dict(zip(names, jax.tree.leaves(new), strict=True))
        loss, right, predicted = (told[name][None] for name in ("loss", "right", "predicted"))
        return Inference(loss, right, predicted, report.struck, report.tensors, report.reductions)

    return dataclasses.replace(
        program,
        place=lambda state: state,
        batch=lambda epoch, step: {"leaves": program.batch(epoch, step)},
        forward=ForwardPasses(list, infer),
        watching=lambda profile: inferring(program.watching(profile), parameters),
    )


def fault_free(program: Any, state: Any, profile: Profile, epochs: range) -> dict[str, np.ndarray]:
    """By name of `NAMES`, the largest excess [n] of each fault-free example that the profile has not seen."""
    bare = sample_places(program)
    watching, score = program.watching(bare).forward_passes(), jax.jit(excesses)
    batches = [program.batch(epoch, step) for epoch in epochs for step in range(program.steps_per_epoch)]
    found: list[dict[str, np.ndarray]] = []
    for batch in [*batches, *watching.tests()]:
        seen = jax.device_get(watching.infer(state, batch, None))
        weight = np.asarray(batch.get("weight", np.ones_like(seen.loss)))  # 0 where an example only fills the batch
        kept = weight.reshape(*seen.loss.shape[:2], -1)[..., 0].ravel() > 0
        largest = jax.device_get(score(profile, samples_of(bare, seen.tensors)))
        found.append({name: values.max(-1)[kept] for name, values in largest.items()})
    return {name: np.concatenate([one[name] for one in found]) for name in NAMES}


def excesses(profile: Profile, samples: np.ndarray) -> dict[str, jax.Array]:
    """Values [n,L] of samples in units of the layers' limits."""
    known = profile.histograms
    assert known is not None
    return {name: VALUES[name](known, samples) / known.limits[:, NAMES.index(name)] for name in NAMES}


def trials(
    network: Trained, profile: Profile, epoch: int, error: str, seed: int, most: int, wanted: int
) -> tuple[int, list[Trial]]:
    """How many trials were drawn, and those that count: `wanted` of them at most, of `most` drawn at most."""
    program = network.single
    state = program.place(network.state)
    passes = program.watching(dataclasses.replace(profile, told=NAMES)).forward_passes()
    mitigating = network.mitigates and program.watching(dataclasses.replace(profile, mitigate=True)).forward_passes()
    random = np.random.default_rng([seed, list(ERRORS).index(error)])
    examples = [program.batch(epoch, int(step)) for step in random.integers(program.steps_per_epoch, size=EXAMPLES)]
    struck = [(site, operand) for site in network.sites.values() for operand in Operand]
    struck = [(site, operand) for site, operand in struck if np.dtype(site.operands[operand].dtype).kind != "i"]
    sizes = [math.prod(site.operands[operand].shape) for site, operand in struck]
    size = max(len(ERRORS[error][0](random, elements)) for elements in sizes)  # one for all compiles once
    nothing = inactive_fault(size)
    clean = [jax.device_get(passes.infer(state, example, nothing)).predicted for example in examples]
    assert profile.histograms is not None
    limits = np.asarray(profile.histograms.limits, np.float64)
    found: list[Trial] = []
    for drawn in range(1, most + 1):
        site, operand = struck[random.integers(len(struck))]
        number = int(random.integers(EXAMPLES))
        fault = drawn_fault(site, operand, error, random, size)
        seen = passes.infer(state, examples[number], fault)
        nonfinite, changed = answer(seen, clean[number])
        if nonfinite or changed:
            told = jax.device_get(seen.reductions)
            excess = {}
            for i, name in enumerate(NAMES):
                values = np.array([told[f"{name}/{layer}"] for layer in profile.layers], np.float64)
                excess[name] = float(np.max(values / limits[:, i]))
            mended = None
            if mitigating:
                mended = answer(mitigating.infer(state, examples[number], fault), clean[number]) == (False, 0)
            found.append(Trial(profile.layers.index(site.name), operand, changed, nonfinite, excess, mended))
            if len(found) == wanted:
                return drawn, found
    return most, found


def answer(seen: Any, clean: np.ndarray) -> tuple[bool, int]:
    """Whether the loss is not finite, and how many predictions are others than without an error."""
    loss, predicted = jax.device_get((seen.loss, seen.predicted))
    return not np.isfinite(loss).all(), int(np.sum(predicted != clean))


def drawn_fault(site: Site, operand: Operand, error: str, random: np.random.Generator, size: int) -> Any:
    """An error of one operand, padded to so many elements."""
    places, values = ERRORS[error]
    elements = math.prod(site.operands[operand].shape)
    bits = values(random, np.asarray(places(random, elements), np.int64), elements)
    return make_fault(site, operand, 0, bits.index, source=bits.source, keep=bits.keep, flip=bits.flip, size=size)


def share(found: list[Trial], names: tuple[str, ...], margin: float) -> Rate:
    """The share of trials with an alarm of one of these values."""
    return wilson(sum(any(one.excess[name] > margin for name in names) for one in found), len(found))


def numbers(rate: Rate) -> list[int]:
    """How many of how many."""
    return [rate.found, rate.total]


def shown(rate: Rate, of: float = 100, digits: int = 1) -> str:
    """The share of so many, and its 95 % interval: in percent."""
    if not rate.total:
        return "-"
    share, low, high = (f"{of * value:.{digits}f}" for value in (rate.share, rate.low, rate.high))
    return f"{share} [{low}, {high}]"


def groups(found: list[Trial], layers: int, tokens: bool) -> Iterator[tuple[str, list[Trial]]]:
    """The trials, and parts of them that are looked at."""
    yield "all", found
    if tokens:
        yield f"{MANY} tokens or more", [one for one in found if one.many]
    for third, name in enumerate(("first", "second", "last")):
        yield f"{name} third of the layers", [one for one in found if one.at * 3 // layers == third]
    for operand in Operand:
        yield operand.name.lower(), [one for one in found if one.operand == operand]


def table(clean: Mapping[str, np.ndarray], made: Mapping[str, tuple[int, list[Trial]]]) -> list[dict[str, Any]]:
    """Per detector and margin: false alarms, and the share detected of each error."""
    rows = []
    for detector, (own, names) in DETECTORS.items():
        for margin in sorted({*MARGINS, own}):
            alarmed = np.any([clean[name] > margin for name in names], 0)
            false = wilson(int(alarmed.sum()), len(alarmed))
            row = {"detector": detector, "margin": margin, "own": margin == own, "false": numbers(false)}
            row |= {error: numbers(share(found, names, margin)) for error, (_, found) in made.items()}
            rows.append(row)
    return rows


def show(rows: list[dict[str, Any]], errors: list[str]) -> None:
    """Print the table of detection against false alarms."""
    print(f"{'detector':18} {'margin':>7} {'false alarms in a thousand':28}" + "".join(f"{e:>26}" for e in errors))
    for row in rows:
        rates = "".join(f"{shown(wilson(*row[error])):>26}" for error in errors)
        margin, false = f"{row['margin']:6.4g}{'*' if row['own'] else ' '}", shown(wilson(*row["false"]), 1e3, 2)
        print(f"{row['detector']:18} {margin} {false:28}{rates}")
    print("* the detector's own margin; shares detected in percent, with 95 % intervals")


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--wanted", type=int, default=400, help="trials that count, of each error (default 400)")
        parser.add_argument("--trials", type=int, default=12000, help="trials at most, of each error (default 12000)")
        parser.add_argument("--seed", type=int, default=1, help="of the trials (default 1)")

    options = pairs.parse(__doc__, more, workloads=tuple(OPTIONS))
    machine = pairs.start(options)
    pairs.show_machine(machine)
    network = trained(options)
    program, epoch = network.program, network.epochs
    placed = program.place(network.state)
    seen = [program.batch(epoch + e, step) for e in range(PROFILED) for step in range(program.steps_per_epoch)]
    profile = make_profile(program, placed, seen)
    later = range(epoch + PROFILED, epoch + PROFILED + OPTIONS[options.workload][3])
    clean = fault_free(program, placed, profile, later)
    made: dict[str, tuple[int, list[Trial]]] = {}
    parts: list[dict[str, Any]] = []
    for error in ERRORS:
        begun = time.monotonic()
        made[error] = trials(network, profile, later.stop, error, options.seed, options.trials, options.wanted)
        drawn, found = made[error]
        print(f"{error}: {len(found)} of {drawn} trials count ({time.monotonic() - begun:.0f} s)", flush=True)
        for part, some in groups(found, len(profile.layers), options.workload == "transformer"):
            rates = {detector: share(some, names, own) for detector, (own, names) in DETECTORS.items()}
            if network.mitigates:
                rates[MENDED] = wilson(sum(bool(one.mended) for one in some), len(some))
            parts.append({"error": error, "part": part} | {d: numbers(rate) for d, rate in rates.items()})
            said = ", ".join(f"{detector} {shown(rate)}" for detector, rate in rates.items())
            print(f"  {part} ({len(some)}): {said}", flush=True)
    rows = table(clean, made)
    show(rows, list(made))
    claims = list(claimed(rows, parts, options.workload))
    what = {name: (drawn, len(found)) for name, (drawn, found) in made.items()}
    pairs.write(options, machine, claims, workload=network.details, trials=what, table=rows, parts=parts)


def claimed(rows: list[dict[str, Any]], parts: list[dict[str, Any]], workload: str) -> Iterator[dict[str, Any]]:
    """Print the claims of `dr_dna` at its own margin, and yield them."""
    [own] = [row for row in rows if row["detector"] == "dr_dna" and row["own"]]
    part = f"{MANY} tokens or more" if workload == "transformer" else "all"
    false = wilson(*own["false"])
    yield said(f"false alarms of dr_dna on examples of {workload}", false, FALSE, false.share <= FALSE)
    rates = [wilson(*one["dr_dna"]) for e in CLAIMED for one in parts if (one["error"], one["part"]) == (e, part)]
    for error, rate in zip(CLAIMED, rates, strict=True):
        yield said(f"detected by dr_dna, {workload}, {error}, {part}", rate, DETECTED, rate.share >= DETECTED)


def said(what: str, rate: Rate, bound: float, met: bool) -> dict[str, Any]:
    """A claim, printed and returned."""
    in_percent = shown(rate, digits=3 if bound == FALSE else 1)
    verdict = "met" if met else "not met"
    print(f"claim: {what}: {rate.found} of {rate.total}, {in_percent} %, bound {100 * bound:g} %: {verdict}")
    return {"claim": what, "found": rate.found, "total": rate.total, "bound": bound, "met": met}


if __name__ == "__main__":
    main()
