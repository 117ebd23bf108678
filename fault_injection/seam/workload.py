"""A workload: a named network, dataset, optimizer and schedule, described by options and ready to become a program."""

import abc
import dataclasses
import functools
import inspect
import pathlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from ..machine.reading import Kind, number, one_of, whole
from ..machine.sources import with_own_folder
from ..machine.user_files import module_named
from ..models.precisions import PRECISIONS
from ..models.site import Site
from .leaves import Role
from .program import Program
from .stages import CHECKPOINT, GRADIENT, STATE, UPDATE
from .state_spec import StateSpec
from .strategies import KIND, REPLICATED, Strategy, parse_strategy


class Option(NamedTuple):
    """An option of a workload: a row of an injection file, a flag of a command, a key of a plan.

    Attributes:
      kind: how its value is read.
      meaning: what it is, in a few words.
      scales: the parts of a fault's place that this option scales, because it says how much there
        is to count in: `epoch`, `step`, `worker`, `position` or `layer`; empty for none.
    """

    kind: Kind[Any]
    meaning: str
    scales: tuple[str, ...] = ()


# Of workloads whose network is written out here.
STRATEGY = Option(KIND, "how the workers share state and work: one state (replicated), a copy each (ddp), …")
PRECISION = Option(one_of(PRECISIONS), "number format of activations, their gradients and what operations read")


