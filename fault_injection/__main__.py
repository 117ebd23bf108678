"""`python -m fault_injection`."""

import sys

from .cli import main

sys.exit(main())
