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


def binary_cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cross-entropy of yes and no from one logit, per example, with its gradient.

    `max(z, 0) − z·y + log(1 + exp(−|z|))`, and σ(z) − y, which stays finite where the loss is not.

    Args:
      logits: [R,b,…,1].
      labels: integers [R,b,…], 1 or 0.

    Returns:
      loss [R,b,…]; correct, bool [R,b,…], whether the decision, `logit > 0`, is the label: that of a
      NaN is no; dlogits [R,b,…,1], the gradient of each example's own loss.

    >>> loss, correct, dlogits = binary_cross_entropy(jnp.array([[[2.0], [0.0]]]), jnp.array([[1, 0]]))
    >>> round(float(loss[0, 0]), 4), correct.tolist(), round(float(dlogits[0, 1, 0]), 4)
    (0.1269, [[True, True]], 0.5)
    """
    z, y = logits[..., 0], labels.astype(logits.dtype)
    loss = jnp.where(z > 0, z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))
    return loss, (z > 0) == (labels > 0), (jax.nn.sigmoid(z) - y)[..., None]


def predicted(logits: jax.Array) -> jax.Array:
    """The class that logits [R,b,…,classes] name, int32 [R,b,…]: of the largest, or 1 where a single one is positive.

    >>> predicted(jnp.array([[0.5, 2.0]])).tolist(), predicted(jnp.array([[0.5], [-2.0]])).tolist()
    ([1], [1, 0])
    """
    return (jnp.argmax(logits, -1) if logits.shape[-1] > 1 else logits[..., 0] > 0).astype(jnp.int32)
