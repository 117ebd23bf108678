"""Throughput of a campaign: experiments per hour with one job and with two, time outside steps, memory of a job.

Each measurement runs the command line's campaign in a fresh folder, with one job and with two jobs in turns.  The
golden run and the compiled programs exist already.  Each job sets itself up once for each size of fault, however many
experiments follow; the measurement begins when every job has done so.

Time outside training steps is the time that a job needs to draw faults, read states, judge, dispatch and store.
It is measured from the end of one experiment to the end of the next.
Memory is the resident set of the one job.  Its growth compares the median of the last third of the samples with the
median of the second third.
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

from fault_injection.questions.outcomes.store import Store

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
    """Numbers of one campaign, counted from when all jobs were set up.

    Attributes:
      per_hour: experiments per hour, of all jobs together.
      outside: share of a job's time outside training steps, the mean over the jobs.
      resident: resident bytes of the largest job, one number per sample.
    """

    per_hour: float
    outside: float
    resident: np.ndarray


def options_of(parser):
    parser.add_argument("--experiments", type=int, default=150, help="experiments per campaign (default %(default)s)")
    parser.add_argument("--cache", type=pathlib.Path, help="folder of golden runs (default: that of the commands)")


def measure(jobs, seed, options, folder):
    """Run one campaign and read the numbers from its store."""
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
    """Resident bytes of the largest child process of `parent`; 0 if the system has no /proc."""
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
            if i >= 0:  # the first round makes the golden run and compiles
                measured[jobs].append(result)
    for jobs in JOBS:
        print(f"{jobs} job(s): experiments per hour {[round(m.per_hour) for m in measured[jobs]]}")
    thirds = [np.array_split(m.resident, 3) for m in measured[1]]
    print(f"memory of a job: {max(m.resident.max() for m in measured[1]) / 2**20:.0f} MiB")
    where = f"width {options.width}, batch {options.batch_size}"
    claims = [
        pairs.claim(
            f"experiments per hour, one job / two jobs, {where}",
            [one.per_hour / two.per_hour for one, two in zip(measured[1], measured[2], strict=True)],
            1 / 1.6,
        ),
        pairs.claim(f"time of a job outside training steps, {where}", [m.outside for m in measured[1]], 0.1),
        pairs.claim(
            f"resident set of a job, growth over a third of {options.experiments} experiments",
            [np.median(last) / np.median(middle) - 1 for _, middle, last in thirds],
            0.02,
        ),
    ]
    pairs.write(options, found, claims, per_hour={jobs: [m.per_hour for m in measured[jobs]] for jobs in JOBS})


if __name__ == "__main__":
    main()
