"""The command line: `python -m fault_injection`, and `reproduce_injections.py`."""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import sys

from ..machine.environment import ROOT, cache_folder, prepare, use_huge_pages
from ..machine.errors import InputError, Untrustworthy
from ..machine.processes import agree, broke_off, join, leading, leave, say
from .arguments import epoch_list, given, machine_options, positive, whole, workload_options


def main(arguments: list[str] | None = None, program: str = "python -m fault_injection") -> int:
    """Run a command; returns the exit code.

    Mistakes of the person at the keyboard give one line and 2, results not to be trusted one line and 1.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _check_models()
        options = _parser(program).parse_args(arguments)
        options.arguments = arguments
        _set_up(options)
        return options.run(options) or 0
    except BrokenPipeError:  # the reader of our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except Untrustworthy as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:
        if not broke_off(error):
            raise
        reason = str(error).partition("\n")[0][:300]
        print(f"the computation broke off ({reason}); the same command goes on where it stopped", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130


def run(arguments: list[str] | None = None, program: str = "python -m fault_injection") -> None:
    """What the entry points do: start this process as it runs fastest, run a command, exit."""
    use_huge_pages()
    leave(main(arguments, program))


def _check_models() -> None:
    """`models` is a common name: make sure it is the folder beside this one."""
    import models

    found = pathlib.Path(models.__file__ or "").resolve().parent
    if found != ROOT / "models":
        raise InputError(f"'models' is imported from {found}, expected {ROOT / 'models'}; remove it from PYTHONPATH")


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(f"{message} (see {self.prog} --help)")


def _parser(program: str) -> argparse.ArgumentParser:
    from ..faults.injection import SCALE
    from ..published.checkpoints import DRIVE
    from ..runs.golden_run import CHECKPOINTS
    from .campaigns import add_commands

    parser = _Parser(prog=program, description="What one wrong number does to a training run.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run, text):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = command("replay", _replay, "replay one injection file, from fault to verdict")
    sub.add_argument("campaign", nargs="?", type=pathlib.Path, metavar="DIR", help="folder of a campaign, with --id")
    sub.add_argument("--id", type=whole, metavar="N", help="number of an experiment of that campaign")
    sub.add_argument("--file", type=pathlib.Path, help="injection file")
    sub.add_argument(
        "--out", type=pathlib.Path, help="folder of the results (default: results/NAME of the file, DIR/experiment_N)"
    )
    sub.add_argument("--check", action="store_true", help="validate, say what would be done, and run nothing")
    sub.add_argument(
        "--checkpoints",
        choices=CHECKPOINTS,
        help="where the golden run starts: initial weights, or the published checkpoint before the fault's epoch, "
        "once fetch-checkpoints has imported it (default: own)",
    )
    machine_options(sub)

    sub = command("golden", _golden, "make a fault-free run, and its twins")
    sub.add_argument("workload", help="name of a workload")
    workload_options(sub, "the embedded default")
    sub.add_argument(
        "--twins",
        type=positive,
        default=0,
        metavar="N",
        help="also N runs whose start differs by one unit in the last place",
    )
    sub.add_argument(
        "--keep-epochs",
        type=epoch_list,
        metavar="LIST",
        help="keep checkpoints before these epochs only, such as 7,19,30-33, besides the newest (default: all)",
    )
    machine_options(sub)

    sub = command("sites", _sites, "list the sites of a workload with their operands; runs nothing")
    sub.add_argument("workload", help="name of a workload")
    sub.add_argument("--stage", choices=("forward", "backward"), help="only this pass")
    sub.add_argument("--json", action="store_true", help="as JSON")
    workload_options(sub, "the published set-up")

    sub = command("scale", _scale, "write an injection file for another scale, and say the mapping; runs nothing")
    sub.add_argument("file", type=pathlib.Path, metavar="FILE", help="injection file")
    workload_options(sub, "as in FILE", SCALE)
    sub.add_argument("--out", type=pathlib.Path, help="the new file (default: NAME_width8_epochs20.csv or the like)")
    sub.add_argument("--force", action="store_true", help="overwrite the new file, if it exists")

    sub = command("fetch-checkpoints", _fetch_checkpoints, "download the published checkpoints, and import them")
    sub.add_argument("workload", nargs="?", help="only this workload's (default: each checkpoint's own)")
    sub.add_argument(
        "--drive", choices=tuple(DRIVE), default="examples", help="which published folder (default: %(default)s)"
    )
    sub.add_argument("--only", default="*", metavar="PATTERN", help="files of it whose path fits, such as '*epoch_19*'")
    sub.add_argument(
        "--from",
        dest="place",
        type=pathlib.Path,
        metavar="PATH",
        help="download nothing: a folder of TensorFlow checkpoints, or one of them without its .index",
    )
    sub.add_argument("--epoch", type=whole, help="before which epoch the one found was taken, if it does not say")
    sub.add_argument("--cache", type=pathlib.Path, help=f"folder that keeps them (default: {cache_folder()})")

    add_commands(command)
    return parser


def _set_up(options):
    """Set up this process for a command; those that compute nothing have no machine options."""
    if not hasattr(options, "threads"):
        prepare()
        return
    prepare(options.threads, options.precision)
    explicit = (options.processes, options.process)
    if options.coordinator in (None, "auto"):
        if explicit != (None, None):
            raise InputError("--processes and --process need --coordinator HOST:PORT")
    elif not re.fullmatch(r".+:[0-9]{1,5}", options.coordinator):
        raise InputError(f"--coordinator {options.coordinator!r}, expected HOST:PORT or auto")
    elif None in explicit or options.process >= options.processes:
        raise InputError("--coordinator HOST:PORT needs --processes N and --process I, from 0 to N - 1")
    if options.coordinator:
        join(options.coordinator, *explicit)


def _known_workload(name):
    from ..machine.errors import did_you_mean
    from ..training.workloads import WORKLOADS

    if name not in WORKLOADS:
        raise InputError(f"workload {name!r} is unknown{did_you_mean(name, WORKLOADS)}")


def _workload(options, defaults=lambda name: {}):
    from ..training.workloads import contradiction, make_workload

    _known_workload(options.workload)
    workload = make_workload(options.workload, **(defaults(options.workload) | given(options)))
    if (problem := contradiction(workload)) is not None:
        raise InputError(problem[1])
    return workload


def _sites(options) -> None:
    from ..faults.injection import sites_of

    sites = [site for site in sites_of(_workload(options)).values() if options.stage in (None, site.stage)]
    if options.json:
        listed = [
            {
                "site": site.name,
                "stage": site.stage,
                "operands": {operand.name.lower(): list(shape) for operand, shape in site.shapes.items()},
                "dtype": next(iter(site.operands.values())).dtype.name,
            }
            for site in sites
        ]
        print(json.dumps(listed, indent=2))
        return
    rows = [("site", "stage", "operand", "shape", "dtype")]
    for site in sites:
        for operand, shape in site.shapes.items():
            dtype = site.operands[operand].dtype.name
            rows.append((site.name, site.stage, operand.name.lower(), "/".join(map(str, shape)), dtype))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _scale(options) -> None:
    from ..faults.injection import read_injection, write_injection
    from ..faults.scaling import scale, scaled_name

    changes = given(options)
    if not changes:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in options.rows)
        raise InputError(f"scale to what? give at least one of {flags}")
    injection, mapping = scale(read_injection(options.file), **changes)
    out = options.out or pathlib.Path(scaled_name(options.file.stem, changes))
    if out.is_dir():
        raise InputError("--out is a folder, expected a file", out)
    if out.exists() and not options.force:
        raise InputError("exists already; choose another file with --out, or overwrite it with --force", out)
    write_injection(out, injection)
    print(*mapping, injection.sentence(), f"written to {out}", sep="\n")


def _fetch_checkpoints(options) -> None:
    from ..published.checkpoints import fetch

    if options.workload is not None:
        _known_workload(options.workload)
    chosen = {"drive": options.drive, "only": options.only, "place": options.place, "epoch": options.epoch}
    for path in fetch(options.workload, **chosen, cache=options.cache):
        print(path)


def _golden(options) -> None:
    from ..runs.golden_run import Golden
    from ..training.session import Session
    from ..training.workloads import embedded

    workload = _workload(options, embedded) if options.dataset in (None, "digits") else _workload(options)
    say(_shown(workload))
    runs = [dataclasses.replace(workload, twin=twin) for twin in range(options.twins + 1)]
    for run in runs:
        keep = options.keep_epochs if run.twin == 0 else ()  # of twins only the record is wanted
        golden = Golden(Session(run, data_dir=options.data_dir), options.cache, keep)
        say(f"{golden.folder}: up to {golden.disk_bytes(run.epochs) / 1e6:.0f} MB")
        golden.ensure(run.epochs)
        if run.twin == 0:
            first = golden
    _say_finals(first, workload.epochs)


def _say_finals(golden, epochs):
    from ..runs.golden_run import final_accuracies, noise_floor
    from ..runs.outcome import Thresholds

    window = range(max(0, epochs - Thresholds().final_epochs), epochs)
    train, test = final_accuracies([golden.record(epoch) for epoch in window])
    _tell(f"accuracy over the last {len(window)} epochs: train {train:.4f}, test {test:.4f}")
    noise = noise_floor(golden, epochs, len(window))
    if noise:
        spread = f"train {noise['train']:.4f}, test {noise['test']:.4f}"
        _tell(f"noise floor over {noise['twins']} twins, one standard deviation: {spread}")


def _replay(options) -> None:
    from ..faults.injection import read_injection
    from ..runs.replay_run import replay
    from .campaigns import replay_experiment

    if (options.file is None) == (options.campaign is None):
        raise InputError("expected either --file FILE, or the folder of a campaign and --id N")
    for name in ("id",) if options.file else ("check", "checkpoints", "threads", "coordinator"):
        if getattr(options, name) not in (None, False):
            belongs = "to the folder of a campaign" if options.file else "to --file FILE"
            raise InputError(f"--{name} belongs {belongs}")
    if options.campaign:
        replay_experiment(options)
        return
    injection = agree(lambda: read_injection(options.file))
    if options.check:
        _check(options, injection)
        return
    out = options.out or pathlib.Path("results") / options.file.stem
    if agree(lambda: out.exists() and not out.is_dir()):
        raise InputError("--out is a file, expected a folder", out)
    command = ["python", "reproduce_injections.py", *options.arguments[1:]]
    places = {"cache": options.cache, "data_dir": options.data_dir, "checkpoints": options.checkpoints or "own"}
    result = replay(injection, options.file.stem, out, **places, command=command)
    _tell(f"{result.outcome.outcome}: {result.outcome.rule}")
    _tell(f"written to {out}/")


def _tell(line):
    """One line of a command's result."""
    if leading():
        print(line)


