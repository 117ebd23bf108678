"""Follows bit flips of a training's state to their ends, and gives their verdicts; see `enumerate_flips.py`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fault_injection.machine.errors import InputError, Untrustworthy
from fault_injection.models.bits import host_words
from fault_injection.models.isolation import isolated, nonfinite_allowed
from fault_injection.runs.follow import follow
from fault_injection.runs.golden_run import Golden, Repeats
from fault_injection.runs.noise import noise_floor
from fault_injection.runs.outcome import OUTCOMES, Outcome, Thresholds, Trace, classify
from fault_injection.runs.steps import Address, Observer, addresses, numbered

BITS = 32
LOOK = 4  # steps that an early look sees
GOES_ON, LOSS, EXACT, TEST_LOSS = range(4)  # what ends a run: nothing, a loss, the golden state, a test loss
FIELDS = {"outcome": "u1", "ended": "i1", "worse_train": "f2", "worse_test": "f2", "gap": "f2"}  # of the store


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
