"""`python -m fault_injection`."""

from .commands.entry import run

run(program="python -m fault_injection")
