"""A step with a fault, compared with the fault-free step.

The faulty step is another executable, with a conditional at every operation.  It does not overwrite its input state, so
that the control can start from the same state.  An experiment runs it once or twice.

The faults strike two early layers and a late one, in each of their three operations.  One more fault strikes the first
convolution's input gradient, which is computed only when it is struck.  The control is a step with an inactive fault.
Whichever operand is struck, the operation is computed in its published form, once clean and once faulty.
"""

import functools

import ours
import pairs

from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.site import make_fault

BOUND = 1.25
SIGN = 0x80000000


def main():
    options = pairs.parse(__doc__, workloads=None)
    found = pairs.start(options)
    pairs.show_machine(found)

    contestant = ours.make(options)
    known = contestant.workload.sites()
    first, *layers, _ = (name for name, site in known.items() if site.stage == "forward")
    chosen = (layers[0], layers[1], layers[-1])
    sites = [f"{layer}{operation}" for layer in chosen for operation in ("", "_grad_in", "_grad_wt")]
    sites.append(f"{first}_grad_in")
    program = contestant.program
    step = functools.partial(program.faulty_step, ours.start(contestant), program.batch(0, 0), 0, 0)
    faults = {site: make_fault(known[site], Operand.OUTPUT, 3, [5], flip=SIGN) for site in sites}
    for site, fault in faults.items():
        if step(fault)[1].struck.hits != 1:
            raise SystemExit(f"the fault did not strike {site}")
    contestants = {"plain": ours.training(contestant), "inactive fault": functools.partial(step, inactive_fault())}
    contestants |= {site: functools.partial(step, fault) for site, fault in faults.items()}
    seconds = pairs.alternate(contestants, options.pairs)
    pairs.show_times(seconds)
    claims = [
        pairs.claim(f"faulty / plain step, {ours.size(contestant)}, {name}", seconds[name] / seconds["plain"], BOUND)
        for name in contestants
        if name != "plain"
    ]
    pairs.write(options, found, claims, seconds=seconds)


if __name__ == "__main__":
    main()
