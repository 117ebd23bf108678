"""The embedded text: 1.1 million characters of Shakespeare's plays, of which each byte is a token."""

import gzip
import pathlib

import numpy as np

from .tokens import Tokens, checked_tokens

FILE = pathlib.Path(__file__).with_name("tinyshakespeare.txt.gz")
TRAINED = 0.9  # share of the text that is the training part: its beginning
VOCABULARY = 123  # of bytes: the largest is 122, a z


def load_shakespeare(folder: pathlib.Path | None, vocabulary: int, context: int) -> Tokens:
    """Load 1,003,854 training and 111,540 test tokens, uint8: the beginning and the end of the text.

    Args:
      folder: ignored, because the text comes with this package.
      vocabulary, context: as in `checked_tokens`.

    Raises:
      InputError: the vocabulary has not all of the text's bytes, or the context is longer than a part.

    Reference: "tiny Shakespeare" of Karpathy's char-rnn, 2015.  Its plays are in the public domain.

    >>> tokens = load_shakespeare(None, VOCABULARY, 64)
    >>> bytes(tokens.train[:14]), len(tokens.train), len(tokens.test), round(tokens.chance, 3)
    (b'First Citizen:', 1003854, 111540, 3.309)
    """
    text = np.frombuffer(gzip.decompress(FILE.read_bytes()), np.uint8)
    train, test = np.split(text, [int(TRAINED * len(text))])
    return checked_tokens(train, test, vocabulary, context, ("shakespeare, training part", "shakespeare, test part"))
