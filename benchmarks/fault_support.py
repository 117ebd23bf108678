"""The fault-free step as shipped, compared with the same network without any fault support.

The shipped fault-free step keeps its operations apart from their surroundings, so that it computes the same bits as the
step with faults.  It has no other fault support.  The contestant without fault support calls the same operations bare,
and the compiler may fuse across them.  A ratio below 1 says that this fusion gains nothing.  Both contestants return
digests and magnitudes.

The script also prints how many instructions the two compiled programs have (by opcode, where they differ) and how
much memory they need.
"""

import collections
import contextlib
import re
import sys
from unittest import mock

import jax
import numpy as np
import ours
import pairs

from fault_injection.models import isolation, strike
from fault_injection.models.layer import Observations

BOUND = 1.03
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\(", re.MULTILINE)
MEMORY = ("argument", "output", "alias", "temp", "generated_code")
KEPT_APART = ("optimization_barrier", "inlineable")  # in a program before compilation


@contextlib.contextmanager
def without_fault_support():
    """In this context, traced operations run bare: no isolation, no fence, no fault."""
    shipped = strike.perform

    def bare(operation, site, a, b, ctx, used=True):
        return operation.compute(a, b) if used else None, Observations()

    modules = [module for name, module in sys.modules.items() if name.startswith("fault_injection.models")]
    holders = [module for module in modules if getattr(module, "perform", None) is shipped]
    with contextlib.ExitStack() as stack:
        for module in holders:
            stack.enter_context(mock.patch.object(module, "perform", bare))
        # The shipped step also keeps the optimizer's update apart.
        nothing = lambda **_: contextlib.nullcontext()  # noqa: E731
        stack.enter_context(mock.patch.object(isolation, "set_xla_metadata", nothing))
        yield


def opcodes(compiled):
    """How many instructions of each opcode a compiled program has, including those inside fusions."""
    return collections.Counter(INSTRUCTION.findall(compiled.as_text()))


def memory(compiled):
    """Bytes that a compiled program needs, for each purpose."""
    analysis = compiled.memory_analysis()
    return {purpose: getattr(analysis, f"{purpose}_size_in_bytes") for purpose in MEMORY}


def main():
    options = pairs.parse(__doc__, workloads=None)
    found = pairs.start(options)
    pairs.show_machine(found)

    shipped, bare = ours.make(options), ours.make(options)
    contestants = {"as shipped": ours.training(shipped), "no fault support": ours.training(bare)}
    programs = {"as shipped": ours.lowered(shipped)}
    with without_fault_support():  # tracing happens in the first call
        programs["no fault support"] = ours.lowered(bare)
        _, first = jax.block_until_ready(contestants["no fault support"]())
    remains = [word for word in KEPT_APART if word in programs["no fault support"].as_text()]
    if remains:
        raise SystemExit(f"the program without fault support still has {remains}; update benchmarks/fault_support.py")
    _, expected = contestants["as shipped"]()
    np.testing.assert_allclose(first.loss, expected.loss, rtol=1e-3)

    seconds = pairs.alternate(contestants, options.pairs)
    pairs.show_times(seconds)
    compiled = {name: program.compile() for name, program in programs.items()}
    counts = {name: opcodes(program) for name, program in compiled.items()}
    needed = {name: memory(program) for name, program in compiled.items()}
    print("instructions of the compiled programs: as shipped, no fault support")
    ours_count, bare_count = counts.values()
    print(f"  {'total':24} {ours_count.total():6} {bare_count.total():6}")
    for opcode in sorted(ours_count | bare_count):
        if ours_count[opcode] != bare_count[opcode]:
            print(f"  {opcode:24} {ours_count[opcode]:6} {bare_count[opcode]:6}")
    print("memory of the compiled programs, MiB: as shipped, no fault support")
    for purpose in MEMORY:
        print(f"  {purpose:24} {' '.join(f'{bytes_[purpose] / 2**20:8.2f}' for bytes_ in needed.values())}")
    what = f"fault-free step / no fault support, {ours.size(shipped)}"
    claims = [pairs.claim(what, seconds["as shipped"] / seconds["no fault support"], BOUND, low_end=True)]
    pairs.write(options, found, claims, seconds=seconds, instructions=counts, memory_bytes=needed)


if __name__ == "__main__":
    main()
