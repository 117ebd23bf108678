"""`verify`: what changed in a checkpoint since its manifest was written."""

import argparse
import pathlib

from ..checkpoints.formats import FORMATS, open_checkpoint
from ..checkpoints.manifest import read_manifest, verify
from .arguments import json_option, listed, tell, tell_json

DIFFERS = 3  # exit code


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help=FORMATS)
    sub.add_argument("manifest", type=pathlib.Path, metavar="MANIFEST", help="written by `manifest`, of any format")
    json_option(sub)


def run(options: argparse.Namespace) -> int:
    """Say what differs; the exit code is 3 where something does."""
    expected = read_manifest(options.manifest)
    checkpoint = open_checkpoint(options.checkpoint)
    found = verify(checkpoint, expected)
    if options.json:
        tell_json({"format": checkpoint.format, "sound": found.sound, **found._asdict()})
        return 0 if found.sound else DIFFERS
    for name in found.changed:
        tell(f"changed: {name} ({expected[name][0]})")
    for what, names in (("of another type or shape", found.unlike), ("missing", found.missing), ("new", found.new)):
        for name in names:
            tell(f"{what}: {name}")
    if found.not_compared:
        tell(f"not compared: {len(found.not_compared)}: {listed(found.not_compared)}")
    count = len(found.changed) + len(found.unlike) + len(found.missing) + len(found.new)
    differ = f"{count} differ(s)" if count else "none differs"
    tell(f"{checkpoint.path} ({checkpoint.format}): {found.same} arrays are as the manifest says; {differ}")
    return 0 if found.sound else DIFFERS
