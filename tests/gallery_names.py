"""In a program of an example, the gradient of a weight has the shape of what it is named after, and moves it alone."""

import re

import jax
import numpy as np

from fault_injection.any_step.site_names import names
from fault_injection.models.bits import host_words
from fault_injection.models.fault import Operand
from fault_injection.models.site import make_fault
from fault_injection.seam.leaves import Role

CLIPPED = ("shard_map",)  # by the norm of all gradients, so that each moves all


def check(program, sites, example):
    """How many gradients of weights were looked at; raises AssertionError where a name lies."""
    leaves = program.state.leaves
    shown = [name[1:] for name in names([("", leaf.name) for leaf in leaves])]
    weights = {name for name, leaf in zip(shown, leaves, strict=True) if leaf.role == Role.PARAMETER}
    # A moment's path ends as its parameter's.
    tails = {name: name.partition("/")[2] if "/" in name else name for name in weights}
    belongs = [
        {name for name in weights if f"/{leaf}".endswith((f"/{tails[name]}", f"/{tails[name]}/value"))}
        for leaf in shown
    ]
    shapes = dict(zip(shown, (np.shape(leaf) for leaf in jax.tree.leaves(program.state.abstract)), strict=True))
    state, batch, looked_at = program.place(program.init()), program.batch(0, 0), 0

    def after(fault):
        return jax.device_get(jax.tree.leaves(program.faulty_step(state, batch, 0, 0, fault)[0]))

    for name, site in sites.items():
        role, _, label = re.sub(r"#\d+$", "", name).partition(":")
        if role != "grad_wt" or "@" in label:
            continue
        gradient, turns = site.operands[Operand.OUTPUT], len(site.iterations)
        own, *given = (
            sorted(length for length in shape if length > 1)
            for shape in (shapes[label], gradient.shape, gradient.shape[turns:])
        )
        assert own in given, (name, own, given)
        high, low = (
            after(make_fault(site, Operand.OUTPUT, 0, [0], keep=0, flip=host_words(np.array([value], gradient.dtype))))
            for value in (3.0, -3.0)
        )
        moved = [k for k, (a, b) in enumerate(zip(high, low, strict=True)) if a.tobytes() != b.tobytes()]
        assert any(label in belongs[k] for k in moved), (name, [shown[k] for k in moved])
        others = [shown[k] for k in moved if belongs[k] and label not in belongs[k]]
        assert not others or example in CLIPPED, (name, others)
        looked_at += 1
    return looked_at
