"""The code that a result depends on: which files import which, and a hash of what they compute.

A cached result is filed under `source_hash(closure(roots, rooms))`: the hash of the files that
its code reaches through imports.  A file that nobody imports does not count, and neither do
comments and docstrings.
"""

import ast
import functools
import hashlib
import pathlib
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent  # of the checkout


def closure(
    roots: Iterable[str | pathlib.Path], rooms: Iterable[str], checkout: pathlib.Path = ROOT
) -> list[pathlib.Path]:
    """The root files, and the files in `rooms` that they reach through import statements.

    Imports inside functions count; imports by a computed name (`importlib`), and those that only
    a type checker reads, do not.  The
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
      RuntimeError: a root does not exist or is not Python, or no Python file lies in a room.

    >>> found = closure(["fault_injection/models/fault.py"], ["fault_injection/models"])
    >>> [ROOT / "fault_injection/models" / name in found for name in ("fault.py", "networks/resnet.py")]
    [True, False]
    """
    checkout = checkout.resolve()
    places = []
    for room in rooms:
        place = checkout / room
        if not place.is_file() and not any(place.glob("**/*.py")):
            raise RuntimeError(f"room {room!r}: no Python file lies in {place}")
        places.append(place)
    found: set[pathlib.Path] = set()
    waiting = [(checkout / root).resolve() for root in roots]
    for path in waiting:
        if not path.is_file():
            raise RuntimeError(f"root file {path} does not exist")
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            imported = _imported_files(path, checkout)
            waiting += [file for file in imported if any(file.is_relative_to(place) for place in places)]
    return sorted(found)


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

    Raises:
      RuntimeError: a file is not Python.

    >>> len(source_hash(closure(["fault_injection/models/fault.py"], ["fault_injection/models"])))
    16
    """
    checkout = checkout.resolve()
    lines = []
    for path in {path.resolve() for path in paths}:
        inside = path.is_relative_to(checkout)
        lines.append(f"{path.relative_to(checkout).as_posix() if inside else path.name} {_code_hash(path)}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:16]


@functools.cache
def _code_hash(path: pathlib.Path) -> str:
    tree = _parsed(path)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            del body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _parsed(path: pathlib.Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        raise RuntimeError(f"{path} is not Python: {error}") from None


@functools.cache
def _imported_files(path: pathlib.Path, checkout: pathlib.Path) -> list[pathlib.Path]:
    """The files of the checkout that the import statements of a file name."""
    found: list[pathlib.Path] = []
    for node in _run(_parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += _module_files(checkout.joinpath(*alias.name.split(".")))
        elif isinstance(node, ast.ImportFrom):
            # One leading dot means the package of this file, each further dot the package around that.
            base = path.parents[node.level - 1] if node.level else checkout
            module = base.joinpath(*(node.module or "").split("."))
            for alias in node.names:
                found += list(_module_files(module / alias.name)) or list(_module_files(module))
    return found


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, but for what only a type checker reads (`if TYPE_CHECKING:`)."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from _run(node)


def _module_files(module: pathlib.Path) -> Iterator[pathlib.Path]:
    """The file of a module, given its path without suffix: of a package, its `__init__.py`.

    As for Python, a package goes before a module of the same name.
    """
    for file in (module / "__init__.py", module.with_name(f"{module.name}.py")):
        if file.is_file():
            yield file
            return
