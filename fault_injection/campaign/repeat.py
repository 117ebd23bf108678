"""A single experiment of a campaign again: as an injection file, and as a replay to the end."""

import functools
import pathlib
import shutil
from typing import Any

import numpy as np

from ..faults.injection import Injection, write_injection
from ..machine.errors import InputError
from ..machine.files import write_atomically
from ..machine.processes import say
from ..runs.replay_run import Replay, replay
from .jobs import Task, laboratory, plan_key
from .sampling import choose, draw
from .store import Store

TABLES = ("experiments", "environments", "events", "walks")


def as_injection(task: Task, number: int, expected: str) -> Injection:
    """Experiment `number` by its values, for which its faulty step is run.

    Args:
      expected: the campaign's key; where this process would not come to it, that is said.

    Raises:
      InputError: the plan has no such experiment.
    """
    if not 0 <= number < task.plan.experiments:
        raise InputError(f"experiment {number} is not of this campaign; expected 0 to {task.plan.experiments - 1}")
    lab = laboratory(task)
    if plan_key(lab) != expected:
        say("note: the campaign was made with another precision, by other code or where bits are others; so is this")
    choice = choose(task.plan, draw(task.plan, number))
    lab.golden.ensure(choice.experiment.epoch + 1)
    try:
        struck = lab.strike(choice)[1].struck
    finally:
        shutil.rmtree(lab.walks, ignore_errors=True)
    assert struck is not None  # a faulty step's
    return choice.injection(task.plan, np.asarray(struck.new))


def replay_experiment(task: Task, number: int, expected: str, out: pathlib.Path, command: list[str]) -> Replay:
    """Replay experiment `number` to the end, with everything that a replay writes, its injection file too."""
    injection = as_injection(task, number, expected)
    write_injection(out / f"experiment_{number}.csv", injection)
    places: dict[str, Any] = {"cache": task.cache, "data_dir": task.data_dir}
    return replay(injection, f"experiment_{number}", out, **places, devices=1, command=command)


def export_tables(store: Store, out: pathlib.Path) -> list[pathlib.Path]:
    """Write the campaign's tables as Parquet files to `out`; a curve becomes two lists, `loss` and `accuracy`.

    Raises:
      InputError: PyArrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet tables need PyArrow: pip install 'fault-injection[parquet]'") from None
    written = []
    for name in TABLES:
        rows = [dict(row) for row in store.query(f"SELECT * FROM {name}")]
        for row in rows:
            if "curve" in row:
                row["loss"], row["accuracy"] = np.frombuffer(row.pop("curve"), "<f4").reshape(-1, 2).T.tolist()
        table = pyarrow.Table.from_pylist(rows)
        path = out / f"{name}.parquet"
        write_atomically(path, functools.partial(pyarrow.parquet.write_table, table))
        written.append(path)
    return written
