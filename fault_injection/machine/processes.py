"""Several processes that compute one run: each computes on its own devices, the first alone has files and a voice.

Every process runs the same program in the same order.  The first process, the leader, reads
what is on disk and tells the others, so that no two can decide differently.  It writes each
file once, and an error there is an error in all of them.

Processes talk to each other in two places only: inside a training step, which sums over all
devices, and where the code says `from_leader`.
"""

import contextvars
import pickle
import re
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from .errors import InputError, printable
from .termination import answer_termination

Told = TypeVar("Told")
STATUS = re.compile(r"[A-Z]+(_[A-Z]+)*: ")
HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead
# Whether the leader is running something that the other processes are waiting for.
_alone = contextvars.ContextVar("_alone", default=False)


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Make this process one of several that compute together; to be called before JAX's first computation.

    Args:
      coordinator: `HOST:PORT` where process 0 listens, or `auto` on a cluster that JAX knows
        (Cloud TPU, Slurm, Open MPI, Kubernetes), which also tells the other two arguments.
      processes: how many there are.
      process: number of this one, from 0.

    Raises:
      InputError: `auto` outside of such a cluster.
      JaxRuntimeError: the processes did not find each other.
    """
    import jax

    if coordinator == "auto":
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        except ValueError:  # JAX lacks what the cluster would have told
            hint = "say --coordinator HOST:PORT --processes N --process I"
            raise InputError(f"--coordinator auto: this is no cluster that JAX knows; {hint}") from None
    else:
        jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT)
    if callable(signal.getsignal(signal.SIGTERM)):  # JAX has put its own in the place of ours, which only takes notice
        answer_termination()


def broke_off(error: Exception) -> bool:
    """Whether an error says that a device, another process or memory was lost.

    >>> broke_off(ValueError("UNAVAILABLE: the other task died")), broke_off(ValueError("no such key"))
    (True, False)
    """
    from jax.errors import JaxRuntimeError

    # A collective that fails where a program starts raises a ValueError, which begins with the runtime's status.
    return isinstance(error, JaxRuntimeError) or (isinstance(error, ValueError) and bool(STATUS.match(str(error))))


def leading() -> bool:
    """Whether this is the leader, which reads, writes and speaks.  A single process is its own leader.

    >>> leading()
    True
    """
    if "jax" not in sys.modules:  # one of several has joined them through JAX
        return True
    import jax

    # Asked first: to ask for the process's number makes JAX's backend, and a user's file may have to set it up.
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def say(line: str) -> None:
    """Tell the person at the terminal one line, on standard error; what a terminal would act on is escaped."""
    if leading():
        print(printable(line), file=sys.stderr, flush=True)


def from_leader(function: Callable[[], Told]) -> Told:
    """Run `function` in the leader, and return its value in every process.

    Every process has to reach this call, in the same order as all others.  Where there are
    several processes, the value is pickled and broadcast.  Within `function` only the leader
    is running, so a nested call runs its own function directly.

    Args:
      function: takes nothing; what it reads or writes is the leader's.

    Raises:
      Exception: what `function` raised in the leader, in every process.

    >>> from_leader(lambda: sorted(["0019.npz", "0007.npz"]))
    ['0007.npz', '0019.npz']
    """
    import jax

    if not jax.distributed.is_initialized() or jax.process_count() == 1 or _alone.get():
        return function()
    outcome: tuple[Told | None, Exception | None] = None, None
    if leading():
        token = _alone.set(True)
        try:
            outcome = function(), None
        except Exception as error:  # the others are waiting, whatever it is; unless there is nobody left to tell
            if broke_off(error):
                raise
            outcome = None, error
        finally:
            _alone.reset(token)
    value, raised = _broadcast(outcome)
    if raised is not None:
        raise raised
    return value  # type: ignore[return-value]  # None only where `function` returned it


def _broadcast(value: Told) -> Told:
    """The leader's value, in every process."""
    from jax.experimental.multihost_utils import broadcast_one_to_all

    content = pickle.dumps(value)
    length = int(broadcast_one_to_all(np.int32(len(content))))
    # The size is a power of two, so that few programs are compiled.
    padded = np.zeros(1 << (length - 1).bit_length(), np.uint8)
    if leading():
        padded[:length] = np.frombuffer(content, np.uint8)
    return pickle.loads(broadcast_one_to_all(padded)[:length].tobytes())
