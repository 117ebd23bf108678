"""Software fault models by their published names, and the operand that each strikes.

In a replay the injection file gives positions and values, so that the model only names the
operand (docs/science.md, Fault models; FIdelity: He, Balaprakash, Li, MICRO 2020).
"""

from models.fault import Operand

OPERANDS = {
    "INPUT": Operand.INPUT,
    "INPUT_16": Operand.INPUT,
    "WT": Operand.WEIGHT,
    "WT_16": Operand.WEIGHT,
    "RBFLIP": Operand.OUTPUT,
    "RD": Operand.OUTPUT,
    "RD_CORRECT": Operand.OUTPUT,
    "ZERO": Operand.OUTPUT,
    "N16_RD": Operand.OUTPUT,
    "N16_RD_CORRECT": Operand.OUTPUT,
    "RD_GLB": Operand.OUTPUT,
    "RD_CORRECT_GLB": Operand.OUTPUT,
    "N64_INPUT": Operand.INPUT,
    "N64_INPUT_16": Operand.INPUT,
    "N64_INPUT_GLB": Operand.INPUT,
    "N64_WT": Operand.WEIGHT,
    "N64_WT_16": Operand.WEIGHT,
    "N64_WT_GLB": Operand.WEIGHT,
}


def group(fmodel: str) -> int:
    """Elements in a row-major, aligned group of the fault model: 64, 16 or 1; what it strikes is whole groups."""
    if fmodel.startswith("N64_"):
        return 64
    return 16 if fmodel.startswith("N16_") or fmodel.endswith("_GLB") else 1
