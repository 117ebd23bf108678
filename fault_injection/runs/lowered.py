"""What a compiler makes of a program for some devices: whether it compiles, fits, and keeps its strikes."""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..machine.termination import heed

GIB = 2**30
# Memory of a device in bytes, by its kind, from Cloud TPU's documentation (system architecture, November 2026).  The
# devices of v2, v3 and v4 are cores, of which a chip has two; of the others they are chips.
MEMORY = {
    "TPU v2": 8 * GIB,
    "TPU v3": 16 * GIB,
    "TPU v4": 16 * GIB,
    "TPU v5 lite": 16 * GIB,
    "TPU v5": 95 * GIB,
    "TPU v6 lite": 32 * GIB,
}
MOST_OF_A_REASON = 300  # characters
EXCHANGES = ("all-reduce", "reduce-scatter", "all-gather", "collective-permute", "all-to-all")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What came of compiling one function for one device, of however many run it.

    Attributes:
      name: of the function.
      problem: why it does not compile, in a line; None where it does.
      seconds: that compiling took.
      memory: bytes that one device needs: arguments, results, and what is between.
      available: bytes that it has; None where that is not known.
      code: bytes of the executable.
      estimate: the compiler's own estimate of the time of a call in seconds, in which a strike counts as if it always
        ran; None where it gives none.
      flops: operations on floating-point numbers, as the compiler counts them.
      branches: conditionals and loops of the compiled program: each strike is one, beside those of the step itself.
      exchanges: operations of the compiled program in which devices exchange data.
    """

    name: str = ""
    problem: str | None = None
    seconds: float = 0.0
    memory: int = 0
    available: int | None = None
    code: int = 0
    estimate: float | None = None
    flops: float | None = None
    branches: int = 0
    exchanges: int = 0

    @property
    def wrong(self) -> str | None:
        """What is wrong with it; None where nothing is."""
        if self.problem is not None:
            return f"does not compile: {self.problem}"
        if self.available is not None and self.memory > self.available:
            return f"does not fit: {self.memory / 1e9:.1f} GB of {self.available / 1e9:.1f} GB"
        return None


def compile_all(functions: Mapping[str, Callable[[], Any]], device: Any) -> Iterator[Compiled]:
    """Compile functions, one after the other; one that was traced to the same program is not compiled again.

    Args:
      functions: each gives, by its name, what is compiled: `jax.stages.Lowered`.
      device: one of those that they are for.

    >>> import jax
    >>> sine = lambda: jax.jit(jax.numpy.sin).lower(jax.numpy.ones(8))
    >>> [(one.name, one.wrong, one.branches) for one in compile_all({"sine": sine, "again": sine}, jax.devices()[0])]
    [('sine', None, 0), ('again', None, 0)]
    """
    known: dict[str, Compiled] = {}
    for name, lower in functions.items():
        begun = time.monotonic()
        try:
            lowered = lower()
            traced = lowered.as_text()
            if traced not in known:
                known[traced] = _analysed(lowered.compile(), traced, device)
            found = known[traced]
        except Exception as error:  # the errors of compilers are of many kinds
            heed()  # what is raised after a signal may come of it
            reason = " ".join(str(error).split())[:MOST_OF_A_REASON]
            found = Compiled(problem=f"{type(error).__name__}: {reason}")
        yield dataclasses.replace(found, name=name, seconds=time.monotonic() - begun)


def _analysed(made: Any, traced: str, device: Any) -> Compiled:
    memory, text, cost = made.memory_analysis(), made.as_text(), made.cost_analysis() or {}
    cost = cost[0] if isinstance(cost, list) else cost  # as older versions of JAX give it
    arrays = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    estimate = cost.get("optimal_seconds", 0)
    return Compiled(
        memory=int(arrays + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes),
        available=MEMORY.get(device.device_kind),
        code=int(memory.generated_code_size_in_bytes),
        estimate=estimate if estimate > 0 else None,
        flops=cost.get("flops"),
        branches=_count("conditional|while", text),
        exchanges=_count("|".join(EXCHANGES), text),
    )


def _count(operations: str, text: str) -> int:
    """How many operations a compiled program has of some kinds; one that is begun and awaited is one."""
    return len(re.findall(rf" (?:{operations})(?:-start)?\(", text))
