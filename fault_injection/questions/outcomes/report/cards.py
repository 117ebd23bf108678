"""What a click on an experiment of a report shows: its fault, verdict and curve, and the command that replays it."""

import math
import shlex
import sqlite3

import numpy as np

from ....campaign.page import ClickedExperiment, Experiments
from ....campaign.wording import plural
from .facts import Facts, decode
from .queries import CARDS

POINTS = 48  # of a curve


def experiments(facts: Facts) -> Experiments:
    """The experiments of a campaign that were not masked, the worst first, as many as a page has room for."""
    known = {row["number"]: _card(row) for row in facts.store.query(CARDS, {})}
    return Experiments(shlex.quote(str(facts.store.path.parent)), f"Training {facts.measure.name}", known)


def _card(row: sqlite3.Row) -> ClickedExperiment:
    metric = decode(row["curve"], row["recorded"])[:, -1].astype(float)
    at = np.unique(np.linspace(0, len(metric) - 1, min(POINTS, len(metric))).round().astype(int))
    curve = [(int(step), float(f"{metric[step]:.4g}") if math.isfinite(metric[step]) else None) for step in at]
    return ClickedExperiment(said(row), curve)


def said(row: sqlite3.Row) -> str:
    """An experiment in a line."""
    what = f"{row['model']}: {plural(row['elements'], 'element')} of the {row['operand']} of {row['site']}"
    return f"{row['outcome']}; {what}, in epoch {row['epoch']}, step {row['step']}."
