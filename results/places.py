"""Follow each scaled example at its own place and at twenty others to the end: `python results/places.py [NAME …]`.

It writes `scaled/NAME/places.json`, which the page of results reads, place by place.  The same command goes on where it
was stopped.
"""

import json
import pathlib
import subprocess
import sys
import time

SCALED = pathlib.Path(__file__).resolve().parent / "scaled"
COUNT, STEPS = 20, 220  # other places, and steps: all of these trainings


def main(names: list[str]) -> int:
    known = {file.stem: file for file in sorted(SCALED.glob("*.csv"))}
    if unknown := sorted({*names} - known.keys()):
        print(f"no such example: {', '.join(unknown)}; expected some of {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or known:
        kept = SCALED / name / "places.json"
        if kept.exists() and len(json.loads(kept.read_text())["places"]) > COUNT:
            continue
        begun = time.monotonic()
        command = [sys.executable, "-m", "fault_injection", "places", str(known[name]), "--out", str(kept)]
        command += ["--count", str(COUNT), "--steps", str(STEPS)]
        if subprocess.run(command).returncode:
            failed.append(name)
            continue
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
