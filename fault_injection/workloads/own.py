"""The workload that a user's training becomes."""

import contextlib
import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from ..any_step.traced_training import TracedTraining, traced_training
from ..any_step.training import Training
from ..any_step.training_outputs import check_evaluate, logits
from ..any_step.training_program import training_program
from ..machine.errors import InputError
from ..machine.sources import with_own_folder
from ..models.bits import unstruck
from ..models.site import Site
from ..seam.program import Program
from ..seam.state_faults import left_out_of_targets
from ..seam.workload import Option, Workload
from .own_file import own_function


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTraining(Workload):
    """The workload of a user's training.  The file is its only description."""

    learning_rate: float = 0.0  # which is in the user's code

    OPTIONS: ClassVar[Mapping[str, Option]] = {"epochs": Workload.OPTIONS["epochs"]}
    REQUIRED: ClassVar[Mapping[str, Option]] = {"seed": Workload.REQUIRED["seed"]}

    @property
    def started(self) -> TracedTraining:
        """The training, with its initial state, traced once."""
        return _started(self.name, self.seed)

    @property
    def steps_per_epoch(self) -> int:
        return self.started.training.steps_per_epoch

    def sites(self) -> Mapping[str, Site]:
        return {name: site for name, site in self.started.program.sites.items() if not _beyond_masks(site)}

    def remarks(self) -> list[str]:
        program, said = self.started.program, [*self.started.said]
        if program.meshes and any(not site.axes for site in program.all_sites.values()):
            shared = f"{max(mesh.size for mesh in program.meshes)} devices share out the operands"
            said.append(f"{shared}; without workers, a position is one of the global operand")
        said += [f"not a target: {what}" for what in left_out_of_targets(self.started.state)]
        said += [f"not a target: {site.name} {why}" for site in program.sites.values() if (why := _beyond_masks(site))]
        return [*said, *(f"not covered: {what}" for what in program.not_covered)]

    def program(
        self,
        supported: frozenset[str] | None = None,
        devices: int | None = None,
        data_dir: pathlib.Path | None = None,
        reductions: frozenset[str] = frozenset(),
    ) -> Program:
        self.check_supported(supported)
        program = self.started.program
        program = program.supporting(frozenset(program.sites) if supported is None else supported)
        with _told_of(self.name):
            made = training_program(dataclasses.replace(self.started, program=program), reductions)
        users = {name: _told_of(self.name)(getattr(made, name)) for name in ("data", "batch", "evaluate")}
        if (load := made.extras.load) is not None:
            made = dataclasses.replace(made, extras=dataclasses.replace(made.extras, load=_told_of(self.name)(load)))
        return dataclasses.replace(made, **users)

    def logits(self) -> int | None:
        made = self.started
        return logits(made.training, made.program.traced.state, made.given)

    def measurable(self) -> bool:
        made = self.started
        if made.program.meshes:
            raise InputError(f"{self.name}: its step runs on a mesh of devices; the answers of one device are judged")
        if made.training.predict is None:
            check_evaluate(made.training, made.program.traced.state, made.given)
        return True

    def sources(self) -> tuple[pathlib.Path, ...]:
        """The user's file, what it imports from its own folder, and what interprets its step."""
        file = pathlib.Path(self.name.rpartition(":")[0]).resolve()
        return (*with_own_folder(file), *super().sources())

    def identity(self) -> dict[str, Any]:
        # The file is known by what is in it, so that a folder can be moved.
        return {"name": pathlib.Path(self.name).name, "seed": self.seed, "workers": self.workers}


def _beyond_masks(site: Site) -> str:
    """Why no fault strikes a site; empty where one can."""
    return next(filter(None, (unstruck(tensor.dtype) for tensor in site.operands.values())), "")


@functools.lru_cache(maxsize=4)
def _started(name: str, seed: int) -> TracedTraining:
    make, _ = own_function(name)
    with _told_of(name):
        return traced_training(make(seed=seed) if "seed" in inspect.signature(make).parameters else make())


@contextlib.contextmanager
def _told_of(name: str) -> Iterator[None]:
    """Errors name the user's file and function; it is a decorator, too."""
    try:
        yield
    except InputError as error:
        file, _, function = name.rpartition(":")
        raise InputError(f"{function}: {error}", file) from None


def own_workload(name: str, make: Callable[..., Any], training: Training) -> OwnTraining:
    """The workload of a function that returns a training."""
    parameter = inspect.signature(make).parameters.get("seed")
    default = parameter.default if parameter is not None else inspect.Parameter.empty
    seed = default if isinstance(default, int) else 123
    workers = max((site.owners or 1 for site in _started(name, seed).program.all_sites.values()), default=1)
    return OwnTraining(name=name, workers=workers, epochs=training.epochs, seed=seed)
