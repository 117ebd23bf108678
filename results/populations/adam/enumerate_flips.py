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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fault_injection.faults.injection import ALL, Injection
from fault_injection.machine.environment import cache_folder, describe, prepare
from fault_injection.machine.errors import InputError, Untrustworthy
from fault_injection.machine.files import DamagedFile, read_arrays, write_arrays, write_atomically, write_json
from fault_injection.models.bits import NewBits, host_words
from fault_injection.models.isolation import isolated, nonfinite_allowed
from fault_injection.runs.dependencies import REPLAY, content_hash, source_of_verdicts
from fault_injection.runs.follow import follow
from fault_injection.runs.golden_run import Golden, Repeats
from fault_injection.runs.noise import noise_floor
from fault_injection.runs.outcome import OUTCOMES, Outcome, Thresholds, Trace, classify
from fault_injection.runs.replay_run import Replay, replay
from fault_injection.runs.steps import Address, Observer, addresses, numbered
from fault_injection.workloads.registry import find_workload

HERE = pathlib.Path(__file__).resolve().parent
EPOCHS = (2, 10, 20)  # of which every step is struck: an early, a middle and a late one
BITS, LOOK, TWINS = 32, 4, 5
GOES_ON, LOSS, EXACT, TEST_LOSS = range(4)  # what ends a run: nothing, a loss, the golden state, a test loss
FIELDS = {"outcome": "u1", "ended": "i1", "worse_train": "f2", "worse_test": "f2", "gap": "f2"}


class Followed(NamedTuple):
    """Runs from their faults to their ends, of one flip or [flips].

    Attributes:
      at: the number of steps that the training has done at the end.
      why: what ended it.
      loss, metric: float32 [steps] of the whole training, NaN where no step was taken.
      test_loss, test_metric: float32 [epochs], NaN where none was evaluated.
    """

    at: Any
    why: Any
    loss: Any
    metric: Any
    test_loss: Any
    test_metric: Any


class Judged(NamedTuple):
    """The verdict on a flip, and what the store keeps of it; see `FIELDS`."""

    outcome: Outcome
    ended: int
    gap: float


