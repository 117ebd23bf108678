"""Campaigns as users run them: real processes, really killed, and every experiment once."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import killed
import own_training
import pytest
from whole import WHOLE

from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.store import Store
from fault_injection.runs.outcome import MASKED

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]

# A training that compiles in a second, because every process that is killed is started again.
WORKLOAD = f"{pathlib.Path(own_training.__file__)}:slowed"
PLAN = """
workload = "{workload}"
[faults]
experiments = {experiments}
seed = 5
[faults.models]
RD = {{ weight = 1, values = "worst_case" }}
RBFLIP = 1
[run]
exit = "exact"
"""


@pytest.fixture(scope="module", autouse=True)
def as_users_have_it():
    """Optax mixes types, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield


KILLS = 4 if WHOLE else 3
LONGER, SHORTER = 12 * KILLS, 16  # experiments; of the longer plan so many that all kills fall into them


def start(folder: pathlib.Path, cache, repository, *options, experiments=SHORTER):
    """The command, in a process group of its own."""
    folder.mkdir(exist_ok=True)
    plan = folder / "plan.toml"
    plan.write_text(PLAN.format(workload=WORKLOAD, experiments=experiments))
    command = ["campaign", plan, "--out", folder / "out", "--cache", cache, *options]
    return killed.start(folder / "log", repository, *command)


def verdicts(folder):
    with Store(folder / "out") as store:
        rows = store.query("SELECT number, outcome, rule, steps, exit FROM experiments ORDER BY number")
    return [tuple(row) for row in rows]


def wait_for(folder, process, experiments):
    """Until so many experiments are done."""
    while True:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(InputError):  # there is no file yet
            if len(verdicts(folder)) >= experiments:
                return
        time.sleep(0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cache, repository):
    """That of a campaign that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder, cache, repository, "--jobs", "2", experiments=LONGER).wait(600) == 0
    return folder


@pytest.fixture(scope="module")
def longer(folder):
    """Its verdicts."""
    found = verdicts(folder)
    assert [number for number, *_ in found] == list(range(LONGER))
    return found


@pytest.fixture(scope="module")
def undisturbed(longer):
    """Of the shorter plan, whose experiments are the same."""
    return longer[:SHORTER]


def test_kills_of_driver_and_jobs_change_nothing(tmp_path, cache, repository, longer):
    """One while it sets up, then one in each part of the experiments, at any moment; every third hits the driver."""
    rng = random.Random(1)
    process = start(tmp_path, cache, repository, "--jobs", "2", experiments=LONGER)
    for kill in range(KILLS):
        if kill:
            wait_for(tmp_path, process, kill * LONGER // KILLS - 9)
        time.sleep(rng.uniform(0, 1) if kill else rng.uniform(1, 3))
        assert process.poll() is None, (tmp_path / "log").read_text()
        if killed.kill(process, rng, driver=kill % 3 == 0):
            process = start(tmp_path, cache, repository, "--jobs", "2", experiments=LONGER)
    while process.poll() is None:
        time.sleep(0.5)
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert verdicts(tmp_path) == longer


def test_a_second_driver_is_refused(tmp_path, cache, repository):
    first = start(tmp_path, cache, repository, "--jobs", "1")
    while not (tmp_path / "out" / "lock").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    second = start(tmp_path, cache, repository, "--jobs", "1")
    assert second.wait(60) == 2
    assert "another process is running a campaign in this folder" in (tmp_path / "log").read_text()
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()


def test_interrupted_it_says_so_and_goes_on(tmp_path, cache, repository, undisturbed):
    process = start(tmp_path, cache, repository, "--jobs", "1")
    wait_for(tmp_path, process, 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "goes on where it stopped" in (tmp_path / "log").read_text()
    assert 3 <= len(verdicts(tmp_path)) < SHORTER
    assert start(tmp_path, cache, repository, "--jobs", "1").wait(300) == 0
    assert verdicts(tmp_path) == undisturbed


@pytest.fixture
def scheduler(tmp_path, repository):
    """The address of a Dask scheduler with two workers, and the workers' processes."""
    file = tmp_path / "dask.json"
    environment = os.environ | {"PYTHONPATH": str(repository)}

    def run(module, *options):
        command = [sys.executable, "-m", f"distributed.cli.{module}", "--scheduler-file", file, *options]
        with (tmp_path / f"{module}.log").open("a") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    processes = [run("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")]
    try:
        while not file.exists():
            time.sleep(0.1)
        processes += [run("dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard") for _ in range(2)]
        yield json.loads(file.read_text())["address"], processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_scheduler_of_which_a_worker_is_killed(tmp_path, cache, repository, undisturbed, scheduler):
    address, workers = scheduler
    process = start(tmp_path, cache, repository, "--scheduler", address)
    wait_for(tmp_path, process, 10)
    workers[0].kill()
    assert process.wait(300) == 0, (tmp_path / "log").read_text()
    assert verdicts(tmp_path) == undisturbed


def test_one_experiment_again_and_the_tables(folder, cache, repository, longer):
    out = folder / "out"
    number, outcome = next((n, o) for n, o, *_ in longer if o != MASKED)
    again = ["replay", out, "--id", str(number), "--cache", cache]  # with one thread, as the campaign's jobs
    subprocess.run([sys.executable, "-m", "fault_injection", *again], cwd=repository, check=True)
    for command in (["export", out, "--id", number], ["export", out, "--format", "parquet"], ["report", out]):
        assert main([*map(str, command)]) == 0
    found = json.loads((out / f"experiment_{number}" / "outcome.json").read_text())
    assert found["outcome"] == outcome
    file = f"experiment_{number}.csv"
    assert (out / "export" / file).read_text() == (out / f"experiment_{number}" / file).read_text()
    import pyarrow.parquet  # which the quick tests' environment does not have

    table = pyarrow.parquet.read_table(out / "export" / "experiments.parquet")
    assert sorted(table.column("number").to_pylist()) == list(range(LONGER))
    assert (out / "report.html").exists()
