"""A workload made ready to run on this machine."""

import dataclasses
import functools
import pathlib

import jax
import numpy as np

from models.fault import Fault

from ..data import DATASETS, Batches, Images
from ..data.batches import steps_per_epoch
from ..machine.environment import arithmetic
from ..machine.errors import InputError
from ..machine.processes import agree
from .explicit import Program, State, StepReport, leaf_names, make_program
from .optimizers import history
from .workloads import Workload, make_network, make_optimizer


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of what a `StepReport` counts leaf by leaf.

    Attributes:
      digest: of the state's leaves.
      magnitude: of the gradients' leaves, then the state's.
      history: positions in `magnitude` of the optimizer's gradient history, by moment.
      running_variance: positions in `magnitude` of running variances.
    """

    digest: list[str]
    magnitude: list[str]
    history: dict[str, list[int]]
    running_variance: list[int]


class Session:
    """A workload's compiled program and its batches: everything a run needs but a state.

    The dataset is read, and each function compiled, when it is first needed.

    Args:
      workload: what to train.
      devices: how many to use; by default as many as divide the workers.
      data_dir: where the dataset is; by default where its reader looks.
    """

    def __init__(self, workload: Workload, devices: int | None = None, data_dir: pathlib.Path | None = None):
        self.workload = workload
        self.data_dir = data_dir
        self.steps_per_epoch = steps_per_epoch(DATASETS[workload.dataset].train, workload.batch_size)
        self.program: Program = make_program(
            make_network(workload),
            make_optimizer(workload),
            workload.workers,
            workload.batch_size,
            devices=devices,
        )

    @functools.cached_property
    def images(self) -> Images:
        """The dataset; raises InputError or OSError where it cannot be read, or where processes have read others."""
        images = DATASETS[self.workload.dataset].load(self.data_dir)
        if agree(lambda: images.sha256) != images.sha256:
            raise InputError(f"process {jax.process_index()} has read other images of this dataset than process 0")
        return images

    @functools.cached_property
    def batches(self) -> Batches:
        """Its batches."""
        w = self.workload
        return Batches(self.images, w.seed, w.workers, w.batch_size, w.augmentation)

    def start(self) -> State:
        """The state before the first step; a twin's differs by one unit in the last place."""
        state = self.program.init(self.workload.seed)
        if self.workload.twin:
            largest = max(jax.tree.leaves(state.params), key=np.size)
            largest.flags.writeable = True
            element = largest.reshape(-1)[self.workload.twin - 1 :][:1]
            element[:] = np.nextafter(element, np.float32(np.inf))
        return self.program.replicate(state)

    @functools.cached_property
    def arithmetic(self) -> dict:
        """What the bits of this session's runs depend on besides the workload."""
        return {**arithmetic(self.program.devices), "data_sha256": self.images.sha256}

    @functools.cached_property
    def names(self) -> Names:
        """What the numbers of a step's report belong to."""
        abstract = self.program.abstract
        digest = leaf_names(abstract)
        named = jax.tree.unflatten(jax.tree.structure(abstract), digest)
        gradients = [name.replace("params/", "gradients/", 1) for name in digest if name.startswith("params/")]
        magnitude = gradients + digest
        position = {name: i for i, name in enumerate(magnitude)}
        moments = {
            moment: [position[name] for name in jax.tree.leaves(tree)]
            for moment, tree in history(named.opt_state, named.params).items()
        }
        variance = [i for i, name in enumerate(magnitude) if name.startswith("stats/") and name.endswith("/var")]
        return Names(digest, magnitude, moments, variance)

    def steps(self, state: State, epoch: int, first: int = 0, last: int | None = None):
        """Train from step `first` of an epoch up to, but not including, `last`.

        Yields:
          `(step, state, report)` after each step, the report on the host.  The state given
          in and each state yielded is consumed by the step after it.
        """
        last = self.steps_per_epoch if last is None else last
        batch = self._placed(epoch, first) if first < last else None
        for step in range(first, last):
            state, report = self.program.step(state, batch, self._address(epoch, step))
            if step + 1 < last:  # prepared while the device computes
                batch = self._placed(epoch, step + 1)
            yield step, state, jax.device_get(report)

    def faulty_step(self, state: State, epoch: int, step: int, fault: Fault) -> tuple[State, StepReport]:
        """One step with a fault, or with an inactive one in the same executable; `state` survives."""
        address = self._address(epoch, step)
        new, report = self.program.faulty_step(state, self._placed(epoch, step), address, fault)
        return new, jax.device_get(report)

    def evaluate(self, state: State) -> tuple[float, float]:
        """Mean loss and accuracy over all test images, with the running statistics."""
        sums = [self.program.evaluate(state, batch) for batch in self._test_batches]
        loss, correct, count = np.array(jax.device_get(sums), np.float64).sum(axis=0).tolist()
        return loss / count, correct / count

    @functools.cached_property
    def _test_batches(self):
        return [self.program.place(batch) for batch in self.batches.test()]

    def _placed(self, epoch, step):
        return self.program.place(self.batches.train(epoch, step))

    def _address(self, epoch, step):
        return np.array([self.workload.seed, epoch, step], np.int32)
