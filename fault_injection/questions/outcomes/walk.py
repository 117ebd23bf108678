"""The walk: once through an epoch of the golden run, leaving the exact states that experiments fork from."""

import dataclasses
import pathlib
from collections.abc import Iterable

from ...machine.files import DamagedFile
from ...runs.follow import follow
from ...runs.golden_run import Golden, Repeats
from ...runs.run_store import RunStore
from ...runs.steps import Address, Observer, addresses
from ...seam.leaves import State
from ...seam.report import StepReport


def walk_folder(walks: pathlib.Path, epoch: int) -> pathlib.Path:
    """Where the states within an epoch are, of a campaign's walks; removed when no experiment needs them."""
    return walks / f"{epoch:04d}"


@dataclasses.dataclass(frozen=True)
class Walk:
    """States within an epoch of the golden run, on disk while experiments need them.

    Attributes:
      golden: the run, made as far as the epoch.
      walks: folder of the states of one campaign.
      epoch: the one walked through.
    """

    golden: Golden
    walks: pathlib.Path
    epoch: int

    @property
    def _store(self) -> RunStore:
        return dataclasses.replace(self.golden.store, folder=walk_folder(self.walks, self.epoch))

    def go(self, steps: Iterable[int]) -> int:
        """Leave the state before each of `steps`, where it is not there; returns how many steps it computed.

        The state before the step that an epoch no longer has is the one after its last.

        Raises:
          NotRepeated: a step did not reproduce the golden record.
        """
        golden, store = self.golden, self._store
        with store.alone():
            missing = set(steps) - set(store.checkpoints())
            if not missing:
                return 0
            state = golden.fetch_state_before(self.epoch)
            if 0 in missing:
                store.write_checkpoint(0, state)
            last = Address(self.epoch, max(missing) - 1)
            through = addresses(Address(self.epoch, 0), last, golden.program.steps_per_epoch)
            follow(golden.program, state, through, observers=[Repeats(golden), _Leaving(store, missing)])
        return max(missing)

    def state_before(self, step: int) -> State:
        """The golden state before a step that the walk was asked for, on the devices.

        It is walked for again where it was removed or is damaged.
        """
        try:
            state = self._store.read_checkpoint(step)
        except (FileNotFoundError, DamagedFile):
            self._store.remove_checkpoint(step)
            self.go([step])
            state = self._store.read_checkpoint(step)
        return self.golden.program.place(state)


class _Leaving(Observer):
    """Keeps the states before some steps."""

    def __init__(self, store: RunStore, wanted: set[int]):
        self._store, self._wanted = store, wanted

    def after_step(self, at: Address, state: State, report: StepReport) -> None:
        if at.step + 1 in self._wanted:
            self._store.write_checkpoint(at.step + 1, state)
