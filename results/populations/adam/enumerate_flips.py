"""Follow every single bit flip of a training's state to the end: writes `flips.npz` and `flips.json`.

    python results/populations/adam/enumerate_flips.py --check 400      # 15 to 30 minutes on one core

The training is `my_run.py` beside this file.  Struck is each bit of each element of its state, before each step of
three epochs: the flips from which `plan.toml`, a plan of a campaign, draws.  `results/training_flips.py` says what the
files hold.

The step is the program's own, compiled once into a loop, as a function of its own so that its arithmetic stays what it
is by itself.  Nothing is batched over flips.  The golden run is compared with that of the loop bit by bit, and so are
`--check N` flips with their replays.  The verdict is that of `runs.outcome`.

Each leaf at each step struck is a piece.  A piece that is done is kept in the cache, so the same command goes on where
it stopped.
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import sys
import time
from collections.abc import Sequence

import numpy as np
from compare_flips import differences, row_of, sample
from follow_flips import LOOK, Enumeration

from fault_injection.machine.environment import cache_folder, describe, prepare
from fault_injection.machine.files import DamagedFile, read_arrays, write_arrays, write_atomically, write_json
from fault_injection.runs.dependencies import REPLAY, content_hash, source_of_verdicts
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import OUTCOMES, Thresholds
from fault_injection.runs.steps import Address
from fault_injection.workloads.registry import find_workload

HERE = pathlib.Path(__file__).resolve().parent
EPOCHS = (2, 10, 20)  # of which every step is struck: an early, a middle and a late one
TWINS = 5


def struck_steps(golden: Golden) -> list[Address]:
    """The steps before which every bit is struck."""
    return [Address(epoch, step) for epoch in EPOCHS for step in range(golden.program.steps_per_epoch)]


def made_golden(cache: pathlib.Path | None, twins: int = 0) -> Golden:
    """The golden run of `my_run.py`, made to its end, and twins of it."""
    workload = find_workload(f"{HERE / 'my_run.py'}:training")
    golden = Golden(workload, workload.program(frozenset(), 1), cache)
    golden.make(workload.epochs)
    for number in range(1, twins + 1):
        golden.twin_run(number).make(workload.epochs)
    return golden


def enumerated(
    enumeration: Enumeration, folder: pathlib.Path, times: Sequence[Address], leaves: Sequence[str]
) -> tuple[dict[str, np.ndarray], float]:
    """The store of the flips of some leaves before some steps, made piece by piece.

    Args:
      folder: of the pieces; those that are there are not made again, and damaged ones are.

    Returns:
      The arrays, and the seconds that the pieces took, whenever they were made.
    """
    seconds, parts = 0.0, {}
    for at, leaf in itertools.product(times, leaves):
        path = folder / f"{at.epoch}-{at.step}-{enumeration.names.index(leaf)}.npz"
        try:
            found = read_arrays(path)
        except (FileNotFoundError, DamagedFile):
            begun = time.monotonic()
            found = enumeration.piece(at, leaf)
            found["seconds"] = np.float64(time.monotonic() - begun)
            write_arrays(path, found)
            print(f"before epoch {at.epoch}, step {at.step}: {leaf}, {found['seconds']:.1f} s", flush=True)
        seconds += float(found.pop("seconds"))
        for name, array in found.items():
            parts.setdefault(f"{name}/{leaf}", []).append(array)
    store = {name: np.stack(arrays) for name, arrays in parts.items()}
    return store | {"times": np.array(times, np.int64), "outcomes": np.array(OUTCOMES)}, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="folder of flips.npz and flips.json (this one)")
    parser.add_argument("--check", type=int, default=400, help="flips that are replayed (default %(default)s)")
    parser.add_argument("--cache", type=pathlib.Path, help="folder of golden runs and pieces")
    options = parser.parse_args()
    prepare(1)
    cache, environment = options.cache or cache_folder(), describe()
    e = Enumeration(made_golden(cache, TWINS))
    programs = [path.read_text() for path in sorted(HERE.glob("*_flips.py"))]
    own = content_hash([e.golden.key, programs, source_of_verdicts(REPLAY)])
    store, seconds = enumerated(e, cache / "populations" / own, struck_steps(e.golden), e.names)
    begun, flips = time.monotonic(), sample(store, options.check, 1)
    apart = {str(flip): found for flip in flips if (found := differences(e, flip, row_of(store, flip)))}
    for flip, found in apart.items():
        print(f"{flip}: {'; '.join(found)}", file=sys.stderr)
    outcome = {name.removeprefix("outcome/"): array for name, array in store.items() if name.startswith("outcome/")}
    told = {
        "training": "my_run.py:training",
        "flips": sum(array.size for array in outcome.values()),
        "golden": {f"{part}_metric": e.run.epoch_column(f"{part}_metric").tolist() for part in ("train", "valid")},
        "measure": dataclasses.asdict(e.measure),
        "thresholds": dataclasses.asdict(Thresholds()),
        "noise": e.noise and e.noise._asdict(),
        "look": LOOK,
        "seconds": round(seconds),
        "check": {"replayed": len(flips), "differ": apart, "seconds": round(time.monotonic() - begun)},
        "determined_by": e.golden.determined_by,
        "environment": environment,
    }
    write_atomically(options.out / "flips.npz", functools.partial(np.savez_compressed, **store))
    write_json(options.out / "flips.json", told)
    print(f"{told['flips']:,} flips in {seconds:.0f} s; {len(apart)} of {len(flips)} differ from their replays")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
