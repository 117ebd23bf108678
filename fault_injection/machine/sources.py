"""The code that a result depends on: which files import which, and a hash of what they compute.

A cached result is filed under `source_hash(closure(roots, rooms))`: the hash of the files that
its code reaches through imports.  A file that nobody imports does not count, and neither do
comments and docstrings.
"""

import ast
import functools
import hashlib
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent  # of the checkout


def closure(
    roots: Iterable[str | pathlib.Path], rooms: Iterable[str], checkout: pathlib.Path = ROOT
) -> list[pathlib.Path]:
    """The root files, and the files in `rooms` that they reach through import statements.

    Imports inside functions count; imports by a computed name (`importlib`) do not.  The
    `__init__.py` of a package counts where something is imported from the package itself,
    that is, a name that is not one of its submodules; it does not count where it only stands
    on the way to a submodule.

    Args:
      roots: files, relative to `checkout` or absolute.  They may lie outside of all rooms,
        and outside of the checkout.
      rooms: folders or files that the search stays inside, relative to `checkout`.
      checkout: folder that absolute imports start from.

    Returns:
      Absolute paths, sorted.

    Raises:
      OSError: a root or a room does not exist.
      SyntaxError: a file is not Python.

    >>> found = closure(["fault_injection/models/fault.py"], ["fault_injection/models"])
    >>> [ROOT / "fault_injection/models" / name in found for name in ("fault.py", "networks/resnet.py")]
    [True, False]
    """
    checkout = checkout.resolve()
    places = [(checkout / room).resolve(strict=True) for room in rooms]
    found: set[pathlib.Path] = set()
    waiting = [(checkout / root).resolve() for root in roots]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            imported = _imported_files(path, checkout)
            waiting += [file for file in imported if any(file.is_relative_to(place) for place in places)]
    return sorted(found)


def with_own_folder(file: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """A file and, where it is a user's, what it imports from its own folder; this package is searched by `closure`."""
    if file.is_relative_to(ROOT / "fault_injection"):
        return (file,)
    return tuple(closure([file], ["."], file.parent))


def source_hash(paths: Iterable[pathlib.Path], checkout: pathlib.Path = ROOT) -> str:
    """Hash of the code in files, comments and docstrings left out.

    A file is hashed as it is when this process first asks for it: what the process has
    imported does not change when somebody edits the file.

    Args:
      paths: the files.  Their order does not matter; their places in the checkout, and outside
        of it their names, are part of the hash.
      checkout: folder that places are relative to.

    Returns:
      16 hexadecimal digits.

    >>> len(source_hash(closure(["fault_injection/models/fault.py"], ["fault_injection/models"])))
    16
    """
    checkout = checkout.resolve()
    lines = []
    for path in {path.resolve() for path in paths}:
        inside = path.is_relative_to(checkout)
        lines.append(f"{path.relative_to(checkout).as_posix() if inside else path.name} {_known(path).code}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:16]


class _Source(NamedTuple):
    """What matters of a file: a hash of its code, and its imports as (leading dots, module, names)."""

    code: str
    imports: list[tuple[int, str, list[str]]]


@functools.cache
def _known(path: pathlib.Path) -> _Source:
    try:
        return _known_of(path.read_bytes())
    except SyntaxError as error:
        error.filename = str(path)
        raise


@functools.cache  # a copy of a file is read like the file
def _known_of(content: bytes) -> _Source:
    tree = ast.parse(content)
    imports: list[tuple[int, str, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.level, node.module or "", [alias.name for alias in node.names]))
        match getattr(node, "body", None):
            case [ast.Expr(ast.Constant(str())), *_] as body:
                del body[0]  # a docstring
    return _Source(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports)


@functools.cache
def _imported_files(path: pathlib.Path, checkout: pathlib.Path) -> list[pathlib.Path]:
    """The files of the checkout that the import statements of a file name."""
    found: list[pathlib.Path] = []
    for dots, name, names in _known(path).imports:
        # One leading dot means the package of this file, each further dot the package around that.
        base = path.parents[dots - 1] if dots else checkout
        module = base.joinpath(*name.split(".")) if name else base
        for imported in names:
            found += _module_file(module / imported) or _module_file(module)
        if not names:
            found += _module_file(module)
    return found


def _module_file(module: pathlib.Path) -> list[pathlib.Path]:
    """The file of a module, given its path without suffix; as for Python, a package goes before a module."""
    files = (module / "__init__.py", module.with_name(f"{module.name}.py"))
    return [file for file in files if file.is_file()][:1]
