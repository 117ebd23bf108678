"""`examples`: copy the injections, the plans and the steps of one's own that this project ships."""

import argparse
import pathlib
import shutil

from ..machine.errors import InputError
from ..machine.files import whole_folder
from .arguments import tell

SHIPPED = pathlib.Path(__file__).parent.parent / "shipped"
FILES = {  # as pyproject.toml says them of the wheel
    "injections": ("**/*.csv", "**/*.toml"),
    "examples": ("*/my_run.py", "*/fault.csv", "*/plan.toml"),
}


def add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("folder", type=pathlib.Path, metavar="DIR", help="where the folders injections and examples go")


def run(options: argparse.Namespace) -> None:
    for name in FILES:
        if (there := options.folder / name).exists() or there.is_symlink():
            raise InputError("is there already; nothing was copied", there)
    for name, patterns in FILES.items():
        files = sorted({file for pattern in patterns for file in (SHIPPED / name).glob(pattern)})
        if not files:
            raise InputError("this installation lacks the examples; install the package again", SHIPPED / name)

        def fill(
            folder: pathlib.Path, source: pathlib.Path = SHIPPED / name, files: list[pathlib.Path] = files
        ) -> None:
            for file in files:
                copy = folder / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)

        whole_folder(options.folder / name, fill)
        tell(f"{len(files)} files copied to {options.folder / name}/")
