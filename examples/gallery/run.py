"""Replay the fault of every training of this gallery that is there, and print the table of its README.

python examples/gallery/run.py OUT      # in the checkout's folder; OUT gets the results
"""

import json
import pathlib
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


def row(name: str, out: pathlib.Path) -> str:
    """Replay one fault: a row of the table, or why there is none."""
    file = HERE / f"{name}.csv"
    command = [sys.executable, "-m", "fault_injection", "replay", str(file), "--out", str(out / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"| `{name}` | {FROM[name]} | not run: {done.stderr.strip().splitlines()[-1][:200]} | |"
    fault = dict(line.split(",", 1) for line in file.read_text(encoding="utf-8").splitlines())
    outcome = json.loads((out / name / "outcome.json").read_text(encoding="utf-8"))["outcome"]
    struck = f"an element of `{fault['target_layer']}` becomes {fault['inj_values']}"
    return f"| [`{name}`]({name}.py) | {FROM[name]} | {struck} | *{outcome}* |"


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    print("| training | of whom | struck | outcome |\n|---|---|---|---|")
    for name in FROM:
        print(row(name, out), flush=True)


if __name__ == "__main__":
    main()
