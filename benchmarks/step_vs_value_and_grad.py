"""The explicit training step against `jax.value_and_grad` of the same network in Flax Linen.

Ours: forward and backward pass of 8 workers, Adam, digests and magnitudes. Theirs: loss, gradients by
`value_and_grad`, the same Adam, jitted with donation and default compiler options. Batch 128, dropout 0.
Batch normalisation is per worker in ours and over the whole batch in Linen's, which is no more work for
Linen: the comparison is on the safe side. At the start, with one worker that holds the whole batch, both
must give the same loss and gradients.
"""

import functools
import itertools

import flax.linen as nn
import jax
import optax
import ours
import pairs

from fault_injection.workloads import make_optimizer

BOUNDS = {64: 0.25, 8: 0.85}


class ResNet18(nn.Module):
    """`models.resnet.resnet18` without dropout, [N,32,32,3] -> [N,10]; the modules have our layers' names."""

    width: int

    @nn.compact
    def __call__(self, x):
        def convolution(name, x, features, size, stride=1):
            return nn.Conv(features, (size, size), stride, padding="SAME", name=name)(x)

        def norm(name, x):
            return nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-3, name=name)(x)

        x = nn.relu(norm("bn1", convolution("conv1", x, self.width, 7, 2)))
        for stage, i in itertools.product((1, 2, 3, 4), (0, 1)):
            name, features = f"basicblock_{stage}_basic_{i}", self.width * 2 ** (stage - 1)
            stride = 2 if stage > 1 and i == 0 else 1
            y = nn.relu(norm(f"{name}_bn1", convolution(f"{name}_conv1", x, features, 3, stride)))
            y = norm(f"{name}_bn2", convolution(f"{name}_conv2", y, features, 3))
            if stride != 1:
                x = norm(f"{name}_bn3", convolution(f"{name}_downsample", x, features, 1, stride))
            x = nn.relu(y + x)
        return nn.Dense(10, name="fc")(x.mean((1, 2)))


def to_linen(params):
    """Our parameters under Linen's names: a norm's `gamma` is its `scale`, and `beta` its `bias`."""
    linen = {"gamma": "scale", "beta": "bias"}
    return {layer: {linen.get(name, name): array for name, array in named.items()} for layer, named in params.items()}


def from_linen(params):
    """The inverse of `to_linen`."""

    def renamed(named):
        return {"gamma": named["scale"], "beta": named["bias"]} if "scale" in named else named

    return {layer: renamed(named) for layer, named in params.items()}


def value_and_grad(network, params, stats, image, label):
    """`(loss, new statistics), gradients` by automatic differentiation."""

    def loss(params):
        variables = {"params": params, "batch_stats": stats}
        logits, new = network.apply(variables, image, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean(), new["batch_stats"]

    return jax.value_and_grad(loss, has_aux=True)(params)


def training(session):
    """A function that does Linen's next training step, through the same batches."""
    network, optimizer = ResNet18(session.workload.width), make_optimizer(session.workload)

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, image, label):
        params, stats, opt_state = state
        (loss, stats), grads = value_and_grad(network, params, stats, image, label)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), stats, opt_state), loss

    start = session.start()
    params = to_linen(start.params)
    state = params, start.stats, optimizer.init(params)
    batches = itertools.cycle(jax.device_put(ours.whole_batches(session)))

    def step():
        nonlocal state
        state, loss = train(state, *next(batches))
        return state, loss

    return step


def check(session):
    """Both compute the same: one worker of the whole batch, equal parameters."""
    image, label = ours.whole_batches(session)[0]
    start = session.start()
    passes = jax.jit(functools.partial(value_and_grad, ResNet18(session.workload.width)))
    (loss, _), grads = jax.device_get(passes(to_linen(start.params), start.stats, image, label))
    expected = ours.reference_gradients(session, image, label)
    ours.require_same("Linen's", expected, (float(loss), from_linen(grads)))


def main():
    options = pairs.parse(__doc__)
    found = pairs.start(options)
    pairs.show_machine(found)
    session = ours.make_session(options.width)
    check(session)
    contestants = {"explicit step": ours.training(session), "value_and_grad of Linen": training(session)}
    seconds = pairs.alternate(contestants, options.pairs)
    pairs.show_times(seconds)
    ratios = seconds["explicit step"] / seconds["value_and_grad of Linen"]
    what = f"explicit step / value_and_grad of the Linen network, width {options.width}"
    claims = [pairs.claim(what, ratios, BOUNDS.get(options.width))]
    pairs.write(options, found, claims, seconds=seconds)


if __name__ == "__main__":
    main()
