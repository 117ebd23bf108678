"""The command line: `fault-injection`, `python -m fault_injection`, and `reproduce_injections.py`."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ..machine.environment import prepare
from ..machine.errors import InputError, Untrustworthy, printable
from ..machine.processes import broke_off, join
from ..machine.termination import heed
from ..version import __version__
from .arguments import COMMANDS

Begin = Callable[[], object]


def main(
    arguments: list[str] | None = None, program: str = "python -m fault_injection", begin: Begin = lambda: None
) -> int:
    """Run a command; returns the exit code.

    Mistakes of the person at the keyboard give one line and 2, results not to be trusted one line and 1; `diff` gives
    1 where not all was compared.  Without arguments the commands are listed.

    Args:
      arguments: of the command line; by default those of this process.
      program: what was typed before them.
      begin: called before the command begins, once all that it needs is imported.

    Raises:
      KeyboardInterrupt: a signal ends the command, see `entry.run`.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if not arguments:
            parser(program, arguments).print_help()
            return 0
        options = parser(program, arguments).parse_args(arguments)
        options.arguments = arguments
        begin()
        _set_up(options)
        return int(options.run(options) or 0)
    except BrokenPipeError:  # the reader of our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (InputError, OSError) as error:
        _say(str(error))
        return 2
    except Untrustworthy as error:
        _say(str(error))
        return 1
    except Exception as error:
        heed()  # what is raised after a signal may come of it
        if not broke_off(error):
            raise
        reason = str(error).partition("\n")[0][:300]
        _say(f"the computation broke off ({reason}); the same command goes on where it stopped")
        return 1


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def parser(program: str, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser: of the command that is named, or a list of all.  No other command's module is imported."""
    whole = _Parser(prog=program, description="What one wrong number does to a training run.")
    whole.add_argument("--version", action="version", version=f"fault-injection {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    named = next((word for word in arguments if word != "--"), "")
    for name in [named] if named in COMMANDS else COMMANDS:
        command = commands.add_parser(name, help=COMMANDS[name], description=COMMANDS[name])
        if name == named:
            module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
            module.add(command)
            command.set_defaults(run=module.run)
    return whole


def _set_up(options: argparse.Namespace) -> None:
    """Set up this process for a command; those that compute nothing have no machine options."""
    if not hasattr(options, "threads"):
        if "jax" in sys.modules:  # something may be computed
            prepare()
        return
    prepare(options.threads, options.matrix_precision)
    explicit = (options.processes, options.process)
    if options.coordinator in (None, "auto"):
        if explicit != (None, None):
            raise InputError("--processes and --process need --coordinator HOST:PORT")
    elif not re.fullmatch(r".+:[0-9]{1,5}", options.coordinator):
        raise InputError(f"--coordinator {options.coordinator[:60]!r}, expected HOST:PORT or auto")
    elif None in explicit or options.process >= options.processes:
        raise InputError("--coordinator HOST:PORT needs --processes N and --process I, from 0 to N - 1")
    if options.coordinator:
        join(options.coordinator, *explicit)
