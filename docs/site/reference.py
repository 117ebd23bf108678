"""Reference pages made from the code: commands, rows of injection files, keys of plans, and the Python interface.

Names, their order, defaults and what a value may be come from the code.  Sentences about rows and keys stand here;
a row or key that the code has and this file has not, or the other way about, is an error.
"""

import argparse
import dataclasses
import html
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import fault_injection
from fault_injection.commands import main as command_line
from fault_injection.detection.recovery import RECOVERIES
from fault_injection.detection.registry import DETECTORS
from fault_injection.faults import injection_file
from fault_injection.questions.outcomes import plan_file, plan_start
from fault_injection.questions.outcomes.plan import EXITS
from fault_injection.questions.outcomes.wanted import DIMENSIONS
from fault_injection.questions.outcomes.wanted import WANTED as WANTED_KEYS
from fault_injection.questions.scoreboard import settings
from fault_injection.questions.vulnerability import plan_file as pvf_plan_file
from fault_injection.questions.vulnerability.criteria import CRITERIA
from fault_injection.seam.workload import Workload, format_option
from fault_injection.workloads.registry import WORKLOADS

ROWS = {  # of an injection file, but for options of the workload
    "model": "the workload; `workload` is the same row",
    "stage": "the pass of the training step: `fwrd_inject` or `bkwd_inject`",
    "fmodel": "the fault model. Here it only says which operand is struck",
    "target_worker": "the data-parallel worker, from 0",
    "target_layer": "the operation",
    "target_epoch": "the epoch, from 0",
    "target_step": "the step in the epoch, from 0",
    "inj_pos": "coordinates of each element in the operand, such as `12/2/0/50`; one cell an element",
    "inj_values": "what each element becomes: a number, `nan`, `inf` or `-inf`",
    "target": "a leaf of the state, a gradient or an update, in place of `stage`, `fmodel` and `target_layer`",
    "profile": "in place of rows that say positions and values: a defect profile, such as `sdc_band`",
    "inj_lane": "in place of `inj_pos`: every element of one lane, such as `5/256`",
    "inj_bits": "in place of `inj_values`: bits, such as `7f800000`, `xor:00800000`, `set:00800000`, `copy:1/2/3/4`",
    "schedule": "when it strikes again: `once` (default), `permanent`, `steps 5`, `every 10`, `probability 0.01`",
    "horizon": "number of steps after the fault at which the run stops; by default it goes to the end",
    "nonfinite": "what ends a run that is not finite: `loss` (default) or `state`",
}
FAULTS = {
    "experiments": "how many; or `half_width`, or a table `[wanted]`, beside which it is the most",
    "half_width": "of the interval of a rate, such as 0.05: how many experiments follows from it",
    "confidence": "of that interval, 0.95 by default",
    "epochs": "list of epochs from which one is drawn; all by default",
    "stages": "list of passes (`forward`, `backward`), or one of `state`, `gradient`, `worker_gradient`, `update`, "
    "`checkpoint`",
    "sites": "list of patterns of names; `!conv1*` leaves some out; all by default",
    "kinds": "list of kinds of operations, such as `convolution`, as reports name them; all by default",
    "layers": "list of patterns of layers, such as `fc*`; in a step of one's own a layer is called after its parameter",
    "depth": "two shares of the forward pass, such as `[0, 0.25]`: operations of the layers between them, both passes",
    "seed": "experiment i is drawn from (seed, i); 1 by default",
    "models": "table of fault models and their weights",
    "profile": "in place of `models`: the name of a defect profile, or a list of names",
    "schedule": "as the row of an injection file",
}
WANTED = {
    "outcome": "name of an outcome, or list of names that count together; `not masked` by default",
    "width": "of the interval of its rate, both ends together, such as 0.04",
    "by": f"list: whose rates are asked for, too: {', '.join(f'`{name}`' for name in DIMENSIONS)}",
    "cell_width": "of the intervals of these",
    "confidence": "of the intervals, 0.95 by default",
}
START = {
    "epochs": "before which epochs the run restarts; all by default",
    "logs": "files or patterns: logs of `alter`, or of the published tool",
    "mapping": "file that says where arrays of the logs are in another layout",
    "checkpoints": "files or patterns of altered checkpoints",
    "saved": "the checkpoint from which those were altered",
    "loaders": "list: how many workers load the altered checkpoint; `[1]` by default",
    "seed": "draws the first of these workers; 1 by default",
}
RUN = {
    "exit": f"when an experiment ends: {', '.join(f'`{name}`' for name in EXITS)}",
    "horizon": "steps to follow a run after its fault; to the end of the training by default",
    "audit": "share of early verdicts that are followed to the end all the same; by default so many that the interval "
    "of the rate of what was not masked is at most 1.5 times as wide as if every run were followed",
    "audit_near": "the same share of those near a threshold, besides; absent: these are not told apart",
    "twins": "golden runs one unit in the last place apart; 0 by default, or at least 2",
    "nonfinite": "as the row of an injection file",
    "settled": "consecutive steps that a run has to be as near to the golden run as a twin, to end there; absent: none",
    "settled_follow": "share of these runs that are followed to the end all the same; 0.5 by default",
    "together": "how many audits of early verdicts that say *Masked* are followed in one run; absent: each by itself",
    "together_alone": "share of these audits that are followed by themselves all the same; 0.2 by default",
}
SCORE = {
    "detectors": "list of names; by default all that can watch the workload",
    "window": "steps after the faulty one that are watched, at most",
    "masked": "how many masked experiments are watched, at most",
    "fault_free_seeds": "number of other seeds whose runs are watched for false alarms",
    "recovered": "table: how many experiments have runs with a recovery",
    "recovering": "list of the detectors on whose alarms it acts",
    "replay_every": "n of the detector `replay`",
}
PVF_FAULTS = {
    "flips": "list: how many distinct bits a trial inverts in a component",
    "bit_error_rates": "or list: each bit is inverted with this probability",
    "bursts": "or list: so many adjacent bits of one element",
    "bits": "list of the bits that may be inverted, 0 the lowest; all by default",
    "exhaustive": "list of layers of which every single flip is tried",
    "layers": "whether each layer is measured as well; `true` by default",
    "trials": "of each component and number of bits, in whole blocks; 1024 by default",
    "half_width": "of the interval: as many trials as that takes, or at most about `trials`",
    "confidence": "of that interval, 0.95 by default",
    "seed": "blocks are drawn from it, the cell and what came of blocks before; 1 by default",
    "epoch": "after how many epochs parameters are struck; all by default",
    "format": "in which format parameters are kept",
}
PVF_TABLES = {
    "workload": "name of a workload",
    "options": "table of its options",
    "components": "table of names and lists of patterns: groups of parameters",
    "operands": "in its place: groups of operands of forward operations",
    "faults": "table, see below",
    "wrong": f"table: `criterion` ({', '.join(CRITERIA)}), its limit, and `examples`",
}


