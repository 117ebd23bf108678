"""`manifest`: write digests of a checkpoint's arrays."""

import argparse
import pathlib

from ..checkpoints.formats import FORMATS, open_checkpoint
from ..checkpoints.manifest import write_manifest
from ..machine.errors import InputError
from .arguments import json_option, listed, tell, tell_json


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help=FORMATS)
    sub.add_argument("--out", type=pathlib.Path, metavar="FILE", help="default: CHECKPOINT.manifest.json beside it")
    json_option(sub)


def run(options: argparse.Namespace) -> None:
    checkpoint = open_checkpoint(options.checkpoint)
    path = checkpoint.path.resolve()
    out = options.out or path.with_name(f"{path.name}.manifest.json")
    if out.resolve().is_relative_to(path):
        raise InputError("--out is the checkpoint, or in it; choose a place beside it", out)
    entries = write_manifest(out, checkpoint)
    left = [f"{name} ({text})" for name, (text, digest) in entries.items() if digest is None]
    if options.json:
        known = {"format": checkpoint.format, "arrays": {name: digest for name, (_, digest) in entries.items()}}
        tell_json({**known, "out": str(out)})
        return
    tell(f"{checkpoint.path} ({checkpoint.format}): {len(entries) - len(left)} digests written to {out}")
    if left:
        tell(f"without a digest, since bits do not say whether they are alike: {len(left)}: {listed(left)}")
