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


def of_any_worker(tensor: str) -> str:
    """The name without whose it is: what is compared among workers has this in common.

    >>> of_any_worker("norm/local_gradients/worker_3/fc/kernel"), of_any_worker("rank1/grad_norm")
    ('norm/local_gradients//fc/kernel', '/grad_norm')
    """
    return tensor.replace(whose(tensor) or "/", "/", 1)
