"""Commands in this process: what they print."""

import json

from fault_injection.commands.main import main


def said(capsys, *arguments):
    """The exit code of a command, its output and its errors."""
    code = main([*map(str, arguments)])
    return code, *capsys.readouterr()


def answer(capsys, *arguments):
    """The JSON, one line, that a command prints which succeeds."""
    code, out, err = said(capsys, *arguments, "--json")
    assert code == 0, err
    assert out.count("\n") == 1
    return json.loads(out)
