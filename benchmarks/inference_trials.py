"""Inference trials: many in one compiled function / one evaluation of JAX, or of PyTorch, after the other.

Each contestant does the same trials: flips bits of parameters, runs all test examples through the
network, and counts the outputs that are wrong.  The plain loops change a copy of the struck parameter
on the host and hand it to one compiled (or eager) evaluation of the whole network.  They must count
what ours counts, but for outputs within rounding of their threshold.  `JAX` runs all examples as one
batch and counts on the device, the fastest loop that we could write.  `evaluate` is the project's own
evaluation, batch after batch, as somebody would use it who has a trained network; its time is scaled
to as many examples.

`dlrm`: for each component as many trials with 1, 2, 4 … 128 flips.  `resnet18`: single flips, as many in
each layer.
"""

import dataclasses
import functools

import numpy as np
import pairs

FLIPS = (1, 2, 4, 8, 16, 32, 64, 128)


def options_of(parser):
    parser.add_argument("--trials", type=int, default=256, help="of each component or layer (default %(default)s)")
    parser.add_argument("--without-torch", action="store_true", help="leave PyTorch out")


def main():
    options = pairs.parse(__doc__, options_of, ("dlrm", "resnet18"))
    machine = pairs.start(options)
    pairs.show_machine(machine)
    import jax

    from fault_injection.questions.vulnerability.components import (
        Component,
        names_of_components,
        names_of_layers,
    )
    from fault_injection.questions.vulnerability.criteria import Wanted
    from fault_injection.questions.vulnerability.plan import Cell, FaultKind, PvfPlan
    from fault_injection.questions.vulnerability.sampling import draw_trials
    from fault_injection.questions.vulnerability.trials import Trials
    from fault_injection.workloads.registry import find_workload

    workload = find_workload(options.workload)
    if options.workload == "resnet18":
        workload = workload.changed(dataset="digits", width=options.width or 8)
    program = workload.program(frozenset(), devices=1)
    state = program.place(program.init())
    for step in range(50):  # trained a little, so that outputs are no coin tosses
        state, _ = program.step(state, program.batch(*divmod(step, program.steps_per_epoch)), 0, step)
    state, tests = jax.device_get(state), program.forward_passes().tests()
    wanted, count = (Wanted("decision", 0.5), 8192) if options.workload == "dlrm" else (Wanted("class"), None)
    told = program.outputs(state, count, False)
    lab = Trials(workload, told, wanted)
    names = workload.parameters()
    groups = names_of_components([name.removeprefix("params/") for name in names], workload.components())
    groups = {name: [f"params/{leaf}" for leaf in leaves] for name, leaves in groups.items()}
    amounts = FLIPS
    if options.workload == "resnet18":
        groups, amounts = names_of_layers(names), (1,)
    loops = {"JAX": jax_loop(workload, state, told, wanted)}
    evaluations = evaluate_loop(program, state)
    share = lab.count / sum(
        int((np.asarray(batch["weight"]) > 0).any(tuple(range(2, batch["weight"].ndim))).sum()) for batch in tests
    )
    if options.workload == "dlrm" and not options.without_torch:
        loops["PyTorch"] = torch_loop(workload, state, told.inputs, machine["threads"])

    contestants = {}
    for name, leaves in groups.items():
        component = Component.of_parameters(name, workload, leaves)
        cells = [Cell(component, False, FaultKind("flips", float(amount)), options.trials) for amount in amounts]
        plan = PvfPlan(workload, 1, tuple(cells), tuple(range(32)), wanted, "float32", count, None, 0.95, 1)
        number = -(-options.trials // len(cells))
        faults = [fault for cell in cells for fault in draw_trials(plan, cell, part_of(plan, cell, number), lab.reads)]
        faults = faults[: options.trials]
        contestants[f"ours, {name}"] = functools.partial(lab.judge, component, faults)
        ours = lab.judge(component, faults).wrong
        contestants[f"evaluate, {name}"] = functools.partial(evaluations, component, faults)
        for other, loop in loops.items():
            contestants[f"{other}, {name}"] = functools.partial(loop, component, faults)
            theirs = loop(component, faults)
            apart = np.abs(ours - theirs)
            assert np.mean(apart > 2) < 0.05, (name, other, ours, theirs)  # a doubtful output here and there

    def run(function):
        return lambda: (function(), None)[1]

    seconds = pairs.alternate({name: run(function) for name, function in contestants.items()}, options.pairs, 1)
    seconds |= {name: values * share for name, values in seconds.items() if name.startswith("evaluate")}
    each = {name: values / options.trials for name, values in seconds.items()}
    pairs.show_times(each, " of a trial")
    claims = []
    for other in ("evaluate", *loops):
        bound = 1 / 3 if other == "PyTorch" else 0.2 if options.workload == "dlrm" else 0.5
        for name in groups if options.workload == "dlrm" else ():
            ratio = seconds[f"ours, {name}"] / seconds[f"{other}, {name}"]
            claims.append(pairs.claim(f"ours / {other} loop, {name}", ratio, None))
        ours, theirs = (sum(seconds[f"{who}, {name}"] for name in groups) for who in ("ours", other))
        claims.append(pairs.claim(f"ours / {other} loop, {options.workload}, all", ours / theirs, bound))
    pairs.write(options, machine, claims, seconds_of_a_trial=each)


def part_of(plan, cell, count):
    """So many trials of a cell, in each stratum as many as chance gives it by its size."""
    from fault_injection.questions.vulnerability.bit_strata import mean_reach, strata_of
    from fault_injection.questions.vulnerability.cell_blocks import BlockPart

    strata = strata_of(plan.bits, cell, mean_reach(plan, cell))
    of = np.sort(np.random.default_rng(1).choice(len(strata), count, p=[stratum.share for stratum in strata]))
    numbers = np.arange(count) - np.searchsorted(of, of)
    return BlockPart(0, 0, of, numbers % [strata[stratum].cases or count for stratum in of])


def jax_loop(workload, state, told, wanted):
    """A plain loop: parameters changed on the host, one compiled evaluation of the whole network for each trial."""
    import jax
    import jax.numpy as jnp

    from fault_injection.models.layer import Context

    inputs, targets = jnp.asarray(told.inputs), jnp.asarray(told.targets)
    network, params, stats = workload.recipe().network, jax.device_put(state.params), jax.device_put(state.stats)

    @jax.jit
    def logits(params):
        ctx = Context(jax.random.key(0), jnp.zeros(1, jnp.int32), train=False)
        return network.forward(params, stats, inputs[None], ctx)[0][0]

    @jax.jit
    def evaluate(params, clean):
        return jnp.sum(wanted.wrong(clean, logits(params), targets))

    clean = logits(params)

    def loop(component, faults):
        found = []
        for fault in faults:
            changed = {layer: dict(leaves) for layer, leaves in params.items()}
            for layer, name, leaf in struck(state, component, fault):
                changed[layer][name] = jnp.asarray(leaf)
            found.append(int(evaluate(changed, clean)))
        return np.array(found)

    return loop


def evaluate_loop(program, state):
    """A plain loop of the project's own evaluations, of a state changed on the host."""

    def loop(component, faults):
        for fault in faults:
            params = {layer: dict(leaves) for layer, leaves in state.params.items()}
            for layer, name, leaf in struck(state, component, fault):
                params[layer][name] = leaf
            program.evaluate(program.place(dataclasses.replace(state, params=params)))

    return loop


def torch_loop(workload, state, inputs, threads):
    """The same in PyTorch: the struck parameter is copied, and the network runs eagerly."""
    import torch

    torch.set_num_threads(threads)
    tables = len(workload.tables)
    dense = torch.from_numpy(np.ascontiguousarray(inputs[:, :-tables]).view(np.float32))
    indices = torch.from_numpy(np.ascontiguousarray(inputs[:, -tables:]).astype(np.int64))
    params = {
        layer: {name: torch.from_numpy(np.array(leaf)) for name, leaf in leaves.items()}
        for layer, leaves in state.params.items()
    }
    rows, columns = np.tril_indices(tables + 1, -1)
    below, above = (sum(name.startswith(part) for name in params) for part in ("bot_", "top_"))

    def perceptron(params, part, depth, x, relu_at_end):
        for i in range(depth):
            layer = params[f"{part}_{i}"]
            x = torch.addmm(layer["bias"], x, layer["kernel"])
            if relu_at_end or i + 1 < depth:
                x = torch.relu_(x)
        return x

    def logits(params):
        bottom = perceptron(params, "bot", below, dense, True)
        looked_up = [torch.nn.functional.embedding(indices[:, k], params[f"emb_{k}"]["table"]) for k in range(tables)]
        vectors = torch.stack([bottom, *looked_up], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
        return perceptron(params, "top", above, torch.cat([bottom, products], 1), False)[:, 0]

    def loop(component, faults):
        found = []
        for fault in faults:
            changed = {layer: dict(leaves) for layer, leaves in params.items()}
            for layer, name, leaf in struck(state, component, fault):
                changed[layer][name] = torch.from_numpy(leaf)
            faulty = logits(changed)
            found.append(int((((faulty > 0) != decided) | torch.isnan(faulty)).sum()))
        return np.array(found)

    with torch.inference_mode():
        decided = logits(params) > 0
    return torch.inference_mode()(loop)


def struck(state, component, fault):
    """The leaves that a fault changes, as copies with the fault in them."""
    leaf, index = component.where(fault.index)
    for number in np.unique(leaf):
        here = leaf == number
        _, layer, name = component.leaves[number].split("/")
        copy = np.array(state.params[layer][name])
        words = copy.reshape(-1).view(np.uint32)
        words[index[here]] = (words[index[here]] & fault.keep[here]) ^ fault.flip[here]
        yield layer, name, copy


if __name__ == "__main__":
    main()
