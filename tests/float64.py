"""Backward passes against `jax.vjp` in float64, in a process of its own: the precision holds for a whole process.

    float64.py [NAME...]

Prints a JSON object with the largest error of each row named; by default, of each that is not a whole network.
`published_forms` names the rows that compare the published form of each operation with its fast one.
"""

import functools
import json
import sys

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from fault_injection.models.combinators import chain, concatenated, gated, multiplied, residual  # noqa: E402
from fault_injection.models.layer import Context, Layer  # noqa: E402
from fault_injection.models.layers.activation import relu, sigmoid, swish  # noqa: E402
from fault_injection.models.layers.attention import causal_attention  # noqa: E402
from fault_injection.models.layers.convolution import convolution, depthwise_convolution  # noqa: E402
from fault_injection.models.layers.dense import dense  # noqa: E402
from fault_injection.models.layers.dropout import dropout  # noqa: E402
from fault_injection.models.layers.embedding import embedding, sparse_embedding, tied_head  # noqa: E402
from fault_injection.models.layers.gain import skip_gain  # noqa: E402
from fault_injection.models.layers.heads import repeated_heads, split_heads  # noqa: E402
from fault_injection.models.layers.interaction import columns, dot_interaction  # noqa: E402
from fault_injection.models.layers.normalisation import batch_norm  # noqa: E402
from fault_injection.models.layers.pooling import global_average  # noqa: E402
from fault_injection.models.layers.rms_norm import rms_norm  # noqa: E402
from fault_injection.models.layers.rotary import rotary  # noqa: E402
from fault_injection.models.layers.standardisation import standardised_convolution  # noqa: E402
from fault_injection.models.loss import binary_cross_entropy, cross_entropy  # noqa: E402
from fault_injection.models.networks import NETWORKS  # noqa: E402
from fault_injection.models.networks.dlrm import dlrm  # noqa: E402
from fault_injection.models.networks.transformer import transformer  # noqa: E402

VOCABULARY = 11  # of layers that take tokens


def shrunk(layer, factor=1e-4):
    """`layer` with parameters `factor` times as large as drawn."""

    def smaller(params):
        return jax.tree.map(lambda p: factor * p, params)

    def forward(params, stats, x, ctx):
        return layer.forward(smaller(params), stats, x, ctx)

    def backward(params, cache, dy, ctx):
        dx, dparams, observations = layer.backward(smaller(params), cache, dy, ctx)
        return dx, smaller(dparams), observations

    return Layer(layer.init, forward, backward)


def projected(name, heads, *layers):
    """A branch of an attention: a projection to heads of width 4, and what follows."""
    return chain(dense(name, 4 * heads, bias=False), split_heads(heads), *layers)