def _check(options, injection):
    """What `--check` prints: the fault as a sentence, and what the run would need."""
    from ..runs.replay_run import epochs_needed, last_step_of, prepare

    w, epochs = injection.workload, epochs_needed(injection)
    print(injection.sentence())
    print(f"Workload: {_shown(w)}")
    session, golden = prepare(injection, options.cache, options.data_dir, options.checkpoints or "own")
    start = f" from the published checkpoint before epoch {golden.first}" if golden.start else ""
    print(
        f"Needs a golden run{start} of {epochs - golden.first} epochs of {injection.steps_per_epoch} steps, "
        f"up to {golden.disk_bytes(epochs) / 1e6:.0f} MB on disk; {_made(session, golden)}."
    )
    steps = last_step_of(injection) + 1 - injection.epoch * injection.steps_per_epoch
    print(f"Then replays {steps} steps from the start of epoch {injection.epoch}, at most.")


def _made(session, golden) -> str:
    from ..data import DATASETS

    dataset = session.workload.dataset
    if not DATASETS[dataset].find(session.data_dir):
        return f"the images of {dataset} are not at hand, they would be downloaded (or name their folder: --data-dir)"
    return f"{golden.recorded() - golden.first} epochs of it are in {golden.folder}"


def _shown(workload) -> str:
    from ..training.workloads import format_option

    options = dataclasses.asdict(workload)
    return f"{options.pop('name')}, " + ", ".join(f"{name} {format_option(value)}" for name, value in options.items())
