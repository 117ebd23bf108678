"""What every text is once it is read, and its batches, addressed by (seed, epoch, step, worker)."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator

import numpy as np

from ..machine.errors import InputError

# First part of a random stream's address, as ORDER and AUGMENTATION of images; after theirs.
STARTS = 2
CHUNK = 1 << 24  # tokens looked at together: a text may be larger than the memory
EVALUATED = 1 << 17  # tokens of the test part that an evaluation predicts, at most


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A training part and a test part of a text, both with all tokens known to be valid.

    Attributes:
      train, test: [N] unsigned integers, perhaps memory-mapped.
      counts: [vocabulary] int64, how often each token occurs in the training part.
      sha256: hash of every token, part of what a golden run is filed under.
    """

    train: np.ndarray
    test: np.ndarray
    counts: np.ndarray
    sha256: str

    @functools.cached_property
    def chance(self) -> float:
        """Loss in nats of guessing each token by its share of the training part: the entropy of these shares.

        >>> part = np.uint8([0, 1] * 8)
        >>> round(checked_tokens(part, part, 2, 4, ("a", "b")).chance, 4)
        0.6931
        """
        shares = self.counts[self.counts > 0] / self.counts.sum()
        return float(-(shares * np.log(shares)).sum())


def checked_tokens(
    train: np.ndarray, test: np.ndarray, vocabulary: int, context: int, names: tuple[object, object]
) -> Tokens:
    """The text of two parts, looked through once.

    Args:
      train, test: [N] unsigned integers.
      vocabulary: tokens are below this.
      context: tokens that a prediction may see; a part has to have one more.
      names: of the two parts, for messages.

    Raises:
      InputError: a part is shorter than a context and the token after it, or has a token outside the vocabulary.
    """
    digest, counts = hashlib.sha256(), []
    parts = ((train, names[0]), (test, names[1]))
    for part, name in parts:
        if len(part) <= context:
            needed = f"expected at least {context + 1}, for a context of {context} and the next token"
            raise InputError(f"{len(part)} tokens; {needed}", name)
    for part, name in parts:
        digest.update(f"{part.dtype.name} {len(part)} ".encode())
        counts.append(np.zeros(vocabulary, np.int64))
        for start in range(0, len(part), CHUNK):
            chunk = np.ascontiguousarray(part[start : start + CHUNK])
            digest.update(chunk.data)
            found = np.bincount(chunk, minlength=vocabulary)
            if len(found) > vocabulary:
                at = start + int(np.argmax(chunk >= vocabulary))
                message = f"token {part[at]} at position {at}; expected 0 to {vocabulary - 1}, the vocabulary"
                raise InputError(message, name)
            counts[-1] += found
    return Tokens(train, test, counts[0], digest.hexdigest())


@dataclasses.dataclass(frozen=True)
class TokenBatches:
    """The batches of one workload; each is a pure function of its address.

    Attributes:
      tokens: the text.
      seed: of the places that a batch is read from.
      workers: data-parallel replicas, R.
      batch_size: sequences over all workers, R·b.
      context: tokens of a sequence, T.

    >>> part = np.arange(100, dtype=np.uint8)
    >>> tokens = checked_tokens(part, part, 100, 8, ("a", "b"))
    >>> batch = TokenBatches(tokens, seed=123, workers=2, batch_size=6, context=8).train(epoch=7, step=3)
    >>> {name: (array.shape, array.dtype.name) for name, array in batch.items()}
    {'input': ((2, 3, 8), 'int32'), 'target': ((2, 3, 8), 'int32')}
    >>> bool((batch["target"] == batch["input"] + 1).all())
    True
    """

    tokens: Tokens
    seed: int
    workers: int
    batch_size: int
    context: int

    def train(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """The batch of one training step: sequences from uniformly drawn places of the training part.

        So an epoch is a number of steps, and goes through nothing.

        Args:
          epoch, step: counted from 0.

        Returns:
          `input` and `target` [R,b,T] int32; a target is the token after the input's.
        """
        last = len(self.tokens.train) - self.context
        each = self.batch_size // self.workers
        starts = [
            np.random.default_rng([self.seed, STARTS, epoch, step, worker]).integers(0, last, each)
            for worker in range(self.workers)
        ]
        return self._read(self.tokens.train, np.stack(starts))

    def test(self) -> Iterator[dict[str, np.ndarray]]:
        """The test part as batches of one shape: sequences one after another, or evenly spread where it is long.

        Yields:
          `input` and `target` [R,b,T] int32, and `weight` [R,b,T] float32, which is 1, or 0 where
          the last batch is padded.
        """
        there = (len(self.tokens.test) - 1) // self.context
        count = min(there, max(1, EVALUATED // self.context))
        for first in range(0, count, self.batch_size):
            rows = np.arange(first, first + self.batch_size).reshape(self.workers, -1)
            weight = np.repeat((rows < count).astype(np.float32)[..., None], self.context, axis=-1)
            starts = np.minimum(rows, count - 1) * there // count * self.context
            yield {**self._read(self.tokens.test, starts), "weight": weight}

    def _read(self, part: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
        """Sequences from `starts` [R,b] on, and the same one token later."""
        windows = part[starts[..., None] + np.arange(self.context + 1)].astype(np.int32)
        return {"input": windows[..., :-1], "target": windows[..., 1:]}
