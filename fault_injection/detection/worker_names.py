"""Whose tensor a name is of: workers are a part of a name, or end it, and trainers write ranks into logs."""

import re

WORKERS = re.compile(r"(?<![^/ ])(?:workers?|rank)[ _:]?(\d+)(?:_to_(\d+))?(?:/|$)")


def whose(tensor: str) -> str:
    """Whose tensor it is, as its name says; empty where it does not.  Strikes are counted for each by itself.

    >>> whose("largest/local_gradients/worker_3/fc/kernel"), whose("rank1/grad_max"), whose("loss")
    ('worker_3/', 'rank1/', '')
    """
    match = WORKERS.search(tensor)
    return match[0] if match else ""
