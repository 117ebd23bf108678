"""The explicit training step, compared with `jax.value_and_grad` of the same network in Flax Linen.

Our step does the forward and backward passes of 8 workers and Adam, and computes digests and magnitudes.  Linen's
computes the loss, gradients by `value_and_grad` and the same Adam; it is jitted with donation and the default compiler
options.  Dropout is 0.  Batch normalisation is per worker in ours and over the whole batch in Linen's, which is no more
work for Linen.

At the start both networks must give the same loss and gradients in float64, with one worker that holds the whole batch.
The timed contestants compute in float32.
"""

import functools
import itertools

import jax
import linen
import numpy as np
import optax
import ours
import pairs

BOUNDS = {("resnet18", 64): 0.25}
BOUND = 0.85  # for all others


def value_and_grad(network, params, stats, image, label):
    """`(loss, new statistics), gradients` by automatic differentiation."""

    def loss(params):
        variables = {"params": params, "batch_stats": stats}
        logits, new = network.apply(variables, image, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean(), new["batch_stats"]

    return jax.value_and_grad(loss, has_aux=True)(params)


def training(contestant):
    """A function that does Linen's next training step on the same batches as ours."""
    network, optimizer = linen.make_network(contestant.workload), contestant.workload.recipe().optimizer

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, image, label):
        params, stats, opt_state = state
        (loss, stats), grads = value_and_grad(network, params, stats, image, label)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), stats, opt_state), loss

    start = ours.start(contestant)
    params = linen.to_linen(start.params)
    state = params, start.stats, optimizer.init(params)
    batches = itertools.cycle(jax.device_put(ours.whole_batches(contestant)))

    def step():
        nonlocal state
        state, loss = train(state, *next(batches))
        return state, loss

    return step


def loss_and_gradients(contestant, params, image, label):
    """Linen's loss and gradients of one batch, under our names, computed in float64."""
    passes = jax.jit(functools.partial(value_and_grad, linen.make_network(contestant.workload)))
    operands = linen.to_linen(params), ours.start(contestant).stats, image
    with jax.enable_x64(True):
        (loss, _), grads = jax.device_get(passes(*ours.as_dtype(operands, np.float64), label))
    return float(loss), linen.from_linen(grads)


def check(contestant):
    """Stop unless both compute the same in float64, with equal parameters and one worker that holds the whole batch."""
    batch, params = ours.batch_to_compare(), ours.opened(ours.start(contestant).params)
    expected = ours.reference_gradients(contestant, params, *batch)
    ours.require_same("Linen's", expected, loss_and_gradients(contestant, params, *batch))


def main():
    options = pairs.parse(__doc__, workloads=tuple(linen.NETWORKS))
    found = pairs.start(options)
    pairs.show_machine(found)
    contestant = ours.make(options)
    check(contestant)
    contestants = {"explicit step": ours.training(contestant), "value_and_grad of Linen": training(contestant)}
    seconds = pairs.alternate(contestants, options.pairs)
    pairs.show_times(seconds)
    ratios = seconds["explicit step"] / seconds["value_and_grad of Linen"]
    what = f"explicit step / value_and_grad of the Linen network, {ours.size(contestant)}"
    claims = [pairs.claim(what, ratios, BOUNDS.get((contestant.workload.name, contestant.workload.width), BOUND))]
    pairs.write(options, found, claims, seconds=seconds)


if __name__ == "__main__":
    main()
