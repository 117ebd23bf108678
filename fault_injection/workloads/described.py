"""Sites and leaves of a workload in a process that only reads: another process traces the network, once.

Names, shapes and types come from tracing, which takes JAX and seconds.  What came of it is kept in the cache folder,
under a hash of the workload and of the code.  A process that has JAX anyway traces by itself.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..machine.environment import cache_folder
from ..machine.files import read_bounded, write_text
from ..machine.sources import ROOT
from ..models.fault import Operand
from ..models.site import Site, TensorSpec
from ..seam.workload import Workload

CHILD = "import jax; from fault_injection.workloads.described import tell_description; tell_description()"
ROOMS = ("data", "explicit", "models", "seam", "workloads")  # that sites can depend on

Described = Mapping[str, Mapping[str, Site]]


def described(workload: Workload, part: str) -> Mapping[str, Site] | None:
    """The `sites` or the `leaves` of a workload; None where this process traces: it has JAX, or the class is a user's.

    The hash knows the code of this package alone, so what is kept of a user's class could be of an earlier file.
    """
    ours = type(workload).__module__.startswith(f"{__package__}.")
    found = _described(workload) if ours and "jax" not in sys.modules else None
    return None if found is None else found[part]


@functools.lru_cache(maxsize=64)
def _described(workload: Workload) -> Described | None:
    fields = [type(workload).__qualname__, dataclasses.asdict(workload), _code()]
    key = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_folder() / "sites" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # absent, or damaged
        return _read(read_bounded(path))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, input=pickle.dumps(workload), capture_output=True, env=environment)
    if done.returncode:
        return None  # tracing it here tells why
    with contextlib.suppress(OSError):  # who may not write there asks again
        write_text(path, done.stdout.decode())
    return _read(done.stdout)


@functools.cache
def _code() -> str:
    found = hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (ROOT / "fault_injection" / room).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def tell_description() -> None:
    """Trace the workload that is read from the standard input, and write its sites and leaves."""
    workload: Workload = pickle.load(sys.stdin.buffer)
    parts = {"sites": workload.sites(), "leaves": workload.leaves()}
    print(json.dumps({part: [_written(site) for site in sites.values()] for part, sites in parts.items()}))


def _written(site: Site) -> list[Any]:
    operands = [[int(operand), tensor.shape, tensor.dtype.name] for operand, tensor in site.operands.items()]
    return [site.name, site.layer, site.stage, operands]


def _read(text: bytes) -> Described:
    found: dict[str, dict[str, Site]] = {}
    for part, sites in json.loads(text).items():
        found[part] = {}
        for name, layer, stage, operands in sites:
            specs = {Operand(of): TensorSpec(tuple(shape), np.dtype(dtype)) for of, shape, dtype in operands}
            found[part][name] = Site(name, layer, stage, specs)
    return {part: found[part] for part in ("sites", "leaves")}
