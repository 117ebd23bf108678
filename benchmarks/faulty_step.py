"""A step with a fault against the fault-free step.

The faulty step is another executable, with a conditional at every operation, and its state survives, so that
the control can start from it.  It runs once or twice an experiment.  Struck are an early and a late layer, in
each of their three operations, and the first convolution's input gradient, which is computed only when
struck; an inactive fault is the control.  The struck operation is computed in the published form, clean and
faulty, whichever operand is struck.
"""

import functools

import ours
import pairs

from models.fault import Operand, inactive_fault, make_fault

BOUND = 1.25
LAYERS = ("basicblock_1_basic_0_conv1", "basicblock_4_basic_1_conv2")
SITES = [f"{layer}{operation}" for layer in LAYERS for operation in ("", "_grad_in", "_grad_wt")] + ["conv1_grad_in"]
SIGN = 0x80000000


def main():
    options = pairs.parse(__doc__)
    found = pairs.start(options)
    pairs.show_machine(found)

    session = ours.make_session(options.width)
    state, batch = session.start(), session.program.place(ours.host_batches(session)[0])
    step = functools.partial(session.program.faulty_step, state, batch, ours.address(session, 0))
    faults = {site: make_fault(site, Operand.OUTPUT, 3, [5], flip=SIGN) for site in SITES}
    for site, fault in faults.items():
        if step(fault)[1].struck.hits != 1:
            raise SystemExit(f"the fault did not strike {site}")
    contestants = {"plain": ours.training(session), "inactive fault": functools.partial(step, inactive_fault())}
    contestants |= {site: functools.partial(step, fault) for site, fault in faults.items()}
    seconds = pairs.alternate(contestants, options.pairs)
    pairs.show_times(seconds)
    claims = [
        pairs.claim(f"faulty / plain step, width {options.width}, {name}", seconds[name] / seconds["plain"], BOUND)
        for name in contestants
        if name != "plain"
    ]
    pairs.write(options, found, claims, seconds=seconds)


if __name__ == "__main__":
    main()
