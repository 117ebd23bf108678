"""Several processes, one run: each computes its devices' part, the first alone has files and a voice.

Every process runs the same program in the same order.  What is read from disk is read by the
first, the leader, and told to all, so that no two can decide differently; what is written is
written once, and an error there is an error of all.
"""

import functools
import os
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from .errors import InputError

Result = TypeVar("Result")
STATUS = re.compile(r"[A-Z]+(_[A-Z]+)*: ")
HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Make this process one of several that compute together; before JAX's first computation.

    Args:
      coordinator: `HOST:PORT` where process 0 listens, or `auto` on a cluster that JAX knows
        (Cloud TPU, Slurm, Open MPI, Kubernetes), which also tells the other two.
      processes: how many there are.
      process: number of this one, from 0.

    Raises:
      InputError: `auto`, but no such cluster is around.
      JaxRuntimeError: they did not find each other.
    """
    import jax

    if coordinator == "auto":
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        except ValueError:  # what the cluster would have told is missing
            hint = "say --coordinator HOST:PORT --processes N --process I"
            raise InputError(f"--coordinator auto: this is no cluster that JAX knows; {hint}") from None
    else:
        jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT)


def broke_off(error: Exception) -> bool:
    """Whether an error says that a device or another process is lost, or that memory is."""
    from jax.errors import JaxRuntimeError

    # A collective that fails where a program is started gives a ValueError, which begins with the runtime's status.
    return isinstance(error, JaxRuntimeError) or (isinstance(error, ValueError) and bool(STATUS.match(str(error))))


def leave(code: int) -> NoReturn:
    """End this process; one of several that failed does not wait for the others, which may be gone."""
    import jax

    if code and jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def leading() -> bool:
    """Whether this is the process that reads, writes and speaks; the only one, as a rule."""
    import jax

    return jax.process_index() == 0


def say(line: str) -> None:
    """Tell the person at the terminal."""
    if leading():
        print(line, file=sys.stderr, flush=True)


def agree(function: Callable[[], Result]) -> Result:
    """What `function` returns, or raises, in the leader, in every process; it runs in no other."""
    import jax

    if jax.process_count() == 1:
        return function()
    value: Any = None
    error: Exception | None = None
    if leading():
        try:
            value = function()
        except Exception as raised:  # whatever it is, the others are waiting; unless there is nobody left to tell
            if broke_off(raised):
                raise
            error = raised
    value, error = _tell((value, error))
    if error is not None:
        raise error
    return value


def shared(function: Callable[..., Result]) -> Callable[..., Result]:
    """`function`, run by the leader alone; see `agree`."""

    @functools.wraps(function)
    def by_leader(*args, **options):
        return agree(functools.partial(function, *args, **options))

    return by_leader


def _tell(value):
    """The leader's value, sent to all."""
    from jax.experimental.multihost_utils import broadcast_one_to_all

    content = pickle.dumps(value)
    length = int(broadcast_one_to_all(np.int32(len(content))))
    # Of a power of two, so that few programs are compiled.
    padded = np.zeros(1 << (length - 1).bit_length(), np.uint8)
    if leading():
        padded[:length] = np.frombuffer(content, np.uint8)
    return pickle.loads(broadcast_one_to_all(padded)[:length].tobytes())
