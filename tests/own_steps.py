"""Training steps as users write them, and the same written out so that a fault can be put in by hand.

In a step that is written out, every product is `operation(name, turn, a, b)`, with the barriers of the reference
around it.  `by_hand` alters one of its operands with JAX's own `.at[…]`: nothing of the project is in it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DATA = np.random.default_rng(0)
IMAGES = DATA.standard_normal((4, 6, 6, 2), np.float32)
ROWS = DATA.standard_normal((5, 4), np.float32)


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def dot(x, w):
    return lax.dot_general(x, w, (((x.ndim - 1,), (0,)), ((), ())))


def plain(compute):
    """What makes a product of a user's step: the product alone."""
    return lambda name, turn, a, b: compute[name](a, b)


def fenced(x):
    return lax.optimization_barrier(x)


def altered(tensor, index, bits):
    words = lax.bitcast_convert_type(tensor, jnp.dtype(f"uint{8 * tensor.dtype.itemsize}"))
    return lax.bitcast_convert_type(words.at[index].set(jnp.asarray(bits, words.dtype)), tensor.dtype)


def by_hand(compute, site, operand, index, bits, iteration=None):
    """What makes a product of a step that was modified by hand: of one, an operand has an element with other bits.

    Where it is in a loop, both are computed, and one is selected.
    """

    def product(name, turn, a, b):
        a, b = fenced((a, b))
        clean = fenced(compute[name](a, b))
        if name != site:
            return clean
        if operand == "output":
            faulty = altered(clean, index, bits)
        else:
            changed = (altered(a, index, bits), b) if operand == "input" else (a, altered(b, index, bits))
            faulty = fenced(compute[name](*fenced(changed)))
        return faulty if iteration is None else jnp.where(turn == iteration, faulty, clean)

    return product


# A convolution, a dense layer, and their gradients, derived by hand.
SMALL = {
    "forward:conv": conv,
    "forward:fc": dot,
    "grad_wt:fc": lambda x, dy: lax.dot_general(x, dy, (((0,), (0,)), ((), ()))),
    "grad_in:fc": lambda dy, w: lax.dot_general(dy, w, (((1,), (1,)), ((), ()))),
}


def small_state():
    random = np.random.default_rng(1)
    return {
        "conv": random.standard_normal((3, 3, 2, 3), np.float32),
        "bias": np.zeros(3, np.float32),
        "fc": random.standard_normal((3 * 36, 5), np.float32) / 10,
    }


def small_loss(product):
    """A custom derivative for each operation, so that the gradients are products of the same function."""

    @jax.custom_vjp
    def fc(x, w):
        return product("forward:fc", 0, x, w)

    def fc_backward(kept, dy):
        x, w = kept
        return product("grad_in:fc", 0, dy, w), product("grad_wt:fc", 0, x, dy)

    fc.defvjp(lambda x, w: (fc(x, w), (x, w)), fc_backward)

    def loss(params, x):
        h = product("forward:conv", 0, x, params["conv"]) + params["bias"]
        y = fc(jnp.tanh(h).reshape(len(x), -1), params["fc"])
        return jnp.mean(y * y)

    return loss


def small_step(product):
    def step(state, batch):
        """The convolution does not learn, but the bias behind it does."""
        fixed, learned = {"conv": state["conv"]}, {"bias": state["bias"], "fc": state["fc"]}
        loss, grads = jax.value_and_grad(lambda some: small_loss(product)(fixed | some, batch))(learned)
        return fixed | jax.tree.map(lambda w, g: w - 0.1 * g, learned, grads), {"loss": loss}

    return step


# Layers in a scan, the way a Llama has them; a forward pass is enough to put a fault in by hand.
def scanned_state(dtype="float32"):
    random = np.random.default_rng(2)
    return {
        "up": jnp.asarray(random.standard_normal((3, 4, 6), np.float32), dtype),
        "down": jnp.asarray(random.standard_normal((3, 6, 4), np.float32) / 3, dtype),
    }


SCANNED = {"forward:up": dot, "forward:down": dot}


def scanned_step(product, remat=False):
    """The new state is what a gradient would be a function of: sums of the activations after each layer."""

    def layer(x, given):
        turn, up, down = given
        h = jnp.tanh(product("forward:up", turn, x, up))
        x = x + product("forward:down", turn, h, down)
        return x, jnp.sum(x, 0)

    body = jax.checkpoint(layer) if remat else layer

    def step(state, batch):
        x, seen = lax.scan(body, batch, (jnp.arange(3), state["up"], state["down"]))
        new = {"up": state["up"] + seen[:, :, None], "down": state["down"] - seen[:, None, :]}
        return new, {"loss": jnp.sum(x.astype(jnp.float32) ** 2)}

    return step


def llama_step(dtype="float32", remat=True):
    """Layers in a scan, differentiated, under a checkpoint."""

    def layer(x, p):
        h = jnp.tanh(jnp.dot(x, p["up"]))
        return x + jnp.dot(h, p["down"]), None

    body = jax.checkpoint(layer) if remat else layer

    def loss_of(params, x):
        x, _ = lax.scan(body, x, params)
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    @jax.jit
    def step(state, batch):
        loss, grads = jax.value_and_grad(loss_of)(state, batch.astype(dtype))
        return jax.tree.map(lambda w, g: w - jnp.asarray(0.1, w.dtype) * g, state, grads), {"loss": loss}

    return step
