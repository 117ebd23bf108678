"""Linear regression by hand: a workload of one's own, in one file."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from fault_injection.models.fault import Operand
from fault_injection.models.layer import Context, merge
from fault_injection.models.operations.product import Dense, DenseGradWt
from fault_injection.models.site import Site
from fault_injection.models.strike import perform
from fault_injection.seam.leaves import Leaf, Role
from fault_injection.seam.measure import Evaluation, Measure
from fault_injection.seam.program import Program
from fault_injection.seam.reporting import report
from fault_injection.seam.state_spec import StateSpec
from fault_injection.seam.trees import abstract
from fault_injection.seam.workload import Workload

BATCH, FEATURES, STEPS = 16, 3, 8
SLOPES, OFFSET, NOISE = np.float32([1.0, -2.0, 0.5]), np.float32(0.3), 0.1


def linear() -> "Linear":
    """The workload, by its defaults."""
    return Linear(name="linear", learning_rate=0.1, workers=2, epochs=4)


def tensors(*shapes):
    """The three operands of a site."""
    return {operand: jax.ShapeDtypeStruct(shape, np.float32) for operand, shape in zip(Operand, shapes, strict=True)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Workload):
    """y = x·w + b, trained on the mean squared error; its state is a tuple of two arrays, and it has no accuracy."""

    @property
    def steps_per_epoch(self):
        return STEPS

    def sites(self):
        forward = Site("fc", "fc", "forward", tensors((BATCH, FEATURES), (FEATURES, 1), (BATCH, 1)))
        backward = Site("fc_grad_wt", "fc", "backward", tensors((FEATURES, BATCH), (BATCH, 1), (FEATURES, 1)))
        return {"fc": forward, "fc_grad_wt": backward}

    def batch(self, *address):
        random = np.random.default_rng([self.seed, *address])
        x = random.standard_normal((self.workers, BATCH, FEATURES), np.float32)
        return x, x @ SLOPES + OFFSET + NOISE * random.standard_normal(x.shape[:2], np.float32)

    def program(self, supported=None, devices=None, data_dir=None, reductions=frozenset()):
        def step(state, batch, fault):
            (w, b), (x, y) = state, batch
            ctx = Context(key=jax.random.key(0), workers=jnp.arange(self.workers), fault=fault, supported=supported)
            out, forward = perform(Dense(), "fc", x, w, ctx)
            error = out[..., 0] + b - y  # [R,b]
            dout = 2 * error[..., None] / error.size
            dw, backward = perform(DenseGradWt(), "fc_grad_wt", x, dout, ctx)
            db, loss = jnp.sum(dout), jnp.mean(error * error)
            new = (w - self.learning_rate * dw, b - self.learning_rate * db)
            return new, report(loss, loss, (dw, db), new, merge([forward, backward]).struck)

        plain, faulty = jax.jit(functools.partial(step, fault=None)), jax.jit(step)
        x, y = self.batch(2**31)  # the test data

        def evaluate(state):
            loss = float(jnp.mean((x @ state[0][:, 0] + state[1] - y) ** 2))
            return Evaluation(loss, loss)

        start = (np.zeros((FEATURES, 1), np.float32), np.zeros((), np.float32))
        return Program(
            StateSpec(
                abstract(start),
                (Leaf("slopes", Role.PARAMETER), Leaf("offset", Role.PARAMETER)),
                gradients=("gradient/slopes", "gradient/offset"),
            ),
            steps_per_epoch=STEPS,
            measure=lambda: Measure("loss", "lower", chance=float(np.var(y)), tolerance=0.01),
            data=lambda: "drawn",
            devices=1,
            init=lambda: start,
            place=jax.device_put,
            batch=self.batch,
            step=lambda state, batch, epoch, number: plain(state, batch),
            faulty_step=lambda state, batch, epoch, number, fault: faulty(state, batch, fault),
            evaluate=evaluate,
        )
