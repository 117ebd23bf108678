"""Try every single flip of the parameters of one layer: writes `NAME.npz` and `NAME.json` for each network named.

    python results/populations/layers/enumerate_layers.py --check 300      # resnet18: 20 minutes beside other work

The networks are those that the plans in `injections/plans/pvf` train, and so are the criteria.  `NAME.npz` has, by
leaf, uint16 [elements, 32 bits]: how many outputs are wrong with that bit of that element inverted; and `outputs`, of
how many.

The trials are those of `pvf`, which runs again what lies behind the layer alone.  `--check N` flips, drawn from all,
are tried once more without that: the parameter is changed by NumPy, and the whole network runs.

Each bit's position is a piece.  A piece that is done is kept in the cache, so the same command goes on where it
stopped.
"""

import argparse
import pathlib
import sys
import time

import jax
import numpy as np

from fault_injection.campaign.task import Task
from fault_injection.machine.environment import cache_folder, prepare
from fault_injection.machine.files import read_arrays, write_arrays, write_json
from fault_injection.questions.vulnerability import tasks
from fault_injection.questions.vulnerability.components import Component
from fault_injection.questions.vulnerability.plan_file import read_pvf_plan
from fault_injection.questions.vulnerability.trials import Trial, Trials
from fault_injection.runs.dependencies import TRIALS, content_hash, source_of_verdicts
from fault_injection.seam.outputs import Outputs

HERE = pathlib.Path(__file__).resolve().parent
PLANS = HERE.parents[2] / "injections" / "plans" / "pvf"
LAYERS = {"resnet18": "basicblock_1_basic_0_conv1", "transformer": "layers_1_self_attn_k_proj"}
BITS = 32


def tried(lab: Trials, component: Component, bit: int) -> np.ndarray:
    """Outputs that are wrong with this bit inverted, uint16 [elements of the component]."""
    faults = [
        Trial(np.array([place]), np.array([place]), np.array([0xFFFFFFFF], np.uint32), np.array([1 << bit], np.uint32))
        for place in range(component.size)
    ]
    return lab.judge(component, faults).wrong.astype(np.uint16)


def checked(told: Outputs, component: Component, wrong: np.ndarray, count: int) -> dict[str, int]:
    """How many flips of a sample have another number of wrong outputs if the whole network runs."""
    run = jax.jit(lambda params: told.of(params, told.others, told.inputs, None, None))
    clean = np.argmax(run(told.parameters), -1)
    rng, differ, largest = np.random.default_rng(0), 0, 0
    for place in rng.choice(wrong.size, count, replace=False).tolist():
        leaf, index = component.where(np.array([place // BITS]))
        name = component.leaves[leaf[0]]
        changed = np.array(told.parameters[name])
        words = changed.reshape(-1).view(np.uint32)
        words[index[0]] ^= np.uint32(1 << place % BITS)
        logits = np.asarray(run({**told.parameters, name: changed}))
        other = np.isnan(logits).any(-1) | (np.argmax(logits, -1) != clean)
        away = abs(int(other.sum()) - int(wrong.reshape(-1)[place]))
        differ, largest = differ + (away > 0), max(largest, away)
    return {"checked": count, "differ": differ, "by_at_most": largest}


def enumerate_layer(name: str, check: int, cache: pathlib.Path | None) -> None:
    """Write the two files of a network."""
    plan = read_pvf_plan(PLANS / f"{name}.toml")
    component = next(cell.component for cell in plan.cells if cell.component.name == LAYERS[name])
    task = Task(plan, None, cache)
    ready = tasks.train(task)
    golden = tasks.golden_of(task)
    assert golden.program.outputs is not None  # `read_pvf_plan` has asked
    told = golden.program.outputs(golden.fetch_state_before(plan.epoch), plan.examples, plan.wanted.measured)
    lab = Trials(plan.workload, told, plan.wanted, plan.kept)
    asked = [ready.golden_key, source_of_verdicts(TRIALS), LAYERS[name]]
    pieces = (cache or cache_folder()) / "enumerated" / f"{name}-{content_hash(asked)}"
    begun, columns = time.monotonic(), []
    for bit in range(BITS):
        kept = pieces / f"{bit:02d}.npz"
        if not kept.exists():
            write_arrays(kept, {"wrong": tried(lab, component, bit)})
        columns.append(read_arrays(kept)["wrong"])
        print(f"{name}: bit {bit}, {time.monotonic() - begun:.0f} s", flush=True)
    wrong = np.stack(columns, -1)
    ends = np.cumsum(component.sizes)[:-1]
    leaves = dict(zip(component.leaves, np.split(wrong, ends), strict=True))
    write_arrays(HERE / f"{name}.npz", {**leaves, "outputs": np.array(lab.outputs(component))})
    share = float(wrong.mean()) / lab.outputs(component)
    about = {
        "network": name,
        "layer": LAYERS[name],
        "flips": wrong.size,
        "outputs": lab.outputs(component),
        "share": share,
        "harmful": int((wrong > 0).sum()),
        **checked(told, component, wrong, check),
        "golden_run": ready.golden_key,
        "environment": ready.about,
    }
    write_json(HERE / f"{name}.json", about)
    print(about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(LAYERS)} (default: all)")
    parser.add_argument("--check", type=int, default=300, metavar="N", help="flips to try again (default %(default)s)")
    parser.add_argument("--cache", type=pathlib.Path)
    options = parser.parse_args()
    if unknown := [name for name in options.networks if name not in LAYERS]:
        parser.error(f"{unknown[0]!r}; expected {' or '.join(LAYERS)}")
    prepare()
    for name in options.networks or LAYERS:
        enumerate_layer(name, options.check, options.cache)
    return 0


if __name__ == "__main__":
    sys.exit(main())
