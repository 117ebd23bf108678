"""What detectors have seen before a fault: the fault-free run, watched from its first step on."""

from ..machine.processes import say
from ..runs.follow import follow
from ..runs.golden_run import Golden, Repeats
from ..runs.steps import Address, addresses
from .detector import Memory
from .registry import AnyDetector, watcher


def memory_before(golden: Golden, detector: AnyDetector, epoch: int) -> Memory:
    """The memory of a detector that has watched the golden run up to, but not including, an epoch.

    The run is made again for it, because its record does not hold what detectors look at; each step
    is compared with the record.

    Args:
      golden: made as far as that, by a program that reports what the detector watches.

    Returns:
      None where the run has no step before.

    Raises:
      NotRepeated: a step differs from the record.
    """
    if epoch == golden.first:
        return None
    program, first = golden.program, Address(golden.first, 0)
    say(f"the detector watches the golden run up to epoch {epoch - 1}, which is made again for it")
    watch = watcher(program, detector)
    steps = addresses(first, Address(epoch, -1), program.steps_per_epoch)
    follow(program, golden.fetch_state_before(golden.first), steps, observers=[Repeats(golden), watch])
    return watch.memory