def commands_page() -> str:
    """Every command with its arguments, from the parsers."""
    parts = [
        "# Commands\n\n`fault-injection COMMAND` and `python -m fault_injection COMMAND` are the same. This page is "
        "made from the parsers, so it says what `--help` says.\n"
    ]
    for name in command_line.COMMANDS:
        command = _command(name)
        parts.append(f"## {name}\n\n{_sentence(command.description or '')}\n\n```sh\n{_usage(name, command)}\n```\n")
        parts += [_arguments(group) for group in command._action_groups]
    return "\n".join(parts)


def _command(name: str) -> argparse.ArgumentParser:
    whole = command_line.parser("fault-injection", [name])
    (action,) = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return action.choices[name]


def _usage(name: str, command: argparse.ArgumentParser) -> str:
    shown = [action.metavar or action.dest for action in command._actions if not action.option_strings]
    return " ".join(["fault-injection", name, *map(str, shown), "[OPTIONS]"])


def _arguments(group: argparse._ArgumentGroup) -> str:
    actions = [a for a in group._group_actions if a.dest != "help" and a.help is not argparse.SUPPRESS]
    if not actions:
        return ""
    title = "" if group.title in ("options", "positional arguments") else f"*{_sentence(group.title or '')}*\n\n"
    rows = []
    for action in actions:
        value = action.metavar or (
            "{" + ",".join(map(str, action.choices)) + "}"
            if action.choices
            else (action.dest.upper() if action.nargs != 0 else "")
        )
        name = f"{', '.join(action.option_strings)} {value}" if action.option_strings else str(value)
        text = (action.help or "") % {**vars(action), "prog": "fault-injection"}
        rows.append((f"`{name.strip()}`", text.replace(str(pathlib.Path.home()), "~")))
    return title + table(("argument", "meaning"), rows)


def rows_page() -> str:
    """Rows of an injection file, and the options of every workload."""
    known = (*injection_file.FAULT_ROWS, *injection_file.OWN_ROWS)
    parts = [
        "# Rows of injection files\n\n[Injection files](../injection.md) explains them. "
        "This page is made from the code.\n",
        "## The fault\n",
        table(("row", "meaning"), [(f"`{name}`", text) for name, text in described(ROWS, known)]),
        "## Options of the workload\n\nThe same names are keys of a plan's `[options]` and flags of commands "
        "(`--batch-size`). `learning_rate` and `seed` are required, unless a workload is your own; the others are "
        "optional.\n",
    ]
    alike: dict[tuple[object, ...], list[Workload]] = {}
    for workload in WORKLOADS.values():
        alike.setdefault(tuple({**workload.REQUIRED, **workload.OPTIONS}), []).append(workload)
    for group in alike.values():
        parts += [f"### {', '.join(f'`{workload.name}`' for workload in group)}\n", _options(group)]
    return "\n".join(parts)


