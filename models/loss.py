"""The loss heads: what is minimised, and the metric logged beside it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

# (logits, targets) -> (loss, metric, gradient of each term's own loss with respect to the logits)
Head = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Softmax cross-entropy from the logits, per example, with its gradient.

    Args:
      logits: [R,b,…,classes].
      labels: integers [R,b,…].

    Returns:
      loss [R,b,…]; correct, bool [R,b,…], whether the largest logit is the label's; dlogits
      [R,b,…,classes], the gradient of each example's own loss: softmax(logits) − onehot(labels).

    >>> loss, correct, dlogits = cross_entropy(jnp.array([[[2.0, 0.0]]]), jnp.array([[0]]))
    >>> round(float(loss[0, 0]), 4), bool(correct[0, 0]), [round(float(d), 4) for d in dlogits[0, 0]]
    (0.1269, True, [-0.1192, 0.1192])
    """
    log_p = jax.nn.log_softmax(logits)
    label = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    loss = -jnp.sum(jnp.where(label > 0, log_p, 0), -1)
    correct = jnp.argmax(logits, -1) == labels
    return loss, correct, jnp.exp(log_p) - label


def nats_per_token(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`cross_entropy` of each token, of which the loss itself is the metric.

    >>> loss, metric, _ = nats_per_token(jnp.zeros((1, 1, 3, 2)), jnp.array([[[0, 1, 1]]]))
    >>> metric.shape, round(float(metric[0, 0, 2]), 4)
    ((1, 1, 3), 0.6931)
    """
    loss, _, dlogits = cross_entropy(logits, targets)
    return loss, loss, dlogits
