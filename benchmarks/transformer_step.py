"""The explicit training step of the transformer, compared with Flax (with and without `jax.checkpoint`) and PyTorch.

Our step does the forward and backward passes of 4 workers, clipping and AdamW, and computes digests and magnitudes.
Flax's computes the loss, gradients by `value_and_grad` and the same optimizer; it is jitted with donation and the
default compiler options, once as it is and once with every block under `jax.checkpoint`.  PyTorch's is Hugging Face's
`LlamaForCausalLM` with scaled dot-product attention, eager and compiled, `clip_grad_norm_` and `torch.optim.AdamW`.

At the start all networks must give the same loss and gradients in float64.  The timed contestants compute in float32.
PyTorch is optional: `pip install torch transformers`.  The memory of compiled programs is compared too.
"""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import ours
import pairs

from fault_injection.explicit.optimizers import clipped_adamw
from fault_injection.machine.environment import number_of_threads

BOUNDS = {
    "value_and_grad of Flax": 1.0,
    "value_and_grad of Flax with jax.checkpoint": 1.0,
    "PyTorch eager": 1.0,
    "PyTorch compiled": 1.1,
}
RATE = 1e-3


class Norm(nn.Module):
    """`models.layers.rms_norm`."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def rotated(x):
    """`models.layers.rotary` of x [N,H,T,D]."""
    length, width = x.shape[-2:]
    angle = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, width, 2) / width))
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    """One block; its modules have the names of our layers."""

    name_of: str
    heads: int
    kv_heads: int
    hidden: int

    @nn.compact
    def __call__(self, x):
        width, name = x.shape[-1], self.name_of

        def dense(part, features, x):
            return nn.Dense(features, use_bias=False, name=f"{name}_{part}")(x)

        def split(x, heads):
            return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

        size, times = width // self.heads, self.heads // self.kv_heads
        y = Norm(name=f"{name}_input_layernorm")(x)
        q = rotated(split(dense("self_attn_q_proj", width, y), self.heads))
        k = rotated(split(dense("self_attn_k_proj", self.kv_heads * size, y), self.kv_heads))
        v = split(dense("self_attn_v_proj", self.kv_heads * size, y), self.kv_heads)
        k, v = (jnp.repeat(t, times, 1) for t in (k, v))
        scores = q @ k.mT * size**-0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        p = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min))
        x = x + dense("self_attn_o_proj", width, (p @ v).swapaxes(1, 2).reshape(x.shape))
        y = Norm(name=f"{name}_post_attention_layernorm")(x)
        gate = nn.swish(dense("mlp_gate_proj", self.hidden, y)) * dense("mlp_up_proj", self.hidden, y)
        return x + dense("mlp_down_proj", width, gate)


class Llama(nn.Module):
    """`models.networks.transformer.transformer` with a tied head, [N,T] -> [N,T,vocabulary]."""

    vocabulary: int
    width: int
    blocks: int
    heads: int
    kv_heads: int
    hidden: int
    checkpoint: bool

    @nn.compact
    def __call__(self, tokens):
        table = nn.Embed(self.vocabulary, self.width, name="embed_tokens")
        block = nn.checkpoint(Block) if self.checkpoint else Block
        x = table(tokens)
        for i in range(self.blocks):
            x = block(f"layers_{i}", self.heads, self.kv_heads, self.hidden, name=f"block_{i}")(x)
        return table.attend(Norm(name="norm")(x))


def hidden_of(params):
    return params["layers_0_mlp_up_proj"]["kernel"].shape[1]


def flax_network(contestant, checkpoint=False):
    w = contestant.workload
    hidden = hidden_of(contestant.program.init().params)
    return Llama(w.vocabulary, w.width, w.blocks, w.heads, w.kv_heads, hidden, checkpoint)


def to_flax(params):
    """Our parameters as the Flax network names them."""
    found = {}
    for layer, named in params.items():
        place = found.setdefault(f"block_{layer.split('_')[1]}", {}) if layer.startswith("layers_") else found
        place[layer] = {{"table": "embedding"}.get(name, name): value for name, value in named.items()}
    return found


def from_flax(grads):
    """Flax's gradients under our names."""
    flat = {}
    for name, entry in grads.items():
        flat |= entry if name.startswith("block_") else {name: entry}
    return {
        layer: {{"embedding": "table"}.get(n, n): value for n, value in named.items()} for layer, named in flat.items()
    }


def value_and_grad(network, params, tokens, targets):
    def loss(params):
        logits = network.apply({"params": params}, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return jax.value_and_grad(loss)(params)


def flat_batches(contestant):
    """The batches of epoch 0 without workers: tokens and targets [N,T]."""
    found = [contestant.batches.train(0, step) for step in range(8)]
    return [tuple(b[key].reshape(-1, b[key].shape[-1]) for key in ("input", "target")) for b in found]


def flax_step(contestant, checkpoint):
    """The jitted step of Flax, and its first state."""
    network, optimizer = flax_network(contestant, checkpoint), clipped_adamw(RATE)

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, tokens, targets):
        params, opt_state = state
        loss, grads = value_and_grad(network, params, tokens, targets)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    params = to_flax(ours.start(contestant).params)
    return train, (params, optimizer.init(params))


