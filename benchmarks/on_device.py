"""All that a machine with an accelerator is asked, in pieces of less than ten minutes, and a table at the end.

    python benchmarks/on_device.py                    # writes results/devices/NAME/
    python benchmarks/on_device.py --data-dir DIR     # and the published scale, with CIFAR-10 (docs/cifar10.md)
    python benchmarks/on_device.py --small            # everything small: some minutes on two processors

Each piece is a process of its own.  The same command goes on where it was stopped: a piece that has written its file is
not run again, and a replay or campaign that ran out of time resumes.  The table names what is missing.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator

import pairs

PIECE = 540  # seconds that a piece may take
GRACE = 60  # seconds in which a piece that ran out of time keeps what it has
FEW = {"dataset": "digits", "width": 2, "blocks": [1, 1, 1, 1], "batch_size": 128, "workers": 4}
# Own trainings that are asked where their libraries are installed.
OWN = ("flax_linen", "flax_nnx", "equinox", "llama", "diffusion", "resnet18_flax", "shard_map")
QUICK = ["injections/quick_start.csv", "injections/backward_short_term_infs_nans.csv"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One process.

    Attributes:
      name: of the piece, and of the file or folder that it writes.
      command: what follows `python`; `OUT` stands for that file or folder.
      ends: the file, seen from `OUT`, whose presence says that the piece has ended; "" is `OUT` itself.
      read: its rows of the table, from that file: `(what, found, as it must be)`.
      environment: variables of the process.
    """

    name: str
    command: list[str]
    ends: str
    read: "Callable[[pathlib.Path], list[Row]]"
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


Row = tuple[str, str, str]


def claims(path: pathlib.Path) -> list[Row]:
    """The claims of a benchmark."""
    rows = []
    for claim in json.loads(path.read_text())["claims"]:
        found = f"{claim['median']:.4g}"
        if "interval" in claim:
            low, high = claim["interval"]
            found += f" [{low:.4g}, {high:.4g}]"
        if "of" in claim:
            found += f" of {claim['of']}"
        # Bounds of times are for two processors, so that elsewhere they judge nothing.
        rows.append((claim["claim"], found, ("yes" if claim["met"] else "no") if claim["bound"] == 0 else ""))
    return rows


