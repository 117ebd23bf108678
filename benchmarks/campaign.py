"""Throughput of a campaign: experiments an hour with two jobs and with one, time outside steps, memory of a job.

Each measurement is a campaign of the command line in a fresh folder, one job and two in turns; golden run and
compiled programs are there already.  What is looked at begins when every job has set itself up for every size of
fault: once a job, however many experiments follow.  Time outside training steps is that of one job, from the end of
one experiment to the end of the next: drawing faults, reading states, verdicts, dispatch and the store.
Memory is the resident set of the one job: by how much its median of the last third exceeds that of the second.
"""

import dataclasses
import datetime
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import pairs
from tqdm import tqdm

from fault_injection.campaign.store import Store

JOBS = (1, 2)
PLAN = """
workload = "resnet18"
[options]
dataset = "digits"
width = {width}
batch_size = {batch_size}
epochs = 20
[faults]
experiments = {experiments}
epochs = [10]
seed = {seed}
[faults.models]
INPUT = 1
RD = 1
RBFLIP = 1
N16_RD = 1
N64_WT = 1
[run]
horizon = 11
audit = 0
"""


@dataclasses.dataclass
class Measured:
    """What came of one campaign, since all jobs were set up.

    Attributes:
      an_hour: experiments an hour.
      outside: share of the time that no job spent in a training step, of one job.
      resident: bytes of the largest job, sample by sample.
    """

    an_hour: float
    outside: float
    resident: np.ndarray


def options_of(parser):
    parser.add_argument("--experiments", type=int, default=150, help="of each campaign (default %(default)s)")
    parser.add_argument("--cache", type=pathlib.Path, help="folder of golden runs (default: the commands' own)")


def measure(jobs, seed, options, folder):
    """Run one campaign and look at what it left."""
    plan = folder / "plan.toml"
    numbers = {"width": options.width, "batch_size": options.batch_size, "experiments": options.experiments}
    plan.write_text(PLAN.format(**numbers, seed=seed))
    command = [sys.executable, "-m", "fault_injection", "campaign", plan, "--out", folder / "out", "--jobs", str(jobs)]
    if options.cache:
        command += ["--cache", options.cache.absolute()]
    resident = []
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=pairs.ROOT, stdout=log, stderr=log)
        while process.poll() is None:
            time.sleep(0.5)
            resident.append(largest_child(process.pid))
    if process.returncode:
        sys.exit((folder / "log").read_text())
    with Store(folder / "out") as store:
        rows = store.query("SELECT finished_at, seconds, outside_seconds, setup_seconds FROM experiments")
    rows = sorted((datetime.datetime.fromisoformat(at).timestamp(), *times) for at, *times in rows)
    first = max(i for i, row in enumerate(rows) if row[3] > 0)
    seconds = rows[-1][0] - rows[first][0]
    stepping = sum(row[1] - row[2] for row in rows[first + 1 :])
    counted = len(rows) - 1 - first
    return Measured(counted / seconds * 3600, 1 - stepping / seconds / jobs, np.array(resident[-int(seconds / 0.5) :]))


def largest_child(parent):
    """Bytes resident of the largest process that another has started; 0 where the system does not say."""
    sizes = [0]
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            sizes.append(int(fields[21]) * 4096)
    return max(sizes)


def main():
    options = pairs.parse(__doc__, options_of)
    options.width = options.width or 8
    found = pairs.start(options)
    pairs.show_machine(found)
    measured = {jobs: [] for jobs in JOBS}
    for i in tqdm(range(-1, options.pairs), desc="rounds"):
        for jobs in JOBS[:: -1 if i % 2 else 1]:
            with tempfile.TemporaryDirectory() as folder:
                result = measure(jobs, i + 1, options, pathlib.Path(folder))
            if i >= 0:  # the first round makes the golden run, and compiles
                measured[jobs].append(result)
    for jobs in JOBS:
        print(f"{jobs} job(s): experiments an hour {[round(m.an_hour) for m in measured[jobs]]}")
    thirds = [np.array_split(m.resident, 3) for m in measured[1]]
    print(f"memory of the one job: {max(m.resident.max() for m in measured[1]) / 2**20:.0f} MiB")
    where = f"width {options.width}, batch {options.batch_size}"
    claims = [
        pairs.claim(
            f"experiments an hour, one job / two jobs, {where}",
            [one.an_hour / two.an_hour for one, two in zip(measured[1], measured[2], strict=True)],
            1 / 1.6,
        ),
        pairs.claim(f"time of a job outside training steps, {where}", [m.outside for m in measured[1]], 0.1),
        pairs.claim(
            f"resident set of a job, growth over a third of {options.experiments} experiments",
            [np.median(last) / np.median(middle) - 1 for _, middle, last in thirds],
            0.02,
        ),
    ]
    pairs.write(options, found, claims, an_hour={jobs: [m.an_hour for m in measured[jobs]] for jobs in JOBS})


if __name__ == "__main__":
    main()
