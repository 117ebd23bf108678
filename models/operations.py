"""The operations that a fault can strike: a convolution, depthwise convolution or dense layer, and its two gradients.

Each operation is written twice.  `compute` is what every step runs: all workers of the
device folded into one batch, in the fastest formulation.  `operands` and `product` are the
published form of the same operation for one worker, with padding, dilation and transposes
laid out, so that a position in an injection file means what it meant in the published
artifact (docs/science.md, Sites and operands; He et al., ISCA 2023, artifact).  A fault acts on the published form;
what it changes there is carried over into the fast result.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import formulations
from .fault import INACTIVE, Operand, Struck, bits, nothing_struck, overwrite, site_id
from .formulations import VALID
from .isolation import fence, isolated
from .layer import Context, Observations

# Bits of the mantissa that multipliers of a narrower type than float32 read; exponents have 8 bits in all of them.
MANTISSA = {"tensorfloat32": 10, "bfloat16": 7}


@dataclasses.dataclass(frozen=True)
class Convolution:
    """y = x * kernel. x [R,b,H,W,I], kernel [k,k,I,O] -> y [R,b,h,w,O], before any bias."""

    stride: int

    fast = staticmethod(formulations.convolution)
    short = staticmethod(formulations.short_convolution)

    def compute(self, x, kernel):
        padding = formulations.same_padding(x.shape[2:4], kernel.shape[:2], self.stride)
        y = self.fast(x.reshape(-1, *x.shape[2:]), kernel, self.stride, padding)
        return y.reshape(*x.shape[:2], *y.shape[1:])

    def operands(self, x, kernel, r):
        return x[r], kernel  # [b,H,W,I], [k,k,I,O]

    def product(self, x, kernel):  # -> [b,h,w,O]
        padding = formulations.same_padding(x.shape[1:3], kernel.shape[:2], self.stride)
        return self.short(x, kernel, self.stride, padding)


@dataclasses.dataclass(frozen=True)
class ConvolutionGradIn:
    """dx from dy and kernel. dy [R,b,h,w,O], kernel [k,k,I,O] -> dx [R,b,H,W,I]."""

    stride: int
    size: tuple[int, int]  # H, W

    fast = staticmethod(formulations.input_gradient)
    short = staticmethod(formulations.short_convolution)

    def compute(self, dy, kernel):
        padding = formulations.same_padding(self.size, kernel.shape[:2], self.stride)
        shape = (dy.shape[0] * dy.shape[1], *self.size, kernel.shape[2])
        dx = self.fast(dy.reshape(-1, *dy.shape[2:]), kernel, self.stride, padding, shape)
        return dx.reshape(*dy.shape[:2], *dx.shape[1:])

    def operands(self, dy, kernel, r):
        k = kernel.shape[0]
        grad_y = _pad(_dilate(dy[r], self.stride, k), k)  # [b,H',W',O]
        return grad_y, self.exchanged(kernel[::-1, ::-1])

    def exchanged(self, kernel):
        return kernel.transpose(0, 1, 3, 2)  # [k,k,I,O] -> [k,k,O,I]

    def product(self, grad_y, rotated):  # -> [b,H,W,I]
        return self.short(grad_y, rotated, 1, VALID)


@dataclasses.dataclass(frozen=True)
class ConvolutionGradWt:
    """dkernel, summed over the workers. x [R,b,H,W,I], dy [R,b,h,w,O] -> [k,k,I,O]."""

    stride: int
    kernel_size: int

    fast = staticmethod(formulations.weight_gradient)

    def compute(self, x, dy):
        k = self.kernel_size
        padding = formulations.same_padding(x.shape[2:4], (k, k), self.stride)
        x, dy = (t.reshape(-1, *t.shape[2:]) for t in (x, dy))
        return self.fast(x, dy, self.stride, padding, k)

    def operands(self, x, dy, r):
        k = self.kernel_size
        padded = _pad(x[r], k).transpose(3, 1, 2, 0)  # [I,H',W',b]
        grad_y = _dilate(dy[r], self.stride, k).transpose(1, 2, 0, 3)  # [h',w',b,O]
        return padded, grad_y

    def product(self, padded, grad_y):  # -> [I,k,k,O]
        return formulations.short_convolution(padded, grad_y, 1, VALID)

    def from_published(self, output):
        return output.transpose(1, 2, 0, 3)  # [I,k,k,O] -> [k,k,I,O]


class Depthwise(Convolution):
    """y = x * kernel, channel by channel. x [R,b,H,W,C], kernel [k,k,C,1] -> y [R,b,h,w,C]."""

    fast = staticmethod(formulations.depthwise_convolution)
    short = staticmethod(formulations.short_depthwise_convolution)


class DepthwiseGradIn(ConvolutionGradIn):
    """dx from dy and kernel. dy [R,b,h,w,C], kernel [k,k,C,1] -> dx [R,b,H,W,C]."""

    fast = staticmethod(formulations.depthwise_input_gradient)
    short = staticmethod(formulations.short_depthwise_convolution)

    def exchanged(self, kernel):
        return kernel  # [k,k,C,1]: each channel is its own input and output


class DepthwiseGradWt(ConvolutionGradWt):
    """dkernel, summed over the workers. x [R,b,H,W,C], dy [R,b,h,w,C] -> [k,k,C,1]."""

    fast = staticmethod(formulations.depthwise_weight_gradient)

    def operands(self, x, dy, r):
        k = self.kernel_size
        return _pad(x[r], k), _dilate(dy[r], self.stride, k)  # [b,H',W',C], [b,h',w',C]

    def product(self, padded, grad_y):  # -> [k,k,C,1]
        return formulations.short_depthwise_weight_gradient(padded, grad_y, 1, VALID, self.kernel_size)

    def from_published(self, output):
        return output


@dataclasses.dataclass(frozen=True)
class Dense:
    """y = x @ kernel. x [R,b,I], kernel [I,O] -> y [R,b,O], before the bias."""

    def compute(self, x, kernel):
        return x @ kernel

    def operands(self, x, kernel, r):
        return x[r], kernel

    def product(self, x, kernel):
        return x @ kernel


@dataclasses.dataclass(frozen=True)
class DenseGradIn:
    """dx = dy @ kernelᵀ. dy [R,b,O], kernel [I,O] -> dx [R,b,I]."""

    def compute(self, dy, kernel):
        return dy @ kernel.T

    def operands(self, dy, kernel, r):
        return dy[r], kernel.T  # [b,O], [O,I]

    def product(self, dy, transposed):
        return dy @ transposed


@dataclasses.dataclass(frozen=True)
class DenseGradWt:
    """dkernel = xᵀ @ dy, summed over the workers. x [R,b,I], dy [R,b,O] -> [I,O]."""

    def compute(self, x, dy):
        return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    def operands(self, x, dy, r):
        return x[r].T, dy[r]  # [I,b], [b,O]

    def product(self, transposed, dy):
        return transposed @ dy

    def from_published(self, output):
        return output


Summed = ConvolutionGradWt | DenseGradWt  # one result for all workers; the others have one for each
Operation = Convolution | ConvolutionGradIn | Dense | DenseGradIn | Summed


def perform(operation: Operation, site: str, a, b, ctx: Context, used: bool = True):
    """Run one operation for all workers of the device, struck by the context's fault if it names this site.

    Args:
      operation: which one; its class says what `a` and `b` are.
      site: its name, as in an injection file.
      used: False where nothing reads the result; it is then computed only when struck.

    Returns:
      The result, and observations: what the fault did, and on request (`operands`) the three
      operands of every worker in the published layout, stacked along a leading axis [R].
    """
    # What depends on the site enters as a traced value: operations of equal shape share one trace.
    fault = ctx.fault if ctx.supported is None or site in ctx.supported else None
    strike = None if fault is None else _strike_here(fault, jnp.int32(site_id(site)), ctx.workers)
    with isolated("false"):
        result, struck, operands = _perform(
            operation, "operands" in ctx.observe, used, a, b, fault, strike, ctx.workers.shape[0]
        )
    return result, Observations(struck, {"operands": {site: operands}} if operands else {})


@jax.jit
def _strike_here(fault, site, workers):
    """Whether the fault strikes this site of a worker of this device, and which of its workers."""
    here = workers == fault.worker
    return (fault.site == site) & jnp.any(here), jnp.argmax(here)


@partial(jax.jit, static_argnums=(0, 1, 2, 7))
@isolated("true")  # no more of the many small functions inside
def _perform(operation, observe, used, a, b, fault, strike, workers):
    result = fence(_rounded(operation.compute, a, b)) if used else None
    struck = None
    if fault is not None:
        hit, r = strike
        # Only what the fault can change passes the conditional, which copies what passes it.
        whole = isinstance(operation, Summed) or not used
        part = result if whole else lax.dynamic_index_in_dim(result, r, keepdims=False)
        part, struck = lax.cond(
            hit,
            partial(_strike, operation, a, b, fault, r),
            lambda part: (part, nothing_struck(fault)),
            part,
        )
        result = part if whole else lax.dynamic_update_index_in_dim(result, part, r, 0)
        result = result if result is None else fence(result)
    operands = _published_operands(operation, a, b, result, workers) if observe else None
    return result, struck, operands


def _strike(operation: Operation, a, b, fault, r, result) -> tuple[jax.Array | None, Struck]:
    """The result (of worker r, or summed over the workers, or None) with the fault in it.

    The published form is computed twice, clean and faulty, and only the elements that differ
    are taken over: the two differ by the fault alone, whereas the published and the fast form
    also differ in rounding.
    """
    clean_operands = fence(*operation.operands(a, b, r))
    clean = fence(_rounded(operation.product, *clean_operands))
    # Of a result that is summed over workers (or not computed), this worker's own is not at hand.
    mine = clean if result is None or isinstance(operation, Summed) else result
    *changed_operands, changed_mine, struck = _overwrite_one((*clean_operands, mine), fault)
    faulty = fence(_rounded(operation.product, *fence(*changed_operands)))
    # A fault in the output itself is no matter of the products, which a compiler may round differently.
    differ = (fault.operand != Operand.OUTPUT) & (bits(faulty) != bits(clean))
    output = jnp.where(differ, faulty, changed_mine)
    differs = bits(output) != bits(mine)

    struck = struck.replace(hits=jnp.ones((), jnp.int32), output_changed=jnp.sum(differs, dtype=jnp.int32))
    if result is None:
        return None, struck
    if isinstance(operation, Summed):
        # What the other workers contribute is summed afresh: (sum - clean) would round, and
        # would turn an infinite sum into a NaN.
        others = fence(_rounded(operation.compute, _without(a, r), _without(b, r)))
        output = jnp.where(operation.from_published(differs), others + operation.from_published(output), result)
    return output, struck


def _overwrite_one(tensors, fault):
    """Input, weight and output with the fault in the one that it names, and what was done.

    They are overwritten end to end, as one vector: with an overwriting for each, which is most
    of what a site adds to the program, compiling takes three times as long.
    """
    ends = np.cumsum([t.size for t in tensors])
    start = jnp.array([0, *ends[:-1]], jnp.int32)[fault.operand]
    index = jnp.where(fault.index == INACTIVE, INACTIVE, fault.index + start)
    shifted = fault.replace(index=index, source=fault.source + start)
    together = fence(jnp.concatenate([t.reshape(-1) for t in tensors]))
    together, struck = overwrite(together, shifted, jnp.bool_(True))
    parts = jnp.split(together, ends[:-1])
    return *(part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)), struck


def _rounded(multiply, a, b):
    """`multiply(a, b)` with operands rounded as the matrix precision of JAX's configuration says.

    Devices without multipliers of that width so compute the same products; those that have
    them find nothing left to round.  Operands and results remain float32, sums too.
    """
    digits = MANTISSA.get(jax.config.jax_default_matmul_precision)
    if digits is not None:
        a, b = (lax.reduce_precision(t, 8, digits) for t in (a, b))
    return multiply(a, b)


def _without(tensor, r):
    """`tensor` [R,…] with worker r's part zero."""
    return lax.dynamic_update_index_in_dim(tensor, jnp.zeros_like(tensor[0]), r, 0)


def _published_operands(operation, a, b, result, workers):
    each = [operation.operands(a, b, r) for r in range(workers)]
    at_hand = result is not None and not isinstance(operation, Summed)
    outputs = [result[r] if at_hand else _rounded(operation.product, *pair) for r, pair in enumerate(each)]
    return {
        "input": jnp.stack([pair[0] for pair in each]),
        "weight": jnp.stack([pair[1] for pair in each]),
        "output": jnp.stack(outputs),
    }


def _dilate(dy, stride, k):
    """Spread dy [b,h,w,O] by the stride: for k > 1 each value follows its zeros, for k = 1 it leads."""
    if stride == 1:
        return dy
    zeros = stride - 1
    before, after = (zeros, 0) if k > 1 else (0, zeros)
    spread = (before, after, zeros)
    return lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), spread, spread, (0, 0, 0)])


def _pad(tensor, k):
    """Pad [b,H,W,C] by (k-1)//2 on every side."""
    p = (k - 1) // 2
    return jnp.pad(tensor, [(0, 0), (p, p), (p, p), (0, 0)])
