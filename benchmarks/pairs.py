"""Times contestants in turns and estimates the ratio of two of them.

A machine's speed drifts by more than the differences measured here.  So contestants take turns
in one process, and each round gives one ratio (or one time).  The median over the rounds is given
with a distribution-free interval from order statistics.
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
BUSY = 0.7  # a machine with a load average above this is not quiet
REST = 0.1  # seconds between two contestants, so that the threads of the last one fall asleep


def parse(
    text: str,
    more: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
    workloads: Sequence[str] | None = ("resnet18",),
) -> argparse.Namespace:
    """Parse the options that all benchmarks share.

    Args:
      text: the script's docstring; its first paragraph describes the script in `--help`.
      more: adds the script's own options.
      workloads: names of the workloads that the script can measure; None means all.
    """
    parser = argparse.ArgumentParser(description=text.partition("\n\n")[0])
    parser.add_argument("--workload", choices=workloads, default="resnet18", help="(default %(default)s)")
    parser.add_argument("--width", type=int, help="channels of the first convolution (default: as published)")
    parser.add_argument(
        "--batch-size", type=int, default=128, help="examples per step of all workers (default %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=30, help="rounds of alternation (default %(default)s)")
    parser.add_argument("--threads", type=int, help="processors to use (default: all that this process may use)")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for every number")
    more(parser)
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    return options


def start(options: argparse.Namespace, load: Callable[[], Any] = dict) -> dict[str, Any]:
    """Set up this process as the project's commands do: huge pages (which restarts the process), threads, JAX.

    Args:
      load: called before JAX computes; a user's file may still set up devices.

    Returns:
      A description of the machine: processor, cores, threads, versions, load.
    """
    from fault_injection.machine.environment import arithmetic, describe, prepare, use_huge_pages

    use_huge_pages()
    prepare(options.threads)
    load()
    busy = os.getloadavg() if hasattr(os, "getloadavg") else None
    tunables = os.environ.get("GLIBC_TUNABLES")
    more = {"cores": os.cpu_count(), "load_average_at_start": busy, "GLIBC_TUNABLES": tunables}
    return {**arithmetic(1), **describe(), **more}


def show_machine(found: Mapping[str, Any]) -> None:
    """Print the most important parts of what `start` returned."""
    print(f"machine: {found['processor'] or found['device_kind']}, {found['cores']} cores, {found['threads']} threads")
    print(f"  Python {found['python']}, JAX {found['jax']}, Flax {found['flax']}, {found['system']}")
    print(f"  commit {found['commit']}, load average at the start {found['load_average_at_start']}")
    print(f"  GLIBC_TUNABLES {found['GLIBC_TUNABLES']}")
    if found["load_average_at_start"] and found["load_average_at_start"][0] > BUSY:
        print(f"  WARNING: load above {BUSY}, so something else is running; a busy machine settles no claim")


def alternate(contestants: Mapping[str, Callable[[], Any]], pairs: int, warm_up: int = 2) -> dict[str, np.ndarray]:
    """Time the contestants in turns: A B C, then C B A, and so on.

    Args:
      contestants: functions that return JAX arrays (they are waited for) or have finished when they return.
      pairs: rounds; each round calls every contestant twice and times the second call.
      warm_up: untimed calls of each contestant before the first round, for compilation and first touch of memory.

    Returns:
      Seconds [pairs] of each contestant; element i is from round i.
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
            jax.block_until_ready(contestants[name]())  # untimed: the timed step then follows one of its own kind
            started = time.perf_counter()
            jax.block_until_ready(contestants[name]())
            seconds[name].append(time.perf_counter() - started)
    return {name: np.array(values) for name, values in seconds.items()}


def median_interval(samples: Sequence[float] | np.ndarray) -> tuple[float, float, float, float]:
    """The median, and an interval for the true median that assumes no distribution.

    The k-th smallest and the k-th largest of n independent samples enclose the true median with
    probability 1 − 2·P(B < k), where B is binomial (n, ½).  k is the largest for which this is at
    least `CONFIDENCE`.  Fewer than 6 samples cannot reach it; then k is 1.

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
    """Print one line that compares the median of `samples` (pairwise ratios, or times) with a bound.

    Args:
      what: name of the quantity.
      samples: one per round.
      bound: its upper bound; None where the project states none.
      unit: of samples and bound.
      low_end: if true, the claim is met when the low end of the interval is within the bound, that
        is, when the interval includes the bound or lies below it; if false, the median must be within it.

    Returns:
      The numbers of the claim, for the JSON file.
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
    """Write everything to `--out` if it is given; `more` holds further numbers, such as the times."""
    if options.out is None:
        return
    from fault_injection.machine.files import write_json

    def without_arrays(value):
        if isinstance(value, Mapping):
            return {key: without_arrays(item) for key, item in value.items()}
        return value.tolist() if isinstance(value, np.ndarray) else value

    command = " ".join([f"benchmarks/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]])
    write_json(options.out, {"command": command, "machine": dict(found), "claims": claims, **without_arrays(more)})