def tests(path: pathlib.Path) -> list[Row]:
    """How many tests passed, and the names of those that did not."""
    suite = xml.etree.ElementTree.parse(path).getroot()
    cases = list(suite.iter("testcase"))
    failed = [
        f"{c.get('classname')}.{c.get('name')}"
        for c in cases
        if c.find("failure") is not None or c.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    found = f"{len(cases) - skipped - len(failed)} passed, {skipped} skipped, {len(failed)} failed"
    return [
        ("tests on this device", ": ".join([found, *failed[:1]]), "no" if failed else "yes"),
        *(("test that failed", name, "no") for name in failed),
    ]


def verdict(path: pathlib.Path) -> list[Row]:
    """The verdict of a replay."""
    outcome = json.loads(path.read_text())
    name = path.parent.name
    published = name.rpartition("-")[2].replace("_", " ")
    said = outcome["outcome"] + (", exactly" if outcome["exactly_masked_after"] is not None else "")
    return [(f"verdict of {name}", said, "" if "-" not in name else f"published: {published}")]


def rates(path: pathlib.Path) -> list[Row]:
    """The rates of a campaign."""
    command = [sys.executable, "-m", "fault_injection", "status", path.parent, "--json"]
    found = json.loads(subprocess.check_output(command, cwd=pairs.ROOT, text=True))
    rate = found["not_masked"]
    share = f"{rate['share']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}]"
    return [(f"not masked, of a campaign's {found['done']} experiments", share, "")]


def bits(small: bool, data: list[str]) -> Iterator[Piece]:
    """The bits of each kind of network, and of trainings of users' own."""
    full = {"batch_size": 1024} | ({} if data else {"dataset": "digits"})
    cases = {"resnet18": FEW if small else full}
    if not small:
        cases |= {name: {"batch_size": 256, "dataset": "digits"} for name in ("effnet", "densenet", "nfnet")}
        cases |= {"transformer": {}, "dlrm": {}}
    for name, options in cases.items():
        given = json.dumps(options)
        strikes = ["--strikes", "4"] if small else []
        more = data if "dataset" not in options and name == "resnet18" else []
        command = ["benchmarks/device_bits.py", name, "--options", given, *strikes, *more, "--out", "OUT"]
        yield Piece(f"bits_{name}.json", command, "", claims)
    for name in OWN[:1] if small else OWN:
        command = ["benchmarks/device_bits.py", f"examples/{name}/my_run.py:training", "--out", "OUT"]
        yield Piece(f"bits_{name}.json", command, "", claims)


def statements(small: bool) -> Iterator[Piece]:
    """Tests of the project on this device: NaN in largest values, matrix precisions, strikes of every operation, …"""
    workers = max(1, (os.cpu_count() or 1) - 1)
    options = f"-m pytest -q -n {workers} --dist loadfile -p no:cacheprovider -p no:benchmark --junitxml=OUT"
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # the workers share the device's memory
    chosen = "tests/test_largest.py" if small else "tests"
    yield Piece("tests.xml", [*options.split(), chosen], "", tests, shared)


def costs(small: bool) -> Iterator[Piece]:
    """What fault support, faults, first calls and detectors cost, and the same networks in other libraries."""
    size = ("--width 2 --batch-size 128 --pairs 1" if small else "--width 64 --batch-size 1024").split()
    scripts = {
        "fault_support": size,
        "faulty_step": size,
        "first_call": [*size, "--pairs", "1"],
        "detectors": [*size, "--detector", "asd"],
        "step_vs_value_and_grad": size,
        "input_pipeline": size,
    }
    for name, options in list(scripts.items())[: 2 if small else None]:
        yield Piece(f"{name}.json", [f"benchmarks/{name}.py", *options, "--out", "OUT"], "", claims)
    for name in OWN[:1] if small else OWN:
        rounds = ["--pairs", "1", "--first-calls", "1"] if small else ["--pairs", "10", "--first-calls", "1"]
        yield Piece(f"any_step_{name}.json", ["benchmarks/any_step.py", name, *rounds, "--out", "OUT"], "", claims)


def replays(small: bool, data: list[str]) -> Iterator[Piece]:
    """Verdicts: of shipped injections, and at the published scale where CIFAR-10 is at hand."""
    files = {pathlib.Path(file).stem: file for file in QUICK[: 1 if small else None]}
    if data:
        published = sorted((pairs.ROOT / "injections/published").glob("*.csv"), key=_cheapest)
        files |= {path.stem: str(path.relative_to(pairs.ROOT)) for path in published}
    for name, file in files.items():
        command = ["-m", "fault_injection", "replay", file, *(data if "published" in file else []), "--out", "OUT"]
        yield Piece(name, command, "outcome.json", verdict)


def _cheapest(path: pathlib.Path) -> tuple[bool, str]:
    """Those of `resnet18` first, which share one golden run."""
    return not path.stem.startswith("resnet18-"), path.stem


def campaigns(small: bool) -> Iterator[Piece]:
    """A campaign of 200 on the embedded digits."""
    if not small:
        command = ["-m", "fault_injection", "campaign", "injections/plans/quick.toml", "--out", "OUT"]
        yield Piece("quick_campaign", command, "report.html", rates)


def run(piece: Piece, out: pathlib.Path) -> None:
    """Run a piece unless it has ended."""
    place = out / piece.name
    if (place / piece.ends).exists():
        return
    print(f"{time.strftime('%X')} {piece.name}", flush=True)
    shown = os.path.relpath(place, pairs.ROOT)  # results name no path of a machine
    command = [sys.executable, *(re.sub("OUT$", shown, word) for word in piece.command)]
    environment = {**os.environ, "PYTHONPATH": str(pairs.ROOT), **piece.environment}
    with (out / f"{place.stem}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=pairs.ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            process.wait(PIECE)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, help="folder (default: results/devices/NAME of the device)")
    parser.add_argument("--data-dir", type=pathlib.Path, help="where CIFAR-10 is; with it the published scale is run")
    parser.add_argument("--small", action="store_true", help="everything small, to try this script")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="pieces whose names begin so")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no piece after so many seconds")
    options = parser.parse_args()
    begun = time.monotonic()
    machine = json.loads(subprocess.check_output([sys.executable, "-c", MACHINE], cwd=pairs.ROOT, text=True))
    name = re.sub(r"\W+", "_", machine["device_kind"]).strip("_").lower()
    out = (options.out or pairs.ROOT / "results/devices" / name).absolute()
    out.mkdir(parents=True, exist_ok=True)
    data = ["--data-dir", str(options.data_dir.absolute())] if options.data_dir else []
    small = options.small
    pieces = [*statements(small), *bits(small, data), *costs(small), *replays(small, data), *campaigns(small)]
    pieces = [piece for piece in pieces if piece.name.startswith(tuple(options.only))]
    for piece in pieces:
        if time.monotonic() - begun < options.seconds:
            run(piece, out)
    table(out, machine, pieces)


MACHINE = """
import json, jax
from fault_injection.machine.environment import arithmetic, describe
print(json.dumps({**arithmetic(jax.device_count()), **describe()}))
"""


def table(out: pathlib.Path, machine: dict[str, object], pieces: list[Piece]) -> None:
    """Print what was found and write it to `README.md` in the folder."""
    shown = ("device_kind", "devices", "processor", "jax", "python", "system", "commit")
    lines = [f"# {machine['device_kind']}", "", "Written by `python benchmarks/on_device.py`.", ""]
    lines += [f"- {key}: {machine[key]}" for key in shown if machine.get(key) is not None]
    lines += ["", "| what | found | as it must be |", "|---|---|---|"]
    for piece in pieces:
        end = out / piece.name / piece.ends
        rows = piece.read(end) if end.exists() else [(piece.name, "not ended: see its log", "")]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    (out / "README.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
