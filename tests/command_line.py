"""Commands in this process: what they print."""

import json

from fault_injection.commands.main import main


def said(capsys, *arguments):
    """The exit code of a command, its output and its errors."""
    code = main([*map(str, arguments)])
    return code, *capsys.readouterr()


def answer(capsys, *arguments):
    """The JSON that a command prints which succeeds: one line, but for the table of `sites`."""
    code, out, err = said(capsys, *arguments, "--json")
    assert code == 0, err
    assert out.count("\n") == 1 or arguments[0] == "sites"
    return json.loads(out)
