"""Replay the fault of every training of this gallery that is there, and print the table of its README.

python examples/gallery/run.py OUT           # in the checkout's folder; OUT gets the results
python examples/gallery/run.py OUT --maps    # makes the maps of all examples, and says what they show
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
FROM = {  # what is fetched or installed, and its license
    "diffusion": "Equinox 9336d82, `score_based_diffusion.ipynb` (Apache-2.0)",
    "graphs": "Flax 18f8f31, `examples/ogbg_molpcba` (Apache-2.0)",
    "lora": "google-tunix 0.1.7, qwix 0.1.8 (Apache-2.0)",
    "lstm": "Flax 18f8f31, `examples/seq2seq` (Apache-2.0)",
    "muon": "modded-nanogpt-jax 6fe27ef (no license: fetch it, and do not pass it on)",
    "nanodo_lm": "NanoDO 10aefde (Apache-2.0)",
    "ppo": "Flax 18f8f31, `examples/ppo` (Apache-2.0)",
    "recurrent": "Haiku f4d858a, `examples/rnn` (Apache-2.0)",
}
SAID = ("What the loss says", "What is left")  # the parts of a map's answer that stand beside its picture


def command(*words: object) -> str:
    """Run a command of the framework: empty, or the last line of what went wrong."""
    line = [sys.executable, "-m", "fault_injection", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1][:200] if done.returncode else ""


def row(name: str, out: pathlib.Path) -> str:
    """Replay one fault: a row of the table, or why there is none."""
    file = HERE / f"{name}.csv"
    if wrong := command("replay", file, "--out", out / name):
        return f"| `{name}` | {FROM[name]} | not run: {wrong} | |"
    fault = dict(line.split(",", 1) for line in file.read_text(encoding="utf-8").splitlines())
    outcome = json.loads((out / name / "outcome.json").read_text(encoding="utf-8"))["outcome"]
    struck = f"an element of `{fault['target_layer']}` becomes {fault['inj_values']}"
    return f"| [`{name}`]({name}.py) | {FROM[name]} | {struck} | *{outcome}* |"


def mapped(file: pathlib.Path, out: pathlib.Path, picture: pathlib.Path) -> str:
    """Map one fault, put its picture beside the example, and return what a README shows of it, or why there is none."""
    name = picture.stem if picture.parent.name == "maps" else picture.parent.name
    if wrong := command("map", file, "--out", out):
        return f"`{name}`: not run: {wrong}"
    picture.parent.mkdir(exist_ok=True)
    shutil.copyfile(out / "map.svg", picture)
    answers = json.loads((out / "map.json").read_text(encoding="utf-8"))["summary"]
    said = " ".join(one["answer"] for part in SAID for one in answers if one["question"] == part)
    return f"`{name}`: {said}\n\n![map of the fault of {name}]({picture.relative_to(file.parent)})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--maps", action="store_true")
    options = parser.parse_args()
    if not options.maps:
        print("| training | of whom | struck | outcome |\n|---|---|---|---|")
        for name in FROM:
            print(row(name, options.out), flush=True)
        return
    files = {f"{name}_map": (HERE / f"{name}.csv", HERE / "maps" / f"{name}.svg") for name in FROM}
    for file in sorted(HERE.parent.glob("*/fault.csv")):
        files[f"{file.parent.name}_example_map"] = file, file.parent / "map.svg"
    for folder, (file, picture) in files.items():
        print(mapped(file, options.out / folder, picture), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
