"""Populations of single flips that are known in full, and campaigns on them as `pvf` draws and estimates.

`dlrm_flips.npz` has all 326,176 single flips of the parameters of a trained `dlrm` (the default one, on Adult), made by
trying each: per leaf, uint16 [elements, 32 bits], how many of 1,024 test examples get another decision.  Per table it
has how many of these examples read each row, as `rows/LEAF`.  Adult is of UCI, under CC BY 4.0
(`fault_injection/data/adult.md`).

`results/populations/layers` has all single flips of one layer of other trained networks, made by the program beside
them.
"""

import pathlib

import numpy as np

from fault_injection.machine.files import read_arrays
from fault_injection.questions.vulnerability.bit_strata import sizes_read
from fault_injection.questions.vulnerability.cell_blocks import CellBlocks, TrialBatch
from fault_injection.questions.vulnerability.components import Component
from fault_injection.questions.vulnerability.plan import Cell, FaultKind, PvfPlan
from fault_injection.questions.vulnerability.sampling import draw_trials, reach
from fault_injection.questions.vulnerability.trials import Reads

DLRM = pathlib.Path(__file__).parent / "data" / "dlrm_flips.npz"
LAYERS = pathlib.Path(__file__).parents[1] / "results" / "populations" / "layers"
BITS = tuple(range(32))


class Population:
    """All single flips of a component.

    Args:
      name: of the component.
      wrong: of each leaf by its name, [elements, 32], outputs that are wrong of so many.
      outputs: that each trial judges.
      rows: of each table by its leaf, how many examples read each row.
    """

    def __init__(self, name, wrong, outputs, rows=None):
        self.component = Component(name, tuple(wrong), tuple(map(len, wrong.values())))
        self.wrong, self.outputs = np.concatenate([np.asarray(each, np.int64) for each in wrong.values()]), outputs
        self.reads = {
            leaf: Reads(np.repeat(np.arange(len(counts)), counts), len(wrong[leaf]) // len(counts))
            for leaf, counts in (rows or {}).items()
        }
        widths = {leaf: table.width for leaf, table in self.reads.items()}
        self.mean = sum(sizes_read(self.component, widths)) / self.component.size
        self.share = float(self.wrong.mean()) / outputs

    def blocks(self, trials=None, half_width=None, seed=1):
        """A cell of single flips of which nothing is known yet."""
        cell = Cell(self.component, True, FaultKind("flips", 1), trials)
        return CellBlocks(
            PvfPlan(None, 1, (cell,), BITS, None, "float32", None, half_width, 0.95, seed), cell, self.mean
        )

    def looked_up(self, plan, cell, part):
        """What comes of a part of a block, in place of trying it."""
        faults = draw_trials(plan, cell, part, self.reads)
        element = np.array([fault.index[0] for fault in faults])
        bit = np.array([int(fault.flip[0]).bit_length() - 1 for fault in faults])
        nothing, reached = np.zeros(len(faults)), reach(self.component, faults, self.reads)
        wrong, place = self.wrong[element, bit], element * 32 + bit
        return TrialBatch(wrong, *[nothing] * 5, place, reached, part.strata, self.outputs, np.nan)

    def step(self, blocks):
        """The block that is wanted next."""
        blocks.take([self.looked_up(blocks.plan, blocks.cell, part) for part in blocks.open])

    def campaign(self, trials=None, half_width=None, seed=1, look=None):
        """A cell to its end; `look` is called after each block."""
        blocks = self.blocks(trials, half_width, seed)
        while blocks.open:
            self.step(blocks)
            if look:
                look(blocks)
        return blocks


def dlrm(path=DLRM):
    """The components and layers of the trained `dlrm`, by name."""
    stored = dict(np.load(path))
    outputs, rows = int(stored.pop("examples")), {k.removeprefix("rows/"): v for k, v in stored.items() if "rows/" in k}
    leaves = {k: v for k, v in stored.items() if "rows/" not in k}
    layers, found = list(dict.fromkeys(leaf.split("/")[0] for leaf in leaves)), {}
    groups = {"bottom MLP": "bot_", "embeddings": "emb_", "top MLP": "top_", **{layer: f"{layer}/" for layer in layers}}
    for name, start in groups.items():
        here = [leaf for leaf in leaves if leaf.startswith(start)]
        of_leaves, of_rows = (
            {f"params/{leaf}": each[leaf] for leaf in here if leaf in each} for each in (leaves, rows)
        )
        found[name] = Population(name, of_leaves, outputs, of_rows)
    return found


def layers(folder=LAYERS):
    """The layers of other networks that are known, by the name of the network."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        stored = read_arrays(path)
        outputs = int(stored.pop("outputs"))
        found[path.stem] = Population(path.stem, stored, outputs)
    return found
