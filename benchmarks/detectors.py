"""What a detector adds to a training step, and what Dr. DNA adds to a forward pass in evaluation.

A contestant does the fault-free step, reads its report on the host, and gives it to the detector; the plain one only
reads it.  A detector that needs reductions which the plain step does not report has a compiled step of its own.  One
that needs none shares the plain step's, so all that it adds is the time of its update; this is timed by itself, because
it is far below the spread of a step.

The claims are in percent of the plain step, or of the plain pass.
"""

import dataclasses
import functools
import itertools
import os
import time

import jax
import numpy as np
import ours
import pairs

from fault_injection.detection.dr_dna import make_profile
from fault_injection.detection.registry import beside_a_run, watcher
from fault_injection.detection.signals import reductions_of
from fault_injection.models.observe.dr_dna import SUM
from fault_injection.runs.follow import again
from fault_injection.runs.steps import Address

BOUNDS = {  # percent of time
    "history_bound": 0.1,
    "asd": 1.0,
    "gradient_norm": 1.0,
    "peers": 0.5,
    "sampled_checksum": 0.5,
}
BY_DEFAULT = ["history_bound", "asd", "gradient_norm"]
DR_DNA, PUBLISHED = "dr_dna", "dr_dna_published"
DR_DNA_TIME, DR_DNA_MEMORY = 2.5, 1.0  # percent
WARM_UP = 2
TRAINED = 3  # epochs before a profile is made, so that some examples are classified correctly


def stepping(program, each, watching=None, spent=None):
    """A function that does the next steps; it repeats the batches of epoch 0.

    Args:
      each: how many steps.
      watching: looks at every report.
      spent: list that gets the seconds of the looks of each call.
    """
    batches = [program.batch(0, step) for step in range(program.steps_per_epoch)]
    state = program.place(program.init())
    steps = itertools.cycle(range(len(batches)))
    if watching is not None:
        watching.starts(Address(0, 0), state, functools.partial(again, program, {}))

    def run():
        nonlocal state
        looking = 0.0
        for number in itertools.islice(steps, each):
            at = Address(0, number)
            state, report = program.step(state, batches[number], *at)
            report = jax.device_get(report)
            if watching is not None:
                started = time.perf_counter()
                watching.after_step(at, state, report)
                looking += time.perf_counter() - started
        if spent is not None:
            spent.append(looking)

    return run


def added(seconds, plain):
    """Percent by which each round's time exceeds the plain contestant's."""
    return 100 * (seconds / plain - 1)


def beside_the_step(contestant, names, rounds, each):
    """Time the detectors beside the training step; returns claims and times."""
    workload, plain = contestant.workload, contestant.program
    contestants, looks, shared, watched = {"plain step": stepping(plain, each)}, {}, {}, {}
    for name in names:
        watched[name] = detector = beside_a_run(name, plain, os.environ).detector
        wanted = reductions_of(detector.signals)
        program = workload.program(frozenset(), devices=1, reductions=wanted) if wanted else plain
        looks[name], shared[name] = [], not wanted
        contestants[name] = stepping(program, each, watcher(program, detector), looks[name])
    seconds = pairs.alternate(contestants, rounds, WARM_UP)
    pairs.show_times(seconds)
    claims, base = [], seconds["plain step"]
    for name in names:
        look = np.array(looks[name][WARM_UP + 1 :: 2])  # of the timed calls
        what = f"{name}, {ours.size(contestant)}"
        if shared[name]:
            claims.append(pairs.claim(f"update of {what}", 100 * look / base, BOUNDS.get(name), unit=" %"))
            claims.append(pairs.claim(f"step with {what}", added(seconds[name], base), None, unit=" %"))
        else:
            claims.append(pairs.claim(f"update of {what}", 100 * look / base, None, unit=" %"))
            more = added(seconds[name], base) / watched[name].reported_every
            claims.append(pairs.claim(f"step with {what}", more, BOUNDS.get(name), unit=" %"))
    return claims, seconds


def in_evaluation(contestant, rounds, each):
    """Time and memory of `dr_dna` and `dr_dna_published` in a forward pass; returns claims and times."""
    plain = contestant.program
    state = plain.place(plain.init())
    for epoch, step in itertools.product(range(TRAINED), range(plain.steps_per_epoch)):
        state, _ = plain.step(state, plain.batch(epoch, step), epoch, step)
    tests = plain.forward_passes().tests()
    profile = make_profile(plain, state, tests)
    mitigating = dataclasses.replace(profile, mitigate=True)

    def passing(program):
        batches = itertools.cycle(tests)
        return lambda: [jax.device_get(program.forward_passes().infer(state, next(batches), None)) for _ in range(each)]

    def memory(program):
        found = program.extras.lower["infer"]().compile().memory_analysis()
        return found.argument_size_in_bytes + found.temp_size_in_bytes + found.output_size_in_bytes

    acting = f"{DR_DNA}, mitigating"
    programs = {
        "plain pass": plain,
        DR_DNA: plain.watching(profile),
        PUBLISHED: plain.watching(dataclasses.replace(profile, told=(SUM,))),
        acting: plain.watching(mitigating),
    }
    seconds = pairs.alternate({name: passing(program) for name, program in programs.items()}, rounds)
    pairs.show_times(seconds)
    size, base, least = ours.size(contestant), seconds["plain pass"], memory(plain)
    claims = []
    bounds = {DR_DNA: (DR_DNA_TIME, DR_DNA_MEMORY), PUBLISHED: (DR_DNA_TIME, DR_DNA_MEMORY), acting: (None, None)}
    for name, (time_bound, memory_bound) in bounds.items():
        what = f"evaluation with {name}, {size}"
        claims.append(pairs.claim(f"time of {what}", added(seconds[name], base), time_bound, unit=" %"))
        more = 100 * (memory(programs[name]) / least - 1)
        claims.append(pairs.claim(f"memory of {what}", [more], memory_bound, unit=" %"))
    return claims, seconds


def main():
    def more(parser):
        text = "steps, or passes, of a contestant per turn: more where one is short (default %(default)s)"
        parser.add_argument("--steps", type=int, default=1, help=text)
        parser.add_argument("--blocks", type=int, help="blocks of a transformer")
        parser.add_argument("--strategy", help="how the workers share the state: `ddp` for peers")
        choices = [*BOUNDS, "nonfinite", "loss_spike", "asd_v1", "asd_v3", "update_norm", "history_ratio", DR_DNA]
        text = "detectors to measure (default: %(default)s)"
        parser.add_argument("--detector", nargs="+", choices=choices, default=[*BY_DEFAULT, DR_DNA], help=text)

    options = pairs.parse(__doc__, more, workloads=None)
    for name in ("blocks", "strategy"):
        if getattr(options, name) is None:
            delattr(options, name)
    found = pairs.start(options)
    pairs.show_machine(found)
    contestant = ours.make(options, frozenset())
    claims, times = [], {}
    names = [name for name in options.detector if name != DR_DNA]
    if names:
        claims, times = beside_the_step(contestant, names, options.pairs, options.steps)
    if DR_DNA in options.detector:
        more_claims, more_times = in_evaluation(contestant, options.pairs, options.steps)
        claims, times = claims + more_claims, times | more_times
    pairs.write(options, found, claims, seconds=times)


if __name__ == "__main__":
    main()
