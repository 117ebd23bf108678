"""`python -m fault_injection`."""

from .cli import run

run()