class Contradiction(NamedTuple):
    """An option that does not go with the others, and a sentence that says why."""

    option: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(abc.ABC):
    """Everything that determines a fault-free training run, apart from the machine.

    A family of workloads derives its own class, with its own options as further fields.  An
    instance is a value: equal instances make equal runs.

    Attributes:
      name: as in an injection file.
      learning_rate: the initial one.
      workers: data-parallel replicas.
      epochs: length of the training.
      seed: of initialisation, data order and everything else that is random.
      strategy: text of a strategy, see `rules`; a family whose programs know one alone has no such option.
    """

    name: str
    learning_rate: float
    workers: int
    epochs: int
    seed: int = 123
    strategy: str = str(REPLICATED)

    # Every option by the name of its field, in the order in which files list them.
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "workers": Option(whole(1, 4096), "data-parallel workers", ("worker", "position")),
        "epochs": Option(whole(1, 100_000), "length of the training", ("epoch",)),
    }
    # The two that every injection file has.
    REQUIRED: ClassVar[Mapping[str, Option]] = {
        "learning_rate": Option(
            number(lambda n: 1e-30 < n < 1e30, "a positive number, from 1e-30 to 1e30"), "initial learning rate"
        ),
        "seed": Option(whole(0), "of everything random"),
    }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by class and fields: another process finds the class of a user's own workload by its file."""
        return _rebuilt, (dataclasses.asdict(self), type(self).__module__, type(self).__qualname__)

    @property
    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """Steps in each epoch."""

    @abc.abstractmethod
    def sites(self) -> Mapping[str, Site]:
        """The operations that a fault can strike, by name, in the order in which a step runs them."""

    def of_one_example(self) -> Mapping[str, Site]:
        """The same operations where every worker has one example; none where these are not known."""
        return {}

    def target(self, name: str) -> Site:
        """What a fault can strike, by name: an operation, or an array of `leaves`.

        Raises:
          KeyError: there is none.
        """
        if (found := self.find(name)) is None:
            raise KeyError(name)
        return found

    def find(self, name: str) -> Site | None:
        """As `target`; None where there is none."""
        return self.sites().get(name) or self.leaves().get(name)

    def leaves(self) -> Mapping[str, Site]:
        """What a fault can strike beside operations, by name: leaves of the state, gradients, and the update."""
        return _leaves(self)

    def state(self) -> StateSpec:
        """What its state consists of: here that of its program."""
        return self.program(frozenset()).state

    def components(self) -> Mapping[str, list[str]]:
        """Groups of parameters whose vulnerability is told apart, as patterns of their names without `params/`."""
        return {"all parameters": ["*"]}

    def parameters(self) -> list[str]:
        """Names of the parameters that a fault can strike, in the order of the forward pass where that is known."""
        targets = self.leaves()
        return [leaf.name for leaf in self.state().leaves if leaf.role == Role.PARAMETER and leaf.name in targets]

    def logits(self) -> int | None:
        """How many logits an output has at inference; None where outputs are not known.

        Raises:
          InputError: outputs are known, and cannot be had.
        """
        return None

    def measurable(self) -> bool:
        """Whether it is known how bad a state is as a function of its parameters, by the measure alone.

        Raises:
          InputError: it is known, and cannot be had.
        """
        return False

    def lookups(self) -> Mapping[str, int]:
        """Parameters of which an example reads one row, by name, with the column of the input that names the row."""
        return {}

    @property
    def rules(self) -> Strategy:
        """How the workers share their work."""
        return parse_strategy(self.strategy)

    @property
    def copies(self) -> bool:
        """Whether each worker has its own copy of the state."""
        return self.rules.copies

    def owners(self, site: Site) -> int:
        """Of how many workers, or loaders of checkpoints, each has its own of what is struck; 0 where all share it."""
        if site.owners is not None:
            return site.owners
        if site.stage == STATE:
            return self.workers if self.copies else 0
        if site.stage == CHECKPOINT:
            loaders = self.rules.loaders(self.workers)
            return loaders if loaders > 1 else 0
        return 0 if site.stage in (GRADIENT, UPDATE) else self.workers

    def check_supported(self, supported: frozenset[str] | None) -> None:
        """See that a program can be made that strikes these; raises ValueError."""
        for name in sorted((supported or frozenset()) - self.sites().keys()):
            if name not in self.leaves():
                raise ValueError(f"{name!r} is not a site of {self.name}")

    @abc.abstractmethod
    def program(
        self,
        supported: frozenset[str] | None = None,
        devices: int | None = None,
        data_dir: pathlib.Path | None = None,
        reductions: frozenset[str] = frozenset(),
    ) -> Program:
        """What runs of this workload need; data are read, and functions compiled, when they are first needed.

        Args:
          supported: operations, gradients and updates that `Program.faulty_step` can strike, by name; None for all
            operations.
          devices: how many to use; by default as many as divide the workers.
          data_dir: where the dataset is; by default where its reader looks.
          reductions: of `models.observe.reductions.CHOICES`, or `WHOLE_RESULTS`: what every step reports of
            tensors, where the program has such tensors.

        Raises:
          ValueError: something supported is not a site.
        """

    def sources(self) -> tuple[pathlib.Path, ...]:
        """Files whose code, with what they import, determines the bits of this workload's runs.

        These are that of its class and, of a user's class, what that imports from its own folder.
        """
        return with_own_folder(pathlib.Path(inspect.getfile(type(self))).resolve())

    def identity(self) -> dict[str, Any]:
        """What determines the bits of its runs, by name.

        Here these are all fields but the length: a longer run continues a shorter one.  A workload in which a
        step depends on the length, as by its learning rate, has that too.
        """
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "epochs"}

    def kind(self, site: Site) -> str:
        """What kind of operation a site is, in a word or two; sites of one kind are counted together."""
        return site.kind

    def remarks(self) -> list[str]:
        """What is to be said of its sites as a whole, such as which operations are none; one sentence per line."""
        return []

    def changed(self, **options: Any) -> Self:
        """This workload with some options replaced, and what those imply for others that were not given."""
        return dataclasses.replace(self, **options)

    def contradiction(self) -> Contradiction | None:
        """The first option that does not go with the others; None where all do."""
        return None

    def unscaled(self, new: Self) -> list[str]:
        """What stays as it is when a fault is scaled from this workload to `new`, one sentence per line."""
        return []

    def data_at_hand(self, data_dir: pathlib.Path | None = None) -> bool:
        """Whether the dataset can be read without a download."""
        return True

    @property
    def label(self) -> str:
        """Name of its folders: letters, digits, dots, hyphens and underscores."""
        return re.sub(r"[^\w.-]+", "_", self.name, flags=re.ASCII)

    @property
    def title(self) -> str:
        """What it is, such as `resnet18 on digits`."""
        return self.name

    @property
    def details(self) -> str:
        """How large it is, such as `width 8, batches of 128 on 8 workers, 20 epochs of 11 steps`."""
        return f"{self.workers} worker(s), {self.epochs} epochs of {self.steps_per_epoch} steps"

    def embedded(self) -> Self:
        """The embedded default: what two cores train in a minute or so; the workload itself where it is small."""
        return self

    def options(self) -> dict[str, Any]:
        """The values of all its options by name."""
        return {name: getattr(self, name) for name in (*self.REQUIRED, *self.OPTIONS)}


def _rebuilt(fields: dict[str, Any], module: str, name: str) -> Workload:
    found: Workload = getattr(module_named(module), name)(**fields)
    return found


@functools.lru_cache(maxsize=8)
def _leaves(workload: Workload) -> Mapping[str, Site]:
    from .beside import sites_beside  # which imports JAX

    state = workload.state()
    return {**sites_beside(state), **state.exchanged}


def narrower(precision: str) -> str:
    """How a description of a workload begins: its format, where that is narrower than usual.

    >>> narrower("bfloat16"), narrower("float32")
    ('bfloat16, ', '')
    """
    return "" if precision == "float32" else f"{precision}, "


def shared_out(workload: Workload) -> str:
    """How a description of a workload goes on whose workers do not simply share one state."""
    return "" if workload.rules == REPLICATED else f"strategy {workload.strategy}, "


def format_option(value: object) -> object:
    """An option's value as it stands in a file: counts as 2/2/2/2, all others as they are.

    >>> format_option((2, 2, 2, 2))
    '2/2/2/2'
    """
    return "/".join(map(str, value)) if isinstance(value, tuple) else value
