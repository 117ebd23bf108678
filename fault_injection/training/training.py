"""A training of one's own: what a user writes, and the workload that it becomes."""

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np  # noqa: F401  in the example

from models.site import Site

from ..machine.errors import InputError
from ..machine.sources import closure
from .instrument import ALL, Instrumented, instrument
from .program import Measure, Program
from .step_site import StepSite
from .traced_step import Step
from .training_program import check_metrics, training_program
from .workload import Option, Workload


@dataclasses.dataclass(frozen=True)
class Training:
    """A training as it is: nothing of its step is rewritten.

    A function that returns one is a workload: `FILE.py:FUNCTION` names it.  If the function has an argument `seed`,
    it gets the workload's.

    Attributes:
      init: the state before the first step: any pytree.
      step: `(state, batch) -> state, metrics`, pure; the metrics are a mapping with `loss` and the metric's name,
        or the loss alone.
      batch: the batch of (epoch, step), the same whenever it is asked for.
      steps_per_epoch, epochs: length of the training.
      evaluate: the same metrics of a state on test data.
      metric: by what runs are compared.
      roles: what leaves of the state are, by patterns of their names, where it does not show: `parameters`,
        `statistics`, `running_variance`, `history:MOMENT` or `other`.
      sites: patterns of the sites that a plan draws from; all by default.
      primitives, turns: as `instrument` takes them.

    >>> def training(seed: int = 0) -> Training:
    ...     def step(state, batch):
    ...         return {"w": state["w"] - 0.1 * batch @ state["w"]}, {"loss": state["w"].sum()}
    ...     measure = Measure("loss", "lower", chance=1.0, tolerance=0.01)
    ...     init = lambda: {"w": np.ones((2, 1), np.float32)}
    ...     batch = lambda epoch, step: np.eye(2, dtype=np.float32)
    ...     return Training(init, step, batch, 4, 2, lambda state: {"loss": state["w"].sum()}, measure)
    >>> training().epochs
    2
    """

    init: Callable[[], Any]
    step: Step
    batch: Callable[[int, int], Any]
    steps_per_epoch: int
    epochs: int
    evaluate: Callable[[Any], Any]
    metric: Measure
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sites: str | Sequence[str] = ALL
    primitives: Sequence[str] = ()
    turns: int = 1


@dataclasses.dataclass(frozen=True)
class Started:
    """A training with its initial state, traced.

    Attributes:
      training: what the user's function returned.
      state: its initial state.
      program: its step.
    """

    training: Training
    state: Any
    program: Instrumented


def started(training: Training) -> Started:
    """A training with its initial state, traced; raises InputError where the step cannot be used."""
    for name, value in (("steps_per_epoch", training.steps_per_epoch), ("epochs", training.epochs)):
        if value < 1:
            raise InputError(f"{name} is {value}; expected 1 at least")
    state = _called("init()", training.init)
    batch = _called("batch(0, 0)", lambda: training.batch(0, 0))
    program = instrument(training.step, state, batch, training.sites, training.primitives, training.turns)
    check_metrics(program, training.metric.name)
    return Started(training, state, program)


def _called(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        reason = str(error).partition("\n")[0][:300]
        raise InputError(f"{what} raises {type(error).__name__}: {reason}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTraining(Workload):
    """The workload of a user's training.  The file is its only description."""

    learning_rate: float = 0.0  # which is in the user's code

    OPTIONS: ClassVar[Mapping[str, Option]] = {"epochs": Workload.OPTIONS["epochs"]}
    REQUIRED: ClassVar[Mapping[str, Option]] = {"seed": Workload.REQUIRED["seed"]}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its fields alone: the user's file may compute as it is imported, before a process is set up."""
        return _restored, (dataclasses.asdict(self),)

    @property
    def started(self) -> Started:
        """The training, with its initial state, traced once."""
        return _started(self.name, self.seed)

    @property
    def steps_per_epoch(self) -> int:
        return self.started.training.steps_per_epoch

    def sites(self) -> Mapping[str, Site]:
        return self.started.program.sites

    def owners(self, site: Site) -> int:
        return site.workers if isinstance(site, StepSite) else super().owners(site)

    def kind(self, site: Site) -> str:
        of = {"dot_general": "product", "conv_general_dilated": "convolution", "ragged_dot_general": "ragged product"}
        return of.get(site.kind, site.kind) if isinstance(site, StepSite) else super().kind(site)

    def program(
        self,
        supported: frozenset[str] | None = None,
        devices: int | None = None,
        data_dir: pathlib.Path | None = None,
        reductions: frozenset[str] = frozenset(),
    ) -> Program:
        self.check_supported(supported)
        here = self.started
        program = here.program.supporting(frozenset(here.program.sites) if supported is None else supported)
        return training_program(here.training, here.state, program, reductions)

    def sources(self) -> tuple[pathlib.Path, ...]:
        """The user's file, what it imports from its own folder, and what interprets its step."""
        file = pathlib.Path(self.name.rpartition(":")[0]).resolve()
        return (*closure([file], ["."], file.parent), pathlib.Path(__file__))

    def identity(self) -> dict[str, Any]:
        # The file is known by what is in it, so that a folder can be moved.
        return {"name": pathlib.Path(self.name).name, "seed": self.seed, "workers": self.workers}


def _restored(fields: dict[str, Any]) -> OwnTraining:
    return OwnTraining(**fields)


@functools.lru_cache(maxsize=4)
def _started(name: str, seed: int) -> Started:
    from .workloads import own_function

    make, path = own_function(name)
    try:
        return started(_made(make, seed))
    except InputError as error:
        raise InputError(f"{name.rpartition(':')[2]}: {error}", path) from None


def _made(make: Callable[..., Training], seed: int) -> Training:
    return make(seed=seed) if "seed" in inspect.signature(make).parameters else make()


def own_workload(name: str, make: Callable[..., Any], training: Training) -> OwnTraining:
    """The workload of a function that returns a training."""
    parameter = inspect.signature(make).parameters.get("seed")
    default = parameter.default if parameter is not None else inspect.Parameter.empty
    seed = default if isinstance(default, int) else 123
    workers = max((site.workers for site in _started(name, seed).program.all_sites.values()), default=1)
    return OwnTraining(name=name, workers=workers, epochs=training.epochs, seed=seed)
