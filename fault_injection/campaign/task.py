"""What the jobs of a campaign are told, whatever its question, and how each sets itself up.

Each sets itself up once and keeps what experiments share; all that it is told is picklable, and a
task that an engine runs twice gives the same twice.
"""

import dataclasses
import functools
import pathlib
import platform
import uuid
from typing import Any, Generic, NamedTuple, TypeVar

from ..machine import environment
from ..machine.errors import InputError
from ..machine.termination import heed
from ..runs.golden_run import Golden

PlanType = TypeVar("PlanType")


@dataclasses.dataclass(frozen=True)
class Task(Generic[PlanType]):
    """What all tasks of a campaign need to know.

    Attributes:
      plan: the campaign's.
      cache: folder of golden runs, the same for all jobs; None is `environment.cache_folder()`.
      data_dir: where the dataset is; None lets its reader look.
      matrix_precision: key of `environment.MATRIX_PRECISIONS`.
      name: of its states in the golden run's folder; by default no other task's.
    """

    plan: PlanType
    cache: pathlib.Path | None = None
    data_dir: pathlib.Path | None = None
    matrix_precision: str = "float32"
    name: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def reductions(self) -> frozenset[str]:
        """What the steps of its program report beside what every step does."""
        return frozenset()

    def set_up(self) -> None:
        """Make this process one of the task's jobs; nothing runs yet."""
        heed()  # a task that was handed out before the signal
        # On CPUs one thread per job.  Whoever started the job chose the processor that it is bound to, if any.
        environment.prepare(1, self.matrix_precision, bind=False)


class Ready(NamedTuple):
    """What the driver learns when the golden run has been made.

    Attributes:
      key: content hash of all that results depend on.
      golden_key: of the golden run, which every job must come to as well.
      about: what else is known of it, and kept.
      walks: folder of the states that experiments fork from; None where none do.
    """

    key: str
    golden_key: str
    about: dict[str, Any]
    walks: pathlib.Path | None = None


def require_alike(golden: Golden, key: str) -> None:
    """Raise InputError where this machine does not compute the bits of the golden run of this key."""
    if golden.key != key:
        differs = "; ".join(difference for _, difference in golden.elsewhere()) or "another cache, data or code"
        raise InputError(f"the golden run was made where bits are others than on {platform.node()}: {differs}")


def environment_of(golden: Golden) -> dict[str, Any]:
    """The environment of a result: arithmetic, libraries, host."""
    return {**golden.determined_by["arithmetic"], **_here()}


@functools.cache
def _here() -> dict[str, Any]:
    return {**environment.describe(), "host": platform.node()}