def flax_training(contestant, checkpoint):
    train, state = flax_step(contestant, checkpoint)
    batches = itertools.cycle(jax.device_put(flat_batches(contestant)))

    def step():
        nonlocal state
        state, loss = train(state, *next(batches))
        return state, loss

    return step


def torch_network(contestant):
    """Hugging Face's module with our initial parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    w, params = contestant.workload, jax.device_get(contestant.program.init().params)
    config = LlamaConfig(
        vocab_size=w.vocabulary,
        hidden_size=w.width,
        intermediate_size=hidden_of(params),
        num_hidden_layers=w.blocks,
        num_attention_heads=w.heads,
        num_key_value_heads=w.kv_heads,
        max_position_embeddings=w.context,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        use_cache=False,
    )
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer, name, parameter in named_like_ours(network):
            value = params[layer][name]
            parameter.copy_(torch.from_numpy(np.array(value.T if name == "kernel" else value)))
    return network.train()


def named_like_ours(network):
    """Our layer and name of each parameter of Hugging Face's module."""
    for path, parameter in network.named_parameters():
        layer = path.removeprefix("model.").removesuffix(".weight").replace(".", "_")
        yield layer, "table" if layer == "embed_tokens" else "kernel" if parameter.ndim == 2 else "scale", parameter


def torch_loss(network, tokens, targets):
    import torch.nn.functional as F

    return F.cross_entropy(network(tokens).logits.flatten(0, 1), targets.flatten())


def torch_training(contestant, compiled):
    import torch

    network = torch_network(contestant)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, (0.9, 0.95), 1e-8, 0.1)
    batches = itertools.cycle([[torch.from_numpy(t).long() for t in batch] for batch in flat_batches(contestant)])
    loss_of = functools.partial(torch_loss, torch.compile(network) if compiled else network)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(*next(batches)).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    return step


def check(contestant, with_torch):
    """Stop unless all networks compute the same loss and gradients in float64."""
    tokens, targets = flat_batches(contestant)[0]
    params = contestant.program.init().params
    expected = ours.reference_gradients(contestant, params, tokens, targets)
    for checkpoint in (False, True):
        with jax.enable_x64(True):
            operands = ours.as_dtype(to_flax(params), np.float64)
            loss, grads = jax.jit(functools.partial(value_and_grad, flax_network(contestant, checkpoint)))(
                operands, tokens, targets
            )
        ours.require_same("Flax's", expected, (float(loss), from_flax(jax.device_get(grads))))
    if with_torch:
        import torch

        network = torch_network(contestant).double()
        loss = torch_loss(network, torch.from_numpy(tokens).long(), torch.from_numpy(targets).long())
        loss.backward()
        grads = {}
        for layer, name, parameter in named_like_ours(network):
            gradient = parameter.grad.numpy()
            grads.setdefault(layer, {})[name] = gradient.T if name == "kernel" else gradient
        ours.require_same("Hugging Face's", expected, (loss.item(), grads), 1e-5)  # its angles are float32


def memory(contestant):
    """Bytes beside arguments and results that the compiled steps need."""
    lowered = {"explicit step": ours.lowered(contestant)}
    for checkpoint in (False, True):
        train, state = flax_step(contestant, checkpoint)
        name = "value_and_grad of Flax" + (" with jax.checkpoint" if checkpoint else "")
        lowered[name] = train.lower(state, *flat_batches(contestant)[0])
    return {name: each.compile().memory_analysis().temp_size_in_bytes for name, each in lowered.items()}


def more(parser):
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--without-torch", action="store_true", help="compare with Flax alone")
    parser.set_defaults(workload="transformer", width=512, batch_size=8, pairs=20)


def main():
    options = pairs.parse(__doc__, more, workloads=("transformer",))
    found = pairs.start(options)
    if not options.without_torch:
        import torch
        import transformers

        torch.set_num_threads(number_of_threads())
        found |= {"torch": torch.__version__, "transformers": transformers.__version__}
    pairs.show_machine(found)
    contestant = ours.make(options)
    check(contestant, not options.without_torch)
    contestants = {
        "explicit step": ours.training(contestant),
        "value_and_grad of Flax": flax_training(contestant, False),
        "value_and_grad of Flax with jax.checkpoint": flax_training(contestant, True),
    }
    if not options.without_torch:
        contestants |= {f"PyTorch {m}": torch_training(contestant, m == "compiled") for m in ("eager", "compiled")}
    seconds = pairs.alternate(contestants, options.pairs)
    pairs.show_times(seconds)
    claims = [
        pairs.claim(f"explicit step / {name}, {ours.size(contestant)}", seconds["explicit step"] / seconds[name], bound)
        for name, bound in BOUNDS.items()
        if name in seconds
    ]
    needed = memory(contestant)
    for name, bytes_ in needed.items():
        print(
            f"memory of the compiled {name}: {bytes_ / 2**20:.1f} MiB ({bytes_ / needed['explicit step']:.2f} x ours)"
        )
    pairs.write(options, found, claims, seconds=seconds, memory_bytes=needed)


if __name__ == "__main__":
    main()
