"""Where a command begins: signals are answered before anything that takes its time to be imported."""

import sys

from ..machine.termination import Terminated, answer_termination, leave

GOES_ON = "the same command goes on where it stopped"


def run(arguments: list[str] | None = None, program: str = "fault-injection") -> None:
    """What the entry points do: start this process as it runs fastest, run a command, exit.

    An interrupt gives one line and the exit code 130, SIGTERM one line and 143; `commands.main.main` says the others.

    Args:
      arguments: of the command line; by default those of this process.
      program: what was typed before them.
    """
    try:
        answer_termination()
        from ..machine.environment import use_huge_pages  # a signal may come while these are imported

        use_huge_pages()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a character that the stream cannot encode becomes an escape
                stream.reconfigure(errors="backslashreplace")
        from .main import main

        leave(main(arguments, program))
    except KeyboardInterrupt as signal:
        terminated = isinstance(signal, Terminated)
        print(f"{'terminated' if terminated else 'interrupted'}; {GOES_ON}", file=sys.stderr, flush=True)
        leave(143 if terminated else 130)
