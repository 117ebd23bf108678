"""`python -m fault_injection`."""

from .commands.main import run

run()
