"""The command line: what it lists, what its help says, and what a bare call does."""

import argparse
import re

import pytest

from fault_injection.commands.main import COMMANDS, main, parser
from fault_injection.version import __version__


@pytest.fixture(scope="module")
def commands():
    """The parser of each command, by its name."""
    found = {}
    for name in COMMANDS:
        actions = parser("fault-injection", [name])._actions
        (subparsers,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
        found[name] = subparsers.choices[name]
        assert len(found[name]._actions) > 1  # more than --help
    return found


def test_without_arguments_the_commands_are_listed(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == "" and all(re.search(rf"^    {name}\s", out, re.MULTILINE) for name in COMMANDS)


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"fault-injection {__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_defaults_as_values(commands, name):
    for action in commands[name]._actions:
        if action.option_strings and action.default not in (None, False, [], frozenset(), argparse.SUPPRESS):
            assert "(default: " in action.help, action.option_strings
            assert "%(default)s" in action.help or str(action.default) in action.help


@pytest.mark.parametrize("name, width", [("golden", "8; transformer: 64"), ("sites", "64; effnet: 32")])
def test_the_help_says_what_each_workload_has(commands, name, width):
    assert f"(default: {width})" in " ".join(commands[name].format_help().split())