def _options(group: Sequence[Workload]) -> str:
    rows = []
    for name, option in {**group[0].REQUIRED, **group[0].OPTIONS}.items():
        values: dict[str, list[str]] = {}
        for workload in group:
            values.setdefault(str(format_option(getattr(workload, name))), []).append(workload.name)
        most = max(values, key=lambda value: len(values[value]))
        others = [f"{', '.join(names)}: `{value}`" for value, names in values.items() if value != most]
        default = f"`{most}`" + (f" ({'; '.join(others)})" if others else "")
        rows.append((f"`{name}`", default, option.meaning, option.kind.expected("")))
    return table(("row", "default", "meaning", "values"), rows)


def plans_page() -> str:
    """Keys of the plans of campaigns, scoreboards and vulnerability."""
    defaults = {field.name: field.default for field in dataclasses.fields(settings.Settings)}
    score = [
        (f"`{name}`", text + (f"; {defaults[name]} by default" if isinstance(defaults[name], int) else ""))
        for name, text in described(SCORE, settings.KEYS)
    ]
    head = ("key", "meaning")
    return "\n".join(
        [
            "# Keys of plans\n\nPlans are TOML files. [Campaigns](../campaign.md), [Detectors](../detection.md) and "
            "[Vulnerability](../vulnerability.md) explain them. This page is made from the code.\n",
            "## A campaign\n\n`workload` is a name of a workload, or `FILE.py:FUNCTION`. `[options]` has its options "
            "as keys: see [rows of injection files](rows.md). Then a plan has `[faults]` or `[start]`, and "
            "perhaps `[wanted]`, `[run]` and `[score]`.\n",
            "### `[faults]`\n",
            table(head, _keys(FAULTS, plan_file.FAULTS)),
            "### `[start]`\n",
            table(head, _keys(START, plan_start.START)),
            "### `[wanted]`\n",
            table(head, _keys(WANTED, WANTED_KEYS)),
            "### `[run]`\n",
            table(head, _keys(RUN, plan_file.RUN)),
            "### `[score]`\n",
            table(head, score),
            f"Detectors: {', '.join(f'`{name}`' for name in DETECTORS)}. "
            f"Recoveries: {', '.join(f'`{name}`' for name in RECOVERIES)}.\n",
            "## Trials at inference\n",
            table(head, _keys(PVF_TABLES, pvf_plan_file.KEYS)),
            "### `[faults]`\n",
            table(head, _keys(PVF_FAULTS, pvf_plan_file.FAULTS)),
        ]
    )


def _keys(texts: Mapping[str, str], known: Iterable[str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", text) for name, text in described(texts, known)]


def api_page() -> str:
    """What `fault_injection` offers, and what a detector of one's own needs; filled by mkdocstrings."""
    parts = ["# Python\n\nThis page is made from docstrings. Each example in it is run by the tests.\n"]
    grouped = [name for names in API.values() for name in names if name not in BESIDE]
    if sorted(grouped) != sorted(fault_injection.__all__):
        raise ValueError(f"docs/site/reference.py: API differs by {set(grouped) ^ set(fault_injection.__all__)}")
    for title, names in API.items():
        parts.append(f"## {title}\n")
        for name in names:
            thing = getattr(fault_injection, name, None)
            path = BESIDE.get(name) or f"{thing.__module__}.{thing.__qualname__}"
            options = (
                "{heading_level: 3, members: [__call__, reference, fault]}" if name in BESIDE else "{heading_level: 3}"
            )
            parts.append(f"::: {path}\n    options: {options}\n")
    return "\n".join(parts)


API = {  # by what they are for
    "A training of your own": ["Training", "Measure", "instrument", "Instrumented"],
    "Faults and replays": [
        *("make_workload", "Injection", "golden_for", "replay"),
        *("Fault", "Operand", "make_fault", "inactive_fault"),
    ],
    "Detectors in your own loop": [
        *("watch", "alarms", "NonFinite", "LossSpike", "GradientNorm", "HistoryBound", "ActivationRange"),
        *("Asd", "AsdV1", "AsdV3", "Checksum", "UnconfirmedChecksum", "VarianceChecksum", "DrDna", "DrDnaPublished"),
    ],
    "Errors": ["InputError"],
}
BESIDE = {"Instrumented": "fault_injection.any_step.instrument.Instrumented"}  # beside `fault_injection.__all__`


def described(texts: Mapping[str, str], known: Iterable[str]) -> list[tuple[str, str]]:
    """The names that the code knows, in its order, each with its sentence.

    Raises:
      ValueError: a name has no sentence, or a sentence no name.
    """
    names = list(known)
    if set(names) != set(texts):
        raise ValueError(f"docs/site/reference.py: described and known differ by {sorted(set(names) ^ set(texts))}")
    return [(name, texts[name]) for name in names]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _sentence(text: str) -> str:
    return html.escape(text[:1].upper() + text[1:].rstrip(".") + ".", quote=False)


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page,
    "rows": rows_page,
    "plans": plans_page,
    "api": api_page,
}
