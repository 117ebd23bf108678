"""Replay one injection: `python reproduce_injections.py --file injections/quick_start.csv`."""

import sys

from fault_injection.commands.entry import run

if __name__ == "__main__":
    run(["replay", *sys.argv[1:]], program="python reproduce_injections.py")
