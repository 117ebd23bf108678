"""The loss head: what is minimised, and the metric logged beside it."""

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, labels: jax.Array):
    """Softmax cross-entropy from the logits, per example, with its gradient.

    Args:
      logits: [R,b,classes].
      labels: int32 [R,b].

    Returns:
      loss [R,b]; correct, bool [R,b], whether the largest logit is the label's; dlogits
      [R,b,classes], the gradient of each example's own loss: softmax(logits) − onehot(labels).
    """
    log_p = jax.nn.log_softmax(logits)
    label = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    loss = -jnp.sum(jnp.where(label > 0, log_p, 0), -1)
    correct = jnp.argmax(logits, -1) == labels
    return loss, correct, jnp.exp(log_p) - label