# Name: (layer, shape of its input [R,b,…]).  A new layer is one more row.
LAYERS = {
    "convolution_1x1": (convolution("c", 5, 1), (2, 3, 4, 4, 6)),
    "convolution_1x1_stride2": (convolution("c", 5, 1, 2), (2, 3, 8, 8, 6)),
    "convolution_3x3": (convolution("c", 5, 3), (2, 3, 8, 8, 6)),
    "convolution_3x3_on_4x4": (convolution("c", 40, 3), (2, 3, 4, 4, 36)),
    "convolution_3x3_on_2x2": (convolution("c", 40, 3), (2, 3, 2, 2, 36)),
    "convolution_3x3_on_1x1": (convolution("c", 5, 3), (2, 3, 1, 1, 6)),
    "convolution_3x3_not_square": (convolution("c", 5, 3), (2, 3, 4, 8, 6)),
    "convolution_3x3_stride2": (convolution("c", 5, 3, 2), (2, 3, 8, 8, 6)),
    "convolution_3x3_stride2_wide": (convolution("c", 40, 3, 2), (2, 3, 8, 8, 36)),
    "convolution_3x3_stride2_to_2x2": (convolution("c", 40, 3, 2), (2, 3, 4, 4, 36)),
    "convolution_7x7_stride2": (convolution("c", 5, 7, 2), (2, 3, 16, 16, 3)),
    "convolution_without_bias": (convolution("c", 5, 3, bias=False), (2, 3, 4, 4, 6)),
    "depthwise_3x3": (depthwise_convolution("c", 3), (2, 3, 8, 8, 6)),
    "depthwise_3x3_stride2": (depthwise_convolution("c", 3, 2), (2, 3, 8, 8, 6)),
    "depthwise_5x5_stride2": (depthwise_convolution("c", 5, 2), (2, 3, 8, 8, 6)),
    "depthwise_5x5_stride2_to_1x1": (depthwise_convolution("c", 5, 2), (2, 3, 2, 2, 6)),
    "depthwise_5x5_on_2x2": (depthwise_convolution("c", 5), (2, 3, 2, 2, 6)),
    "depthwise_5x5_on_1x1": (depthwise_convolution("c", 5), (2, 3, 1, 1, 6)),
    "depthwise_3x3_not_square": (depthwise_convolution("c", 3), (2, 3, 4, 8, 6)),
    "dense": (dense("d", 7), (2, 3, 6)),
    "dense_on_sequences": (dense("d", 7), (2, 3, 5, 6)),
    "dense_without_bias": (dense("d", 7, bias=False), (2, 3, 5, 6)),
    "embedding": (embedding("e", VOCABULARY, 6), (2, 3, 5)),
    "embedding_and_tied_head": (chain(embedding("e", VOCABULARY, 6), swish(), tied_head("h", "e")), (2, 3, 5)),
    "sparse_embedding": (sparse_embedding("e", VOCABULARY, 6), (2, 3, 5)),
    "sparse_embedding_of_one_row": (sparse_embedding("e", 1, 6), (2, 3)),
    "dot_interaction": (dot_interaction("i"), (2, 3, 5, 6)),
    "columns": (columns(2, dense("d", 4), [sparse_embedding(n, VOCABULARY, 4) for n in "ef"]), (2, 3, 4)),
    "rms_norm": (rms_norm("n"), (2, 3, 5, 6)),
    "rms_norm_of_small_rows": (chain(skip_gain("g"), rms_norm("n", 10.0)), (2, 3, 5, 6)),
    "rotary": (rotary(), (2, 3, 2, 5, 6)),
    "split_heads": (split_heads(2), (2, 3, 5, 6)),
    "repeated_heads": (repeated_heads(3), (2, 3, 2, 5, 4)),
    "attention": (causal_attention("a", split_heads(2), split_heads(2), split_heads(2)), (2, 3, 5, 6)),
    "attention_of_grouped_queries": (
        causal_attention(
            "a",
            projected("q", 4, rotary()),
            projected("k", 2, rotary(), repeated_heads(2)),
            projected("v", 2, repeated_heads(2)),
        ),
        (2, 3, 5, 6),
    ),
    "multiplied": (multiplied(chain(dense("gate", 7, bias=False), swish()), dense("up", 7)), (2, 3, 5, 6)),
    "multiplied_by_one_gain": (multiplied(skip_gain("g"), chain(swish(), skip_gain("g"))), (2, 3, 5, 6)),
    "standardised_convolution": (standardised_convolution("c", 5, 3, 2), (2, 3, 8, 8, 6)),
    "standardised_convolution_of_least_variance": (shrunk(standardised_convolution("c", 5, 3)), (2, 3, 4, 4, 6)),
    "standardised_convolution_1x1": (standardised_convolution("c", 5, 1), (2, 3, 4, 4, 6)),
    "batch_norm": (batch_norm("n"), (2, 3, 4, 4, 6)),
    "relu": (relu(), (2, 3, 4, 4, 6)),
    "relu_scaled": (relu(1.7), (2, 3, 4, 4, 6)),
    "sigmoid": (sigmoid(), (2, 3, 4, 4, 6)),
    "swish": (swish(), (2, 3, 4, 4, 6)),
    "skip_gain": (skip_gain("g"), (2, 3, 4, 4, 6)),
    "dropout": (dropout("drop", 0.3), (2, 3, 4, 4, 6)),
    "global_average": (global_average("pool"), (2, 3, 4, 4, 6)),
    "global_average_keeping_the_map": (global_average("pool", keep_map=True), (2, 3, 4, 4, 6)),
    "concatenated": (concatenated(convolution("c", 5, 3)), (2, 3, 4, 4, 6)),
    "gated": (gated(chain(global_average("pool", keep_map=True), convolution("c", 6, 1))), (2, 3, 4, 4, 6)),
    "residual": (residual(convolution("c", 6, 3)), (2, 3, 4, 4, 6)),
    "residual_shortcut": (residual(convolution("c", 5, 3, 2), convolution("s", 5, 1, 2)), (2, 3, 4, 4, 6)),
    "chain": (chain(convolution("c", 5, 3), batch_norm("n"), relu(), dropout("drop", 0.3)), (2, 3, 4, 4, 6)),
    "chain_of_one_norm_twice": (chain(batch_norm("n"), swish(), batch_norm("n")), (2, 3, 4, 4, 6)),
    "chain_of_one_gain_twice": (chain(skip_gain("g"), swish(), skip_gain("g")), (2, 3, 4, 4, 6)),
    "residual_of_one_gain_twice": (residual(skip_gain("g"), chain(swish(), skip_gain("g"))), (2, 3, 4, 4, 6)),
    # Of the blocks of a network, each kind: the first of a stage, with and without a stride, and one behind it.
    "resnet18": (NETWORKS["resnet18"](width=4, blocks=(2, 1, 0, 0)), (2, 3, 32, 32, 3)),
    "resnet18_nobn": (NETWORKS["resnet18_nobn"](width=4, blocks=(2, 1, 0, 0)), (2, 3, 32, 32, 3)),
    "resnet18_largedecay": (NETWORKS["resnet18_largedecay"](width=4, blocks=(2, 1, 0, 0)), (2, 3, 32, 32, 3)),
    "effnet": (NETWORKS["effnet"](width=4, blocks=(1, 2, 1, 0, 0, 0, 0)), (2, 3, 32, 32, 3)),
    "densenet": (NETWORKS["densenet"](width=4, blocks=(2, 1, 0, 0)), (2, 3, 32, 32, 3)),
    "nfnet": (NETWORKS["nfnet"](width=4, blocks=(2, 1, 0, 0)), (2, 3, 32, 32, 3)),
    "transformer": (transformer(VOCABULARY, width=16, heads=4, kv_heads=2), (2, 3, 5)),
    "dlrm": (dlrm(2, (VOCABULARY, 3, 40), 4, (8, 8), (8,)), (2, 3, 5)),
    "transformer_untied": (transformer(VOCABULARY, width=16, heads=2, kv_heads=2, blocks=1, tied=False), (2, 3, 5)),
}


