"""A decoder-only transformer as Llama: RMS norms, rotary embedding, grouped queries, SwiGLU, no biases."""

from ..combinators import chain, multiplied, residual
from ..layer import Layer
from ..layers.activation import swish
from ..layers.attention import causal_attention
from ..layers.dense import dense
from ..layers.embedding import embedding, tied_head
from ..layers.heads import repeated_heads, split_heads
from ..layers.rms_norm import rms_norm
from ..layers.rotary import rotary


def transformer(
    vocabulary: int = 128,
    width: int = 64,
    blocks: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    tied: bool = True,
    hidden: int | None = None,
) -> Layer:
    """A language model: tokens [R,b,T] -> logits of the next tokens [R,b,T,vocabulary].

    Layers are named as Hugging Face names the modules of its Llama, with underscores for dots.

    Args:
      vocabulary: number of tokens.
      width: channels between the blocks, a multiple of `heads`.
      blocks: each an attention and a gated feed-forward part.
      heads: of the queries; each is `width / heads` wide, an even number.
      kv_heads: of keys and values; each serves `heads / kv_heads` heads of the queries.
      tied: whether the head shares the table of the embedding.
      hidden: channels inside a feed-forward part; by default 8/3 of the width, rounded up to a
        multiple of 16.

    Raises:
      ValueError: the heads do not divide the width, or the key/value heads the heads.

    Reference: Touvron et al., LLaMA, 2023; Shazeer, GLU Variants Improve Transformer, 2020.

    >>> params, _ = transformer(width=32).init((0,), (1, 2, 8))
    >>> params["layers_1_mlp_gate_proj"]["kernel"].shape, len(params)
    ((32, 96), 20)
    """
    if width % heads or heads % kv_heads:
        expected = "expected heads that divide the width, and kv_heads that divide the heads"
        raise ValueError(f"width {width} with {heads} heads and {kv_heads} kv_heads; {expected}")
    inner = -(-8 * width // 48) * 16 if hidden is None else hidden
    head = width // heads

    def block(name: str) -> Layer:
        attention, mlp = f"{name}_self_attn", f"{name}_mlp"
        grouped = repeated_heads(heads // kv_heads)
        attend = causal_attention(
            attention,
            chain(dense(f"{attention}_q_proj", width, bias=False), split_heads(heads), rotary()),
            chain(dense(f"{attention}_k_proj", kv_heads * head, bias=False), split_heads(kv_heads), rotary(), grouped),
            chain(dense(f"{attention}_v_proj", kv_heads * head, bias=False), split_heads(kv_heads), grouped),
        )
        gate = chain(dense(f"{mlp}_gate_proj", inner, bias=False), swish())
        feed_forward = multiplied(gate, dense(f"{mlp}_up_proj", inner, bias=False))
        return chain(
            residual(
                chain(rms_norm(f"{name}_input_layernorm"), attend, dense(f"{attention}_o_proj", width, bias=False))
            ),
            residual(
                chain(
                    rms_norm(f"{name}_post_attention_layernorm"),
                    feed_forward,
                    dense(f"{mlp}_down_proj", width, bias=False),
                )
            ),
        )

    return chain(
        embedding("embed_tokens", vocabulary, width),
        *(block(f"layers_{i}") for i in range(blocks)),
        rms_norm("norm"),
        tied_head("lm_head", "embed_tokens") if tied else dense("lm_head", vocabulary, bias=False),
    )
