"""Where a command begins: signals are answered before anything that takes its time to be imported."""

import sys

from ..machine.termination import ENDINGS, answer_termination, leave, leave_at_once


def run(arguments: list[str] | None = None, program: str = "fault-injection") -> None:
    """What the entry points do: start this process as it runs fastest, run a command, exit.

    An interrupt gives one line and the exit code 130, SIGTERM one line and 143; `commands.main.main` says the others.

    Args:
      arguments: of the command line; by default those of this process.
      program: what was typed before them.
    """
    leave_at_once()
    from ..machine.environment import use_huge_pages  # a signal may come while these are imported

    use_huge_pages()
    from .main import main

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the stream cannot encode becomes an escape
            stream.reconfigure(errors="backslashreplace")
    try:
        leave(main(arguments, program, begin=answer_termination))
    except KeyboardInterrupt as raised:
        ending = next(ending for ending in ENDINGS.values() if ending.exception is type(raised))
        print(ending.line, file=sys.stderr, flush=True)
        leave(ending.code)