WHOLE = {*NETWORKS, "transformer", "transformer_untied", "dlrm"}
NUMBERS = {"columns": 2, "dlrm": 2}  # columns of the input, the first ones, that are bits of float32 numbers
# Compiled in less time; what is computed is the same.
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def largest_error(found, expected):
    """Over all leaves, relative to each leaf's largest expected element.

    A gradient that is zero in exact arithmetic, such as a shift's before a batch norm, consists of
    rounding noise alone.  It is compared with the largest of all leaves.
    """
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    scales = [float(jnp.abs(e).max()) for e in expected]
    floor = 1e-3 * max(scales, default=0.0)
    errors = [float(jnp.abs(f - e).max()) / max(s, floor) for f, e, s in zip(found, expected, scales, strict=True)]
    return max(errors, default=0.0)


def whole_tables(dparams, rows, params):
    """The gradients with those of whole tables in place of those of the rows that were read."""
    for name, read in rows.items():
        layer, leaf = name.split("/")
        table = jnp.zeros_like(params[layer][leaf]).at[read].add(dparams[layer][leaf], mode="drop")
        dparams = dparams | {layer: dparams[layer] | {leaf: table}}
    return dparams


def check(layer, shape, random, numbers=0):
    """Error of one layer's backward pass; the first `numbers` of its input's columns are the bits of numbers."""
    draw = lambda like: jnp.asarray(random.standard_normal(like.shape))  # noqa: E731
    params, stats = layer.init((0,), shape)
    params = jax.tree.map(draw, params)
    stats = jax.tree.map(jnp.float64, stats)
    takes_tokens = layer.takes == "int32"
    x = jnp.asarray(random.integers(0, VOCABULARY, shape) if takes_tokens else random.standard_normal(shape))
    if numbers:
        x = x.astype("int32").at[..., :numbers].set(random.standard_normal((*shape[:-1], numbers), "f4").view("i4"))
    workers = jnp.arange(shape[0], dtype=jnp.int32)
    ctx = Context(key=jax.random.key(1), workers=workers)

    @QUICKLY
    def both(params, x, dy):
        _, vjp = jax.vjp(lambda p, x: layer.forward(p, stats, x, ctx)[0], params, x)
        _, _, cache, _ = layer.forward(params, stats, x, ctx)
        dx, dparams, seen = layer.backward(params, cache, dy, ctx)
        return vjp(dy), (dx, whole_tables(dparams, seen.rows, params))

    dy = draw(jax.eval_shape(lambda x: layer.forward(params, stats, x, ctx)[0], x))
    (dparams_expected, dx_expected), (dx, dparams) = both(params, x, dy)
    if takes_tokens:  # which have no gradient
        dx = dx_expected = 0.0
    return largest_error((dx, dparams), (dx_expected, dparams_expected))


