"""Pictures of the fault models, drawn by the models themselves: `python docs/site/fault_models.py` writes them.

Left, where faults strike: an operand of 2,048 elements, 64 in a row, in row-major order.  Right, what becomes of
the values of 200 faults.  The operand is drawn from a normal distribution of scale 0.01, as gradients are small.
"""

import pathlib
import sys

import matplotlib
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from fault_injection.faults.fault_models import FAULT_MODELS, VALUES
from fault_injection.faults.number_formats import FLOAT32

FOLDER = pathlib.Path(__file__).parents[1] / "images" / "fault_models"
SIZE, ROW = 2048, 64
COLOURS = ("#d62728", "#1f77b4", "#2ca02c")

# Each picture has a model; the others of its family differ in the operand, or are literally the same.
FAMILIES = {
    "bit_flip": ("INPUT", "INPUT_16", "WT", "WT_16", "RBFLIP"),
    "random": ("RD",),
    "same_tensor": ("RD_CORRECT",),
    "zero": ("ZERO",),
    "group_random": ("N16_RD",),
    "group_same_tensor": ("N16_RD_CORRECT",),
    "run_random": ("RD_GLB",),
    "run_same_tensor": ("RD_CORRECT_GLB",),
    "group_of_64": ("N64_INPUT", "N64_INPUT_16", "N64_WT", "N64_WT_16"),
    "run_of_64": ("N64_INPUT_GLB", "N64_WT_GLB"),
    "measured": ("MEASURED",),
    "lane": ("LANE_64", "LANE_16", "LANE_256"),
    "flips": tuple(
        sorted((name for name in FAULT_MODELS if name.startswith("FLIPS")), key=lambda name: name != "FLIPS_16")
    ),
}


def struck(name: str, rng: np.random.Generator, operand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One fault of the model: the positions int64 [K], and what the elements become, float32 [K]."""
    model = FAULT_MODELS[name]
    index = model.places(rng, operand.size)
    new = VALUES[model.values]()(rng, index, operand.size, FLOAT32)
    bits = (operand.view(np.uint32)[new.source] & new.keep) ^ new.flip
    return index, bits.view(np.float32)


def draw(name: str, path: pathlib.Path) -> None:
    """The picture of a model."""
    from matplotlib import pyplot

    rng = np.random.default_rng(7)
    operand = rng.normal(scale=0.01, size=SIZE).astype(np.float32)
    figure, (where, what) = pyplot.subplots(1, 2, figsize=(9, 2.9), width_ratios=(1.5, 1), layout="constrained")
    colours = COLOURS[:1] if name.endswith("GLB") else COLOURS  # runs would hide each other
    for colour in colours:
        index, _ = struck(name, rng, operand)
        where.scatter(index % ROW, index // ROW, marker="s", s=14, color=colour, linewidths=0)
    where.set(xlim=(-1, ROW), ylim=(SIZE // ROW, -1), xlabel=f"element, {ROW} in a row", ylabel="row")
    faults = "three faults strike" if len(colours) > 1 else "a fault strikes"
    where.set_title(f"{name}: where {faults} the {FAULT_MODELS[name].operand.name.lower()}", fontsize=9)
    old, new = (np.concatenate(each) for each in zip(*(_values(name, rng, operand) for _ in range(200)), strict=True))
    _values_panel(what, old, new)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _values(name: str, rng: np.random.Generator, operand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index, new = struck(name, rng, operand)
    return operand[index][:20], new[:20]


def _values_panel(axes: "matplotlib.axes.Axes", old: np.ndarray, new: np.ndarray) -> None:
    """Magnitudes before and after; zero and what is not finite stand on lines of their own."""
    finite = np.isfinite(new) & (new != 0)
    axes.scatter(np.abs(old[finite]), np.abs(new[finite]), s=5, color="#555555", linewidths=0)
    axes.plot([1e-6, 1e-1], [1e-6, 1e-1], color="#1f77b4", linewidth=0.8)
    for text, chosen, height in (("NaN, inf", ~np.isfinite(new), 1e41), ("0", new == 0, 1e-44)):
        axes.scatter(np.abs(old[chosen]), np.full(chosen.sum(), height), s=5, color="#d62728", linewidths=0)
    axes.set(xscale="log", yscale="log", xlim=(1e-6, 1e-1), ylim=(1e-46, 1e43), xlabel="|value| before")
    axes.set_yticks(
        [1e-44, 1e-30, 1e-15, 1, 1e15, 1e30, 1e41], ["0", "1e-30", "1e-15", "1", "1e15", "1e30", "NaN, inf"]
    )
    axes.minorticks_off()
    axes.set_title("what the elements of 200 faults become", fontsize=9)


def main() -> None:
    """Draw all."""
    matplotlib.use("agg")
    for family, names in FAMILIES.items():
        draw(names[0], FOLDER / f"{family}.png")


if __name__ == "__main__":
    main()
