"""The walk: once through an epoch of the golden run, leaving the exact states that experiments fork from."""

import dataclasses
import pathlib
from collections.abc import Iterable

from ..machine.files import DamagedFile
from ..runs.golden_run import Golden
from ..runs.run_store import RunStore
from ..training.explicit import State


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
        return RunStore(walk_folder(self.walks, self.epoch), self.golden.session.program.abstract)

    def go(self, steps: Iterable[int]) -> int:
        """Leave the state before each of `steps`, where it is not there; returns how many steps it computed.

        The state before the step that an epoch no longer has is that after its last.

        Raises:
          NotRepeated: a step did not reproduce the golden record.
        """
        with self._store.alone():
            missing = set(steps) - set(self._store.checkpoints())
            if not missing:
                return 0
            state = self.golden.state_before(self.epoch)
            record = self.golden.record(self.epoch)
            if 0 in missing:
                self._store.write_checkpoint(0, state)
            for step, state, report in self.golden.session.steps(state, self.epoch, 0, max(missing)):
                self.golden.compare(record, self.epoch, step, report.digest)
                if step + 1 in missing:
                    self._store.write_checkpoint(step + 1, state)
        return max(missing)

    def state_before(self, step: int) -> State:
        """The golden state before a step that the walk was asked for, on the devices.

        Walked for again where it was removed or is damaged.
        """
        try:
            state = self._store.read_checkpoint(step)
        except (FileNotFoundError, DamagedFile):
            self._store.remove_checkpoint(step)
            self.go([step])
            state = self._store.read_checkpoint(step)
        return self.golden.session.program.replicate(state)
