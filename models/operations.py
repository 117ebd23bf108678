"""The operations that a fault can strike: products of two tensors, table lookups, and the gradients of both.

Each operation is written twice.  `compute` is what every step runs: all workers of the device as
one batch, in the fastest formulation.  `operands` and `product` are the published form of the same
operation for one worker, with padding, dilation and transposes laid out.  Positions in an injection
file refer to the published form, as in the published artifact (docs/science.md, Sites and operands;
He et al., ISCA 2023, artifact).  A fault acts on the published form; what it changes there is
carried over into the fast result.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax

from . import formulations
from .fault import Operand
from .formulations import VALID


class Operation(Protocol):
    """One operation on two tensors, a product or a lookup: hashable, its fields being static.

    Attributes:
      gradient: which operand is a gradient of the loss; None in a forward pass.
    """

    gradient: ClassVar[Operand | None]

    def compute(self, a: jax.Array, b: jax.Array, /) -> Any:
        """The result for all workers, in the fastest formulation: an array, or a `SparseGradient`.

        The class says what `a` and `b` are; each that belongs to workers has them as leading axis [R].
        """

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int, /) -> tuple[jax.Array, jax.Array]:
        """Input and weight operand of worker `r` (its number on this device), in the published layout."""

    def product(self, a: jax.Array, b: jax.Array, /) -> jax.Array:
        """The output operand of one worker from its input and weight operand, all in the published layout."""


@runtime_checkable
class Summed(Operation, Protocol):
    """An operation with one result for all workers, their sum; the others have one result for each worker."""

    def from_published(self, output: jax.Array, /) -> jax.Array:
        """An output operand in the layout of `compute`'s result."""


class SparseGradient(NamedTuple):
    """The gradient of a table [V,C], given by the rows that are read: all others are zero.

    Attributes:
      rows: int32 [n], distinct and rising; V where a place is empty.
      values: [n,C], the gradient of each of these rows; 0 where a place is empty.
    """

    rows: jax.Array
    values: jax.Array