def check_loss(random):
    """Error of the loss heads' gradients."""
    logits, labels = jnp.asarray(random.standard_normal((2, 5, 10))), jnp.asarray(random.integers(0, 10, (2, 5)))
    found, expected = [], []
    for head, z, y in ((cross_entropy, logits, labels), (binary_cross_entropy, logits[..., :1], labels % 2)):
        found.append(head(z, y)[2])
        expected.append(jax.grad(lambda z, head=head, y=y: head(z, y)[0].sum())(z))
    return largest_error(found, expected)


def check_published_forms(random):
    """Error of each operation's published form, worker by worker, against its fast one."""
    errors = {}
    for name, (layer, shape) in LAYERS.items():
        kind = name.split("_")[0]
        if kind not in ("convolution", "depthwise", "dense"):
            continue
        params = jax.tree.map(jnp.float64, layer.init((0,), shape)[0])
        ctx = Context(
            key=jax.random.key(1), workers=jnp.arange(shape[0], dtype=jnp.int32), observe=frozenset({"operands"})
        )

        @QUICKLY
        def passes(x, params=params, layer=layer, ctx=ctx):
            y, _, cache, _ = layer.forward(params, {}, x, ctx)
            _, dparams, seen = layer.backward(params, cache, jnp.sin(y), ctx)
            return dparams, seen

        dparams, seen_back = passes(jnp.asarray(random.standard_normal(shape)))
        site = "d" if kind == "dense" else "c"
        total = seen_back.tensors["operands"][f"{site}_grad_wt"]["output"].sum(0)
        total = total.transpose(1, 2, 0, 3) if kind == "convolution" else total
        errors[f"published_{name}_grad_wt"] = largest_error(total, dparams[site]["kernel"])
        if kind != "dense":
            operands = seen_back.tensors["operands"][f"{site}_grad_in"]
            literal = [
                jax.lax.conv_general_dilated(
                    a,
                    b.swapaxes(2, 3) if kind == "depthwise" else b,
                    (1, 1),
                    "VALID",
                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                    feature_group_count=shape[-1] if kind == "depthwise" else 1,
                )
                for a, b in zip(operands["input"], operands["weight"], strict=True)
            ]
            errors[f"published_{name}_grad_in"] = largest_error(jnp.stack(literal), operands["output"])
    return errors


if __name__ == "__main__":
    random = np.random.default_rng(0)
    names = sys.argv[1:] or ["cross_entropy", *(name for name in LAYERS if name not in WHOLE)]
    errors = {}
    for name in names:
        if name == "published_forms":
            errors |= check_published_forms(random)
        elif name == "cross_entropy":
            errors[name] = check_loss(random)
        else:
            errors[name] = check(*LAYERS[name], random, NUMBERS.get(name, 0))
    json.dump(errors, sys.stdout)
