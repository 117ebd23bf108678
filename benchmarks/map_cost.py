"""A step of a map, compared with the step of a replay that it covers.

A map takes the golden and the faulty step by an executable that returns the result of every operation, and compares all
tensors on the device.  The state that it begins with differs in one element, so everything that can differ does.  The
replay takes its step as after a fault, and fetches the report.  Beside these steps a map takes the replay's own, to see
that both have the same bits: that is one step of the replay more, and is not in this ratio.
"""

import jax
import numpy as np
import ours
import pairs

from fault_injection.runs.fault_map import told_by
from fault_injection.runs.golden_run import nudge
from fault_injection.runs.lockstep import Lockstep

BOUND = 3.0


def main():
    options = pairs.parse(__doc__, workloads=None)
    found = pairs.start(options)
    pairs.show_machine(found)

    contestant = ours.make(options, frozenset())
    program, w = contestant.program, contestant.workload
    telling = w.program(frozenset(), devices=1, reductions=told_by(program)[0])
    state, batch = ours.start(contestant), program.batch(0, 0)
    nudged = program.place(nudge(program, jax.device_get(state)))
    taken = Lockstep(program, telling.faulty_step, state, None, check=lambda at, told: None)

    def lockstep():
        """From the same two states in each round."""
        taken._state, taken.compared = state, []
        return taken.program.step(nudged, batch, 0, 0)

    def replay():
        new, told = program.step(jax.tree.map(lambda leaf: leaf.copy(), state), batch, 0, 0)
        return new, jax.device_get(told)

    seconds = pairs.alternate({"replay": replay, "lockstep": lockstep}, options.pairs)
    shares = [np.mean([each.differs > 0 for each in one.differences.values()]) for one in taken.compared]
    print(f"tensors that differ: {shares[-1]:.0%} of {len(taken.compared[-1].differences)}")
    pairs.show_times(seconds)
    text = f"a map's step / a replay's, {ours.size(contestant)}"
    pairs.write(options, found, [pairs.claim(text, seconds["lockstep"] / seconds["replay"], BOUND)], seconds=seconds)


if __name__ == "__main__":
    main()
