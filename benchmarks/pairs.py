"""Timing contestants in alternation, and what the ratio of two of them is worth.

A machine's speed drifts by more than the differences measured here.  So contestants take turns
in one process, each round gives one ratio (or one time), and the median over the rounds comes
with the distribution-free interval that order statistics give.
"""

import argparse
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # measure this checkout, installed or not

CONFIDENCE = 0.95
BUSY = 0.7  # load average from which a machine is not quiet
REST = 0.1  # seconds between two contestants, until the threads of the last one sleep


def parse(
    text: str,
    more: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
    workloads: Sequence[str] | None = ("resnet18",),
) -> argparse.Namespace:
    """The options of every benchmark, and what `more` adds; `workloads` are those that it can measure (None: all)."""
    parser = argparse.ArgumentParser(description=text.partition("\n\n")[0])
    parser.add_argument("--workload", choices=workloads, default="resnet18", help="(default %(default)s)")
    parser.add_argument("--width", type=int, help="channels of the first convolution (default: as published)")
    parser.add_argument("--batch-size", type=int, default=128, help="of all workers (default %(default)s)")
    parser.add_argument("--pairs", type=int, default=30, help="rounds of alternation (default %(default)s)")
    parser.add_argument("--threads", type=int, help="processors to use (default: all that this process may)")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    more(parser)
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    return options


def start(options: argparse.Namespace) -> dict[str, Any]:
    """Set up this process as the project's commands do: huge pages (which restart it), threads, JAX.

    Returns:
      The machine: processor, cores, threads, versions, load.
    """
    from fault_injection.machine.environment import arithmetic, describe, prepare, use_huge_pages

    use_huge_pages()
    prepare(options.threads)
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    tunables = os.environ.get("GLIBC_TUNABLES")
    more = {"cores": os.cpu_count(), "load_average_at_start": load, "GLIBC_TUNABLES": tunables}
    return {**arithmetic(1), **describe(), **more}


def show_machine(found: Mapping[str, Any]) -> None:
    """Print what matters of what `start` returned."""
    print(f"machine: {found['processor'] or found['device_kind']}, {found['cores']} cores, {found['threads']} threads")
    print(f"  Python {found['python']}, JAX {found['jax']}, Flax {found['flax']}, {found['system']}")
    print(f"  commit {found['commit']}, load average at the start {found['load_average_at_start']}")
    print(f"  GLIBC_TUNABLES {found['GLIBC_TUNABLES']}")
    if found["load_average_at_start"] and found["load_average_at_start"][0] > BUSY:
        print(f"  WARNING: load above {BUSY}, something else is running; no claim is settled on a busy machine")


def alternate(contestants: Mapping[str, Callable[[], Any]], pairs: int, warm_up: int = 2) -> dict[str, np.ndarray]:
    """Time the contestants in turns: A B C, then C B A, and so on.

    Args:
      contestants: functions that return JAX arrays (waited for) or have finished on return.
      pairs: rounds; each times every contestant once, in the second of two calls.
      warm_up: calls of each contestant before, not counted: compilation, first touch of memory.

    Returns:
      Seconds [pairs] by contestant, element i from round i.
    """
    import jax

    for name, run in contestants.items():
        started = time.perf_counter()
        for _ in range(warm_up):
            jax.block_until_ready(run())
        print(f"  warm-up of {name}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for i in tqdm(range(pairs), desc="rounds", mininterval=1):
        for name in list(contestants)[:: -1 if i % 2 else 1]:
            time.sleep(REST)
            jax.block_until_ready(contestants[name]())  # not counted: a step is timed in a training that goes on
            started = time.perf_counter()
            jax.block_until_ready(contestants[name]())
            seconds[name].append(time.perf_counter() - started)
    return {name: np.array(values) for name, values in seconds.items()}


def median_interval(samples: Sequence[float] | np.ndarray) -> tuple[float, float, float, float]:
    """Median, and an interval for the true median that assumes no distribution.

    Of n independent samples the k-th smallest and the k-th largest enclose the true median with
    probability 1 − 2·P(B < k), B binomial (n, ½); k is the largest for which this is at
    least `CONFIDENCE`, or 1 for fewer than 6 samples, whose range covers less.

    Returns:
      Median, low end, high end, probability of coverage.
    """
    ordered = np.sort(samples)
    n = len(ordered)

    def coverage(k):
        return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n

    k = max((k for k in range(1, n // 2 + 1) if coverage(k) >= CONFIDENCE), default=1)
    return float(np.median(ordered)), float(ordered[k - 1]), float(ordered[n - k]), max(coverage(k), 0.0)


def show_times(seconds: Mapping[str, np.ndarray], what: str = "") -> None:
    """Print each contestant's median and spread."""
    longest = max(len(name) for name in seconds)
    print(f"seconds, median [first quartile, third quartile] (smallest to largest){what}:")
    for name, values in seconds.items():
        low, middle, high = np.percentile(values, (25, 50, 75))
        print(f"  {name:{longest}}  {middle:.4g} [{low:.4g}, {high:.4g}] ({values.min():.4g} to {values.max():.4g})")


def claim(
    what: str, samples: Sequence[float] | np.ndarray, bound: float | None, *, unit: str = "", low_end: bool = False
) -> dict[str, Any]:
    """Print one line that holds the median of `samples` (pairwise ratios, or times) against a bound.

    Args:
      what: the quantity.
      samples: one a round.
      bound: its upper bound; None where the project states none.
      unit: of samples and bound.
      low_end: the claim is met once the interval's low end is within the bound (the interval
        includes the bound or lies below it); otherwise the median must be.

    Returns:
      The claim's numbers for the JSON file.
    """
    middle, low, high, coverage = median_interval(samples)
    met = None if bound is None else bool((low if low_end else middle) <= bound)
    numbers = f"{middle:.3f}{unit} [{low:.3f}, {high:.3f}] ({100 * coverage:.0f} %, {len(samples)} rounds)"
    verdict = "no bound stated" if bound is None else f"bound {bound}{unit}: {'met' if met else 'not met'}"
    print(f"claim: {what}: {numbers}, {verdict}")
    return {
        "claim": what,
        "median": middle,
        "interval": [low, high],
        "coverage": coverage,
        "rounds": len(samples),
        "bound": bound,
        "rule": "low end of the interval" if low_end else "median",
        "met": met,
        "samples": list(map(float, samples)),
    }


def write(options: argparse.Namespace, found: Mapping[str, Any], claims: list[dict[str, Any]], **more: Any) -> None:
    """Write everything to `--out`, if given; `more` holds further numbers, such as the times."""
    if options.out is None:
        return
    from fault_injection.machine.files import write_json

    def without_arrays(value):
        if isinstance(value, Mapping):
            return {key: without_arrays(item) for key, item in value.items()}
        return value.tolist() if isinstance(value, np.ndarray) else value

    command = " ".join([f"benchmarks/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]])
    write_json(options.out, {"command": command, "machine": dict(found), "claims": claims, **without_arrays(more)})