@runtime_checkable
class Checkable(Operation, Protocol):
    """An operation linear in each operand, so that sums of its results are results of sums: lookups are none.

    Attributes:
      along: axes of `compute`'s result that are added up.
    """

    along: ClassVar[tuple[int, ...]]

    def added(self, a: jax.Array, b: jax.Array, /) -> tuple[Operation, jax.Array, jax.Array]:
        """An operation and operands that give `compute`'s result added up over `along`, at a fraction of its cost."""

    def terms(self, a: jax.Array, b: jax.Array, /) -> int:
        """How many products are added up to one element of the result."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """y = x * kernel. x [R,b,H,W,I], kernel [k,k,I,O] -> y [R,b,h,w,O], before any bias.

    >>> jax.eval_shape(Convolution(2).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((3, 3, 3, 5))).shape
    (1, 4, 4, 4, 5)
    """

    gradient: ClassVar[Operand | None] = None
    along: ClassVar[tuple[int, ...]] = (-1,)

    stride: int

    fast = staticmethod(formulations.convolution)
    short = staticmethod(formulations.short_convolution)

    def compute(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y of all workers."""
        padding = formulations.same_padding(x.shape[2:4], kernel.shape[:2], self.stride)
        y = self.fast(x.reshape(-1, *x.shape[2:]), kernel, self.stride, padding)
        return y.reshape(*x.shape[:2], *y.shape[1:])

    def operands(self, x: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x [b,H,W,I] of one worker; kernel [k,k,I,O]."""
        return x[r], kernel

    def product(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y [b,h,w,O] of one worker."""
        padding = formulations.same_padding(x.shape[1:3], kernel.shape[:2], self.stride)
        return self.short(x, kernel, self.stride, padding)

    def added(self, x: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The kernel's output channels added up."""
        return self, x, jnp.sum(kernel, -1, keepdims=True)

    def terms(self, x: jax.Array, kernel: jax.Array) -> int:
        """k·k·I."""
        return math.prod(kernel.shape[:3])


@dataclasses.dataclass(frozen=True)
class ConvolutionGradIn:
    """dx from dy and kernel. dy [R,b,h,w,O], kernel [k,k,I,O] -> dx [R,b,H,W,I].

    >>> jax.eval_shape(ConvolutionGradIn(2, (8, 8)).compute, jnp.ones((1, 4, 4, 4, 5)), jnp.ones((3, 3, 3, 5))).shape
    (1, 4, 8, 8, 3)
    """

    gradient: ClassVar[Operand | None] = Operand.INPUT
    along: ClassVar[tuple[int, ...]] = (-1,)

    stride: int
    size: tuple[int, int]  # H, W

    fast = staticmethod(formulations.input_gradient)
    short = staticmethod(formulations.short_convolution)

    def compute(self, dy: jax.Array, kernel: jax.Array) -> jax.Array:
        """dx of all workers."""
        padding = formulations.same_padding(self.size, kernel.shape[:2], self.stride)
        shape = (dy.shape[0] * dy.shape[1], *self.size, kernel.shape[2])
        dx = self.fast(dy.reshape(-1, *dy.shape[2:]), kernel, self.stride, padding, shape)
        return dx.reshape(*dy.shape[:2], *dx.shape[1:])

    def operands(self, dy: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy of one worker, dilated and padded, [b,H',W',O]; the kernel rotated by 180°, channels exchanged."""
        k = kernel.shape[0]
        grad_y = _pad(_dilate(dy[r], self.stride, k), k)
        return grad_y, self.exchanged(kernel[::-1, ::-1])

    def exchanged(self, kernel: jax.Array) -> jax.Array:
        """[k,k,I,O] -> [k,k,O,I]."""
        return kernel.transpose(0, 1, 3, 2)

    def product(self, grad_y: jax.Array, rotated: jax.Array) -> jax.Array:
        """dx [b,H,W,I] of one worker."""
        return self.short(grad_y, rotated, 1, VALID)

    def added(self, dy: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The kernel's input channels added up."""
        return self, dy, jnp.sum(kernel, -2, keepdims=True)

    def terms(self, dy: jax.Array, kernel: jax.Array) -> int:
        """k·k·O; fewer with a stride."""
        return math.prod(kernel.shape[:2]) * kernel.shape[3]


@dataclasses.dataclass(frozen=True)
class ConvolutionGradWt:
    """dkernel, summed over the workers. x [R,b,H,W,I], dy [R,b,h,w,O] -> [k,k,I,O].

    >>> jax.eval_shape(ConvolutionGradWt(2, 3).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((1, 4, 4, 4, 5))).shape
    (3, 3, 3, 5)
    """

    gradient: ClassVar[Operand | None] = Operand.WEIGHT
    along: ClassVar[tuple[int, ...]] = (-1,)

    stride: int
    kernel_size: int

    fast = staticmethod(formulations.weight_gradient)

    def compute(self, x: jax.Array, dy: jax.Array) -> jax.Array:
        """dkernel, summed over all workers."""
        k = self.kernel_size
        padding = formulations.same_padding(x.shape[2:4], (k, k), self.stride)
        x, dy = (t.reshape(-1, *t.shape[2:]) for t in (x, dy))
        return self.fast(x, dy, self.stride, padding, k)

    def operands(self, x: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x of one worker, padded, [I,H',W',b]; its dy, dilated, [h',w',b,O]."""
        k = self.kernel_size
        padded = _pad(x[r], k).transpose(3, 1, 2, 0)
        grad_y = _dilate(dy[r], self.stride, k).transpose(1, 2, 0, 3)
        return padded, grad_y

    def product(self, padded: jax.Array, grad_y: jax.Array) -> jax.Array:
        """dkernel of one worker, [I,k,k,O]."""
        return formulations.short_convolution(padded, grad_y, 1, VALID)

    def from_published(self, output: jax.Array) -> jax.Array:
        """[I,k,k,O] -> [k,k,I,O]."""
        return output.transpose(1, 2, 0, 3)

    def added(self, x: jax.Array, dy: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The channels of dy added up."""
        return self, x, jnp.sum(dy, -1, keepdims=True)

    def terms(self, x: jax.Array, dy: jax.Array) -> int:
        """R·b·h·w."""
        return math.prod(dy.shape[:4])


class Depthwise(Convolution):
    """y = x * kernel, channel by channel. x [R,b,H,W,C], kernel [k,k,C,1] -> y [R,b,h,w,C].

    >>> jax.eval_shape(Depthwise(2).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((3, 3, 3, 1))).shape
    (1, 4, 4, 4, 3)
    """

    along: ClassVar[tuple[int, ...]] = (1,)

    fast = staticmethod(formulations.depthwise_convolution)
    short = staticmethod(formulations.short_depthwise_convolution)

    def added(self, x: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The images of a worker added up: a channel has no other output to be added to."""
        return self, jnp.sum(x, 1, keepdims=True), kernel

    def terms(self, x: jax.Array, kernel: jax.Array) -> int:
        """k·k."""
        return math.prod(kernel.shape[:2])


class DepthwiseGradIn(ConvolutionGradIn):
    """dx from dy and kernel. dy [R,b,h,w,C], kernel [k,k,C,1] -> dx [R,b,H,W,C].

    >>> jax.eval_shape(DepthwiseGradIn(2, (8, 8)).compute, jnp.ones((1, 4, 4, 4, 3)), jnp.ones((3, 3, 3, 1))).shape
    (1, 4, 8, 8, 3)
    """

    along: ClassVar[tuple[int, ...]] = (1,)

    fast = staticmethod(formulations.depthwise_input_gradient)
    short = staticmethod(formulations.short_depthwise_convolution)

    def exchanged(self, kernel: jax.Array) -> jax.Array:
        """[k,k,C,1] as it is: each channel is its own input and output."""
        return kernel

    def added(self, dy: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The images of a worker added up."""
        return self, jnp.sum(dy, 1, keepdims=True), kernel

    def terms(self, dy: jax.Array, kernel: jax.Array) -> int:
        """k·k; fewer with a stride."""
        return math.prod(kernel.shape[:2])


class DepthwiseGradWt(ConvolutionGradWt):
    """dkernel, summed over the workers. x [R,b,H,W,C], dy [R,b,h,w,C] -> [k,k,C,1].

    >>> jax.eval_shape(DepthwiseGradWt(2, 3).compute, jnp.ones((1, 4, 8, 8, 3)), jnp.ones((1, 4, 4, 4, 3))).shape
    (3, 3, 3, 1)
    """

    along: ClassVar[tuple[int, ...]] = (0, 1)

    fast = staticmethod(formulations.depthwise_weight_gradient)

    def operands(self, x: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x of one worker, padded, [b,H',W',C]; its dy, dilated, [b,h',w',C]."""
        k = self.kernel_size
        return _pad(x[r], k), _dilate(dy[r], self.stride, k)

    def product(self, padded: jax.Array, grad_y: jax.Array) -> jax.Array:
        """dkernel of one worker, [k,k,C,1]."""
        return formulations.short_depthwise_weight_gradient(padded, grad_y, 1, VALID, self.kernel_size)

    def from_published(self, output: jax.Array) -> jax.Array:
        """[k,k,C,1] as it is."""
        return output

    def added(self, x: jax.Array, dy: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """What each dy meets in all kernel positions, added up, as if the kernel had one position."""
        k = self.kernel_size
        met = Depthwise(self.stride).compute(x, jnp.ones((k, k, x.shape[-1], 1), x.dtype))
        return DepthwiseGradWt(1, 1), met, dy

    def terms(self, x: jax.Array, dy: jax.Array) -> int:
        """R·b·h·w."""
        return math.prod(dy.shape[:4])


@dataclasses.dataclass(frozen=True)
class Dense:
    """y = x @ kernel. x [R,b,…,I], kernel [I,O] -> y [R,b,…,O], before the bias.

    >>> jax.eval_shape(Dense().compute, jnp.ones((1, 4, 3)), jnp.ones((3, 5))).shape
    (1, 4, 5)
    """

    gradient: ClassVar[Operand | None] = None
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y of all workers."""
        return x @ kernel

    def operands(self, x: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """x [b,…,I] of one worker; kernel [I,O]."""
        return x[r], kernel

    def product(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """y [b,…,O] of one worker."""
        return x @ kernel

    def added(self, x: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of the kernel added up."""
        return self, x, jnp.sum(kernel, -1, keepdims=True)

    def terms(self, x: jax.Array, kernel: jax.Array) -> int:
        """I."""
        return kernel.shape[0]


@dataclasses.dataclass(frozen=True)
class DenseGradIn:
    """dx = dy @ kernelᵀ. dy [R,b,…,O], kernel [I,O] -> dx [R,b,…,I].

    >>> jax.eval_shape(DenseGradIn().compute, jnp.ones((1, 4, 5)), jnp.ones((3, 5))).shape
    (1, 4, 3)
    """

    gradient: ClassVar[Operand | None] = Operand.INPUT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, dy: jax.Array, kernel: jax.Array) -> jax.Array:
        """dx of all workers."""
        return dy @ kernel.T

    def operands(self, dy: jax.Array, kernel: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy [b,…,O] of one worker; the transposed kernel [O,I]."""
        return dy[r], kernel.T

    def product(self, dy: jax.Array, transposed: jax.Array) -> jax.Array:
        """dx [b,…,I] of one worker."""
        return dy @ transposed

    def added(self, dy: jax.Array, kernel: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The rows of the kernel added up."""
        return self, dy, jnp.sum(kernel, 0, keepdims=True)

    def terms(self, dy: jax.Array, kernel: jax.Array) -> int:
        """O."""
        return kernel.shape[1]


@dataclasses.dataclass(frozen=True)
class DenseGradWt:
    """dkernel = xᵀ @ dy, summed over the workers. x [R,b,…,I], dy [R,b,…,O] -> [I,O].

    The axes … are folded into b, which becomes n = b·….

    >>> jax.eval_shape(DenseGradWt().compute, jnp.ones((1, 4, 3)), jnp.ones((1, 4, 5))).shape
    (3, 5)
    """

    gradient: ClassVar[Operand | None] = Operand.WEIGHT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, x: jax.Array, dy: jax.Array) -> jax.Array:
        """dkernel, summed over all workers."""
        return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    def operands(self, x: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """The transposed x [I,n] of one worker; its dy [n,O]."""
        return x[r].reshape(-1, x.shape[-1]).T, dy[r].reshape(-1, dy.shape[-1])

    def product(self, transposed: jax.Array, dy: jax.Array) -> jax.Array:
        """dkernel [I,O] of one worker."""
        return transposed @ dy

    def from_published(self, output: jax.Array) -> jax.Array:
        """[I,O] as it is."""
        return output

    def added(self, x: jax.Array, dy: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of dy added up."""
        return self, x, jnp.sum(dy, -1, keepdims=True)

    def terms(self, x: jax.Array, dy: jax.Array) -> int:
        """R·b·…."""
        return math.prod(dy.shape[:-1])


@dataclasses.dataclass(frozen=True)
class Product:
    """y = a @ b, where both belong to workers. a [R,…,M,K], b [R,…,K,N] -> y [R,…,M,N].

    >>> jax.eval_shape(Product().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 3, 5))).shape
    (1, 4, 2, 5)
    """

    gradient: ClassVar[Operand | None] = None
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """y of all workers."""
        return a @ b

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """a […,M,K] and b […,K,N] of one worker."""
        return a[r], b[r]

    def product(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """y […,M,N] of one worker."""
        return a @ b

    def added(self, a: jax.Array, b: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of b added up."""
        return self, a, jnp.sum(b, -1, keepdims=True)

    def terms(self, a: jax.Array, b: jax.Array) -> int:
        """K."""
        return b.shape[-2]


@dataclasses.dataclass(frozen=True)
class ProductOfRows:
    """y = a @ bᵀ, where both belong to workers. a [R,…,M,K], b [R,…,N,K] -> y [R,…,M,N].

    XLA for CPUs folds no transposition into a batched product: `Product` of a transposed b takes twice the time.

    >>> jax.eval_shape(ProductOfRows().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 5, 3))).shape
    (1, 4, 2, 5)
    """

    gradient: ClassVar[Operand | None] = None
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """y of all workers."""
        batch = tuple(range(a.ndim - 2))
        return lax.dot_general(a, b, (((a.ndim - 1,), (b.ndim - 1,)), (batch, batch)))

    def operands(self, a: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """a […,M,K] and the transposed b […,K,N] of one worker."""
        return a[r], b[r].mT

    def product(self, a: jax.Array, transposed: jax.Array) -> jax.Array:
        """y […,M,N] of one worker."""
        return a @ transposed

    def added(self, a: jax.Array, b: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The rows of b added up."""
        return self, a, jnp.sum(b, -2, keepdims=True)

    def terms(self, a: jax.Array, b: jax.Array) -> int:
        """K."""
        return b.shape[-1]


@dataclasses.dataclass(frozen=True)
class ProductGradIn:
    """da = dy @ bᵀ. dy [R,…,M,N], b [R,…,K,N] -> da [R,…,M,K].

    >>> jax.eval_shape(ProductGradIn().compute, jnp.ones((1, 4, 2, 5)), jnp.ones((1, 4, 3, 5))).shape
    (1, 4, 2, 3)
    """

    gradient: ClassVar[Operand | None] = Operand.INPUT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, dy: jax.Array, b: jax.Array) -> jax.Array:
        """da of all workers."""
        return dy @ b.mT

    def operands(self, dy: jax.Array, b: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """dy […,M,N] of one worker; its transposed b […,N,K]."""
        return dy[r], b[r].mT

    def product(self, dy: jax.Array, transposed: jax.Array) -> jax.Array:
        """da […,M,K] of one worker."""
        return dy @ transposed

    def added(self, dy: jax.Array, b: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The rows of b added up."""
        return self, dy, jnp.sum(b, -2, keepdims=True)

    def terms(self, dy: jax.Array, b: jax.Array) -> int:
        """N."""
        return b.shape[-1]


@dataclasses.dataclass(frozen=True)
class ProductGradWt:
    """db = aᵀ @ dy. a [R,…,M,K], dy [R,…,M,N] -> db [R,…,K,N].

    >>> jax.eval_shape(ProductGradWt().compute, jnp.ones((1, 4, 2, 3)), jnp.ones((1, 4, 2, 5))).shape
    (1, 4, 3, 5)
    """

    gradient: ClassVar[Operand | None] = Operand.WEIGHT
    along: ClassVar[tuple[int, ...]] = (-1,)

    def compute(self, a: jax.Array, dy: jax.Array) -> jax.Array:
        """db of all workers."""
        return a.mT @ dy

    def operands(self, a: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """The transposed a […,K,M] of one worker; its dy […,M,N]."""
        return a[r].mT, dy[r]

    def product(self, transposed: jax.Array, dy: jax.Array) -> jax.Array:
        """db […,K,N] of one worker."""
        return transposed @ dy

    def added(self, a: jax.Array, dy: jax.Array) -> tuple[Operation, jax.Array, jax.Array]:
        """The columns of dy added up."""
        return self, a, jnp.sum(dy, -1, keepdims=True)

    def terms(self, a: jax.Array, dy: jax.Array) -> int:
        """M."""
        return dy.shape[-2]


@dataclasses.dataclass(frozen=True)
class Lookup:
    """y = table[tokens]. tokens [R,b,…] integers, table [V,C] -> y [R,b,…,C].

    A token outside the table, which only a fault makes, reads the row nearest to it.

    >>> Lookup().compute(jnp.array([[1, 7]]), jnp.array([[0.5], [2.0]])).tolist()
    [[[2.0], [2.0]]]
    """

    gradient: ClassVar[Operand | None] = None

    def compute(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        """y of all workers."""
        return table[_rows(tokens, len(table))]

    def operands(self, tokens: jax.Array, table: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """tokens [b,…] of one worker; the table [V,C]."""
        return tokens[r], table

    def product(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        """y [b,…,C] of one worker."""
        return table[_rows(tokens, len(table))]


@dataclasses.dataclass(frozen=True)
class LookupGradWt:
    """dtable: each row is the sum of dy over the tokens that read it, of all workers.

    tokens [R,b,…] integers, dy [R,b,…,C] -> [V,C].

    >>> LookupGradWt(2).compute(jnp.array([[1, 1]]), jnp.array([[[0.5], [2.0]]])).tolist()
    [[0.0], [2.5]]
    """

    gradient: ClassVar[Operand | None] = Operand.WEIGHT

    vocabulary: int  # V

    def compute(self, tokens: jax.Array, dy: jax.Array) -> jax.Array:
        """dtable, summed over all workers."""
        return self.product(tokens, dy)

    def operands(self, tokens: jax.Array, dy: jax.Array, r: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """tokens [b,…] and dy [b,…,C] of one worker."""
        return tokens[r], dy[r]

    def product(self, tokens: jax.Array, dy: jax.Array) -> jax.Array:
        """dtable [V,C] of one worker."""
        zero = jnp.zeros((self.vocabulary, dy.shape[-1]), dy.dtype)
        return zero.at[_rows(tokens, self.vocabulary)].add(dy)

    def from_published(self, output: jax.Array) -> jax.Array:
        """[V,C] as it is."""
        return output


class SparseLookupGradWt(LookupGradWt):
    """dtable as `LookupGradWt`, but what every step computes are the rows that tokens read, not the whole table.

    A fault acts on the published form, which is the whole table: only a step whose fault strikes
    here computes that.  The executable of such a step has `more` further places, one for each
    element of its fault: that many rows that no token reads can be changed.

    tokens [R,b,…] integers, dy [R,b,…,C] -> n = R·b·… rows of [V,C].

    >>> found = SparseLookupGradWt(9).compute(jnp.array([[7, 1, 7]]), jnp.array([[[0.5], [2.0], [1.0]]]))
    >>> found.rows.tolist(), found.values.tolist()
    ([1, 7, 9], [[2.0], [1.5], [0.0]])
    """

    def compute(self, tokens: jax.Array, dy: jax.Array) -> SparseGradient:  # type: ignore[override]
        """dtable, summed over all workers, in the order of the tokens."""
        return coalesced(_rows(tokens, self.vocabulary).reshape(-1), dy.reshape(-1, dy.shape[-1]), self.vocabulary)

    def with_room(self, gradient: SparseGradient, more: int) -> SparseGradient:
        """The same gradient with `more` empty places."""
        rows = jnp.pad(gradient.rows, (0, more), constant_values=self.vocabulary)
        return SparseGradient(rows, jnp.pad(gradient.values, ((0, more), (0, 0))))

    def whole(self, gradient: SparseGradient) -> jax.Array:
        """The whole table's gradient [V,C]."""
        zero = jnp.zeros((self.vocabulary, gradient.values.shape[-1]), gradient.values.dtype)
        return zero.at[gradient.rows].set(gradient.values, mode="drop")

    def replaced(self, gradient: SparseGradient, at: jax.Array, by: jax.Array) -> SparseGradient:
        """The gradient with the elements of `by` [V,C] in place of its own where `at` [V,C]; it has room for them."""
        table = jnp.where(at, by, self.whole(gradient))
        known = jnp.any(at, -1).at[gradient.rows].set(True, mode="drop")
        rows = jnp.nonzero(known, size=len(gradient.rows), fill_value=self.vocabulary)[0].astype(jnp.int32)
        return SparseGradient(rows, table.at[rows].get(mode="fill", fill_value=0))


def coalesced(rows: jax.Array, values: jax.Array, vocabulary: int) -> SparseGradient:
    """The gradient of the rows [n] of a table of `vocabulary` rows: the sum of the values [n,C] of each, in order.

    A row that is `vocabulary` is none, and its value 0.

    >>> coalesced(jnp.array([2, 0, 2]), jnp.array([[1.0], [2.0], [3.0]]), 4).values.tolist()
    [[2.0], [4.0], [0.0]]
    """
    distinct, place = jnp.unique(rows, size=len(rows), fill_value=vocabulary, return_inverse=True)
    return SparseGradient(distinct.astype(jnp.int32), jnp.zeros_like(values).at[place].add(values))


def _rows(tokens: jax.Array, vocabulary: int) -> jax.Array:
    """The rows of a table that tokens read: where a token lies outside, the nearest one."""
    return jnp.clip(tokens, 0, vocabulary - 1)


def _dilate(dy: jax.Array, stride: int, k: int) -> jax.Array:
    """Spread dy [b,h,w,O] by the stride: for k > 1 each value follows its zeros, for k = 1 it leads."""
    if stride == 1:
        return dy
    zeros = stride - 1
    before, after = (zeros, 0) if k > 1 else (0, zeros)
    spread = (before, after, zeros)
    return lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), spread, spread, (0, 0, 0)])


def _pad(tensor: jax.Array, k: int) -> jax.Array:
    """Pad [b,H,W,C] by (k-1)//2 on every side."""
    p = (k - 1) // 2
    return jnp.pad(tensor, [(0, 0), (p, p), (p, p), (0, 0)])