class Enumeration:
    """Follows flips of a training's state, all bits of one element at once.

    Attributes:
      golden: the golden run, made to its end.
      names, sizes: of the leaves that are struck, in their order.
      words: uint32 [steps + 1,elements], the golden state before each step, and after the last.

    Args:
      golden: of a training whose leaves all have elements of 32 bits.

    Raises:
      Untrustworthy: the loop does not repeat the golden run, or the verdict depends on twins.
    """

    def __init__(self, golden: Golden):
        self.golden, self.program = golden, golden.program
        self.measure, self.per_epoch = self.program.measure(), self.program.steps_per_epoch
        self.epochs = golden.workload.epochs
        self.steps = self.epochs * self.per_epoch
        leaves = jax.tree.leaves(self.program.state.abstract)
        if any(leaf.dtype.itemsize != BITS // 8 for leaf in leaves):
            raise InputError(f"{golden.workload.name}: a leaf has elements of other than {BITS} bits")
        self.names = list(self.program.state.names)
        self.sizes = [leaf.size for leaf in leaves]
        self.run = golden.fetch_run(self.epochs)
        self._loss, self._metric = self.run.column("loss"), self.run.column("metric")
        self._train, self._test = (self.run.epoch_column(f"{part}_metric") for part in ("train", "valid"))
        noise = noise_floor(golden, self.epochs, Thresholds().final_epochs)
        if noise is not None and Thresholds().sigmas * max(noise.train, noise.test) > self.measure.tolerance:
            raise Untrustworthy(f"the twins spread by {noise}, so the verdicts depend on how many there are")
        self.noise = noise
        self.words = self._golden_words()
        self._golden = jnp.asarray(self.words)
        every = (Address(*divmod(number, self.per_epoch)) for number in range(self.steps))
        self._batches = jax.tree.map(lambda *each: jnp.stack(each), *(self.program.batch(*at) for at in every))
        self._compiled = jax.jit(self._of_element)
        self._check_golden()

    def _golden_words(self) -> np.ndarray:
        """The golden states, made again and compared with the record."""
        states = [_host_words(self.program.init())]

        class Keep(Observer):
            def after_step(self, at: Address, state: Any, report: Any) -> None:
                states.append(_host_words(state))

        steps = addresses(Address(0, 0), Address(self.epochs - 1, self.per_epoch - 1), self.per_epoch)
        follow(self.program, self.golden.fetch_state_before(0), steps, observers=[Repeats(self.golden), Keep()])
        return np.stack(states)

    def _check_golden(self) -> None:
        """See that the loop repeats the golden run from its first step, where no bit is inverted."""
        found = self.follow(Address(0, 0), 0, np.zeros(1, np.uint32), ends=False)
        same = [np.array_equal(found.loss[0], self._loss), np.array_equal(found.metric[0], self._metric)]
        same.append(np.array_equal(found.test_loss[0].astype(np.float64), self.run.epoch_column("valid_loss")))
        same.append(np.array_equal(found.test_metric[0].astype(np.float64), self._test))
        if not all(same):
            raise Untrustworthy(f"the loop does not repeat the golden run (loss, metric, those of tests): {same}")

    def position(self, leaf: str, element: int) -> int:
        """The place of an element of a leaf among all elements of the state."""
        place = self.names.index(leaf)
        return sum(self.sizes[:place]) + element

    @nonfinite_allowed()
    def follow(self, at: Address, position: int, masks: np.ndarray | None = None, ends: bool = True) -> Followed:
        """The runs in which one element is struck before a step, each to its end, [masks].

        Args:
          at: the step struck.
          position: of the element among all.
          masks: uint32 [masks], the bits that are inverted; None for each bit by itself, the lowest first.
          ends: whether a run ends where its state is the golden one again.
        """
        masks = np.uint32(1) << np.arange(BITS, dtype=np.uint32) if masks is None else masks
        first = numbered(at, self.per_epoch)
        place = jnp.int32(first), jnp.int32(position), jnp.asarray(ends)
        return jax.device_get(self._compiled(*place, masks, self.words[first], self._batches, self._golden))

    def _of_element(self, first, position, ends, masks, before, batches, golden):
        def one(mask):
            return self._one(first, ends, before.at[position].set(before[position] ^ mask), batches, golden)

        return lax.map(one, masks)  # one after the other: to batch them would change the arithmetic

    def _one(self, first, ends, struck, batches, golden):
        """One run, of the words of its struck state."""
        nan = jnp.float32(jnp.nan)
        evaluate = self.golden.workload.started.training.evaluate

        def goes_on(carried):
            _, told = carried
            return (told.at < self.steps) & (told.why == GOES_ON)

        def step(carried):
            state, told = carried
            batch = jax.tree.map(lambda each: each[told.at], batches)
            with isolated("false"):
                new, report = jax.jit(isolated("true")(lambda s, b: self.program.step(s, b, 0, 0)))(state, batch)
            again = ends & (_words(new) == golden[told.at + 1]).all()
            why = jnp.where(jnp.isfinite(report.loss), jnp.where(again, EXACT, GOES_ON), LOSS).astype(jnp.int32)
            epoch, number = told.at // self.per_epoch, told.at % self.per_epoch
            evaluated = (number == self.per_epoch - 1) & (why == GOES_ON)
            loss, metric = lax.cond(evaluated, tested, lambda _: (nan, nan), new)
            why = jnp.where(evaluated & ~jnp.isfinite(loss), TEST_LOSS, why).astype(jnp.int32)
            return new, Followed(
                told.at + 1,
                why,
                told.loss.at[told.at].set(report.loss),
                told.metric.at[told.at].set(report.metric),
                told.test_loss.at[epoch].set(jnp.where(evaluated, loss, told.test_loss[epoch])),
                told.test_metric.at[epoch].set(jnp.where(evaluated, metric, told.test_metric[epoch])),
            )

        def tested(state):
            with isolated("false"):
                found = jax.jit(isolated("true")(lambda s: evaluate(s)))(state)
            return found["loss"], found[self.measure.name]

        nothing = [jnp.full(length, nan) for length in (self.steps, self.steps, self.epochs, self.epochs)]
        _, told = lax.while_loop(goes_on, step, (self._state(struck), Followed(first, jnp.int32(0), *nothing)))
        return told

    def _state(self, words):
        """The state of its words."""
        kinds, tree = jax.tree.flatten(self.program.state.abstract)
        parts = jnp.split(words, np.cumsum(self.sizes)[:-1])
        leaves = [
            lax.bitcast_convert_type(part, kind.dtype).reshape(kind.shape)
            for part, kind in zip(parts, kinds, strict=True)
        ]
        return jax.tree.unflatten(tree, leaves)

    def verdict(self, at: Address, told: Followed) -> Judged:
        """The verdict on one run, as a course gives it."""
        first, last, begun = numbered(at, self.per_epoch), int(told.at) - 1, at.epoch
        whole, metric = told.why == EXACT, np.array(self._metric)
        metric[first : last + 1] = told.metric[first : last + 1]  # what follows an exactly masked one is golden
        until = self.steps if whole else last + 1
        ended = self.epochs if whole else (last + 1) // self.per_epoch if told.why != LOSS else last // self.per_epoch
        train = metric.reshape(self.epochs, self.per_epoch).mean(axis=1, dtype=np.float64)
        test = np.where(np.isnan(told.test_metric), self._test, told.test_metric)
        traces = [
            Trace(steps[first:until].astype(np.float64), train[begun:ended], test[begun:ended])
            for steps, train, test in (
                (self._metric, self._train, self._test),
                (metric, train, test),
            )
        ]
        after = last - first
        nonfinite = {LOSS: after, TEST_LOSS: after + 1}.get(int(told.why))
        outcome = classify(
            *traces,
            self.measure,
            finished=True,
            first_nonfinite=nonfinite,
            exactly_masked_after=after if whole else None,
        )
        looked = slice(first, min(first + LOOK, last + 1))
        with np.errstate(invalid="ignore"):
            gap = np.abs(told.loss[looked] - self._loss[looked]).max()
        return Judged(outcome, -1 if told.why == GOES_ON else after, float(gap) if np.isfinite(gap) else np.inf)

    def piece(self, at: Address, leaf: str) -> dict[str, np.ndarray]:
        """What the store keeps of all flips of a leaf before a step: `FIELDS`, each [elements,32], and `value`."""
        begin, size = self.position(leaf, 0), self.sizes[self.names.index(leaf)]
        found = {name: np.zeros((size, BITS), kind) for name, kind in FIELDS.items()}
        for element in range(size):
            told = self.follow(at, begin + element)
            for bit in range(BITS):
                row = stored(self.verdict(at, nth(told, bit)))
                for name, value in row.items():
                    found[name][element, bit] = value
        dtype = jax.tree.leaves(self.program.state.abstract)[self.names.index(leaf)].dtype
        value = self.words[numbered(at, self.per_epoch), begin : begin + size].view(dtype)
        return found | {"value": value}


def stored(judged: Judged) -> dict[str, Any]:
    """What the store keeps of a verdict; see `FIELDS`."""
    worse = judged.outcome.worse or {"train": np.nan, "test": np.nan}
    with np.errstate(over="ignore"):
        return {
            "outcome": np.uint8(OUTCOMES.index(judged.outcome.outcome)),
            "ended": np.int8(judged.ended),
            "worse_train": np.float16(worse["train"]),
            "worse_test": np.float16(worse["test"]),
            "gap": np.float16(judged.gap),
        }


def nth(told: Followed, number: int) -> Followed:
    """One run of several."""
    return Followed(*(each[number] for each in told))


def _host_words(state: Any) -> np.ndarray:
    return np.concatenate([host_words(np.asarray(leaf)).ravel() for leaf in jax.tree.leaves(state)])


def _words(state: Any) -> jax.Array:
    """The bits of all elements of a state, uint32 [elements]."""
    return jnp.concatenate([lax.bitcast_convert_type(leaf, jnp.uint32).ravel() for leaf in jax.tree.leaves(state)])


# ---- The same flip by a replay ---------------------------------------------------------------


class Flip(NamedTuple):
    """One flip of the population: the step struck, the leaf, the element, counted row by row, and the bit."""

    at: Address
    leaf: str
    element: int
    bit: int


def injection_of(golden: Golden, flip: Flip) -> Injection:
    """The flip as an injection file has it."""
    return Injection.drawn(
        workload=golden.workload,
        site=golden.workload.target(flip.leaf),
        fmodel="",
        worker=ALL,
        epoch=flip.at.epoch,
        step=flip.at.step,
        bits=NewBits.inverted(np.array([flip.element]), 1 << flip.bit),
    )


def differences(enumeration: Enumeration, flip: Flip, row: dict[str, Any] | None) -> list[str]:
    """Where a flip followed anew, its replay, and a row of the store disagree; empty where they are the same.

    Args:
      row: of the store, by the names of `FIELDS`; None to compare with the replay alone.
    """
    e, (at, leaf, element, bit) = enumeration, flip
    told = nth(e.follow(at, e.position(leaf, element)), bit)
    judged, replayed = e.verdict(at, told), replay(injection_of(e.golden, flip), e.golden)
    ours, theirs = _said(judged.outcome), _said(replayed.outcome)
    found = [f"{name}: {ours[name]}, its replay {theirs[name]}" for name in ours if ours[name] != theirs[name]]
    found += [f"{name} differs from its replay" for name in _columns_apart(e, at, told, replayed)]
    here = {name: value.tobytes() for name, value in stored(judged).items()}
    return found + [f"{name} differs from the store" for name in here if row is not None and here[name] != row[name]]


def _said(outcome: Outcome) -> dict[str, Any]:
    """What has to be the same of two verdicts; a NaN is one word."""
    worse = {part: repr(value) for part, value in (outcome.worse or {}).items()}
    return {
        "outcome": outcome.outcome,
        "exactly_masked_after": outcome.exactly_masked_after,
        "first_nonfinite": outcome.first_nonfinite,
        "worse": worse,
        "struck": outcome.struck,
    }


def _columns_apart(e: Enumeration, at: Address, told: Followed, replayed: Replay) -> Iterator[str]:
    """Losses and metrics, of steps and of tests, that have other bits than those of a replay."""
    taken = int(told.at) - numbered(at, e.per_epoch)
    for name, ours in (("loss", told.loss), ("metric", told.metric)):
        theirs = replayed.faulty.column(name)[at.step :][:taken]
        if ours[numbered(at, e.per_epoch) :][:taken].tobytes() != theirs.tobytes():
            yield name
    evaluated = replayed.faulty.ended if told.why != EXACT else (int(told.at) - 1) // e.per_epoch - at.epoch
    for name, ours in (("valid_loss", told.test_loss), ("valid_metric", told.test_metric)):
        theirs = replayed.faulty.epoch_column(name)[:evaluated]
        if ours[at.epoch :][:evaluated].astype(np.float64).tobytes() != theirs.tobytes():
            yield name


def sample(store: dict[str, np.ndarray], count: int, seed: int) -> list[Flip]:
    """Flips of a store, each outcome of each leaf at least once where it occurs, and more by lot."""
    rng, strata = np.random.default_rng(seed), []
    for name in [name.removeprefix("outcome/") for name in store if name.startswith("outcome/")]:
        outcome, proved = store[f"outcome/{name}"], store[f"ended/{name}"] >= 0
        for kind in np.unique(np.stack([outcome.ravel(), proved.ravel()]), axis=1).T:
            strata.append((name, np.flatnonzero(((outcome == kind[0]) & (proved == kind[1])).ravel())))
    chosen: dict[tuple[str, int], None] = {}
    while len(chosen) < count:  # in turns, so that what is rare is seen as often as what is frequent
        for name, places in strata:
            chosen[name, int(rng.choice(places))] = None
    flips = []
    for name, place in list(chosen)[: max(count, len(strata))]:
        time_, element, bit = np.unravel_index(place, store[f"outcome/{name}"].shape)
        flips.append(Flip(Address(*map(int, store["times"][time_])), name, int(element), int(bit)))
    return flips


def row_of(store: dict[str, np.ndarray], flip: Flip) -> dict[str, bytes]:
    """What a store says of a flip: the bytes of each of `FIELDS`."""
    (time_,) = np.flatnonzero((store["times"] == flip.at).all(axis=1))
    return {name: store[f"{name}/{flip.leaf}"][time_, flip.element, flip.bit].tobytes() for name in FIELDS}


# ---- The whole population --------------------------------------------------------------------


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
    own = content_hash([e.golden.key, pathlib.Path(__file__).read_text(), source_of_verdicts(REPLAY)])
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
