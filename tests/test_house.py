"""The house: which room may import which, and what a file may be.  Read from the code alone; nothing is imported.

Each rule is a function that lists what breaks it in a tree of files.  What still breaks a rule today is written down
in `DEBT`, which may only shrink: an entry that is no longer true fails as well.
"""

import ast
import fnmatch
import functools
import itertools
import pathlib
import tomllib
from collections.abc import Iterator, Mapping

import pytest

pytestmark = pytest.mark.law

PACKAGE = "fault_injection"
# From top to bottom.  A room imports from lower floors only; rooms of one floor stand side by side.
FLOORS = (
    ("",),  # the public API and __main__: files outside all rooms
    ("commands",),
    ("questions",),
    ("campaign",),
    ("published",),
    ("detection", "checkpoints"),
    ("logs",),
    ("runs",),
    ("faults",),
    ("workloads",),
    ("any_step", "explicit"),
    ("seam",),
    ("models",),
    ("data",),
    ("machine",),
    ("version",),  # a file outside all rooms that imports nothing
)
FUNCTION_LINES, FILE_LINES = 70, 400
LONG_FILE = f"# Above {FILE_LINES} lines: "  # a comment of a file that has a reason to be longer

# Slow to import, or missing where an extra was not installed: what an import inside a function may spare.
HEAVY = {
    *("jax", "jaxlib", "flax", "optax", "orbax", "tensorstore", "distributed", "pyarrow"),
    *("matplotlib", "scipy", "sklearn", "h5py", "PIL", "google_crc32c", "gdown"),
}
# Files that import by a name which they compute, and why.
COMPUTED = {
    "__init__.py": "the public API is imported when it is first asked for",
    "commands/main.py": "one module per command: a command imports only itself",
    "machine/user_files.py": "a user's file is imported by its path",
    "machine/extras.py": "packages that pip may not have installed are named in one line",
}
# Imports inside functions that wait for something else than the command which needs them.
LATER = {
    "commands/entry.py:run fault_injection.commands.main.main": "signals are heeded before anything is imported",
    "commands/entry.py:run fault_injection.machine.environment.use_huge_pages": "as the one above",
}
# Files that import under TYPE_CHECKING, and why.
TYPING = {"__init__.py": "the types of the public API, which is imported when it is first asked for"}
# Files with a maximum or minimum of JAX's own over an array, which may lose a NaN, and why it cannot there.
MAXIMA = {
    "models/largest.py": "of bits",
    "models/overwrite.py": "of positions",
    "models/layers/attention.py": "a softmax: its powers keep the NaN",
    "models/observe/dr_dna.py": "a NaN counts as infinite before",
    "any_step/instrument.py": "of numbers of sites",
    "any_step/intercept.py": "of words of a fault",
    "any_step/struck_site.py": "of positions",
    "seam/digest.py": "of bits",
    "seam/watched_activations.py": "of scores, which are finite",
    "detection/transformation.py": "of levels",
}

# What breaks a rule today, by the rule's name.
DEBT: Mapping[str, set[str]] = {}


# --- what is read ---


class Module:
    """One file of a tree: its name with dots, its room, and what it says."""

    def __init__(self, tree: pathlib.Path, path: pathlib.Path):
        parts = path.relative_to(tree.parent).with_suffix("").parts
        self.file = path.relative_to(tree).as_posix()
        self.name = ".".join(parts[:-1] if path.name == "__init__.py" else parts)
        self.room = parts[1] if len(parts) > 2 or parts[-1] == "version" else ""
        self.package = parts[:-1]
        self.text = path.read_text()
        self.syntax = ast.parse(self.text)
        self.imports = list(self._imports())

    def _imports(self) -> Iterator[tuple[str, str]]:
        """Each imported name with dots, and the function that holds the import, or ''."""
        for node, function in _within(self.syntax, ""):
            if isinstance(node, ast.Import):
                yield from ((alias.name, function) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self.package[: len(self.package) - node.level + 1] if node.level else ()
                start = ".".join((*base, *filter(None, [node.module])))
                yield from ((f"{start}.{alias.name}", function) for alias in node.names)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.syntax) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _within(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        yield child, function
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _within(child, child.name if inside else function)


@functools.cache
def modules(tree: pathlib.Path) -> dict[str, Module]:
    return {module.name: module for path in sorted(tree.rglob("*.py")) for module in [Module(tree, path)]}


def target(found: Mapping[str, Module], name: str) -> Module | None:
    """The module of the package that the import of a name reads: `a.b` of `from a import b`, else `a`."""
    return found.get(name) or found.get(name.rpartition(".")[0])


def arrows(tree: pathlib.Path) -> dict[str, list[Module]]:
    """Of each module, the modules that it imports anywhere."""
    found = modules(tree)
    named = {name: (target(found, other) for other, _ in module.imports) for name, module in found.items()}
    return {name: [other for other in others if other and other.name != name] for name, others in named.items()}


@functools.cache
def loads(tree: pathlib.Path, name: str) -> set[str]:
    """The heavy libraries that the import of a name loads at once, through whatever modules."""
    found, seen, heavy, open_ = modules(tree), set(), set(), [name]
    while open_:
        name = open_.pop()
        heavy |= {name.partition(".")[0]} & HEAVY
        module = target(found, name)
        if module and module.name not in seen:
            seen.add(module.name)
            open_ += [other for other, function in module.imports if not function]
            open_ += itertools.accumulate(module.package, "{}.{}".format)  # the packages around it come first
    return heavy


# --- the rules ---


def arrows_up(tree):
    """`room/file -> room` for imports that do not point downwards."""
    floors = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    found = modules(tree)
    unknown = {f"{module.room}: a room without a floor" for module in found.values() if module.room not in floors}
    pairs = ((found[name], other) for name, others in arrows(tree).items() for other in others)
    return unknown or {
        f"{module.file} -> {other.file}"
        for module, other in pairs
        if module.room != other.room and floors[module.room] >= floors[other.room]
    }


def circles(tree):
    """The files of each circle of imports: those that reach one another."""
    ahead = {name: {other.name for other in others} for name, others in arrows(tree).items()}
    reach = {name: set(others) for name, others in ahead.items()}
    for middle in reach:  # Warshall's closure
        for name in reach:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    found = modules(tree)
    rings = {frozenset(other for other in reach[name] if name in reach[other]) for name in reach}
    return {" <-> ".join(sorted(found[name].file for name in ring)) for ring in rings if ring}


def under_type_checking(tree):
    """Files with `if TYPE_CHECKING:`."""
    return {
        module.file
        for module in modules(tree).values()
        for node in ast.walk(module.syntax)
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"
    }


def by_computed_name(tree):
    """Files that import by calling a function."""
    calls = {"import_module", "__import__", "spec_from_file_location", "exec_module", "run_path", "run_module", "exec"}
    return {
        module.file
        for module in modules(tree).values()
        for node in ast.walk(module.syntax)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in calls
    }


def in_functions(tree):
    """`file:function name` of imports inside a function that spare a command no heavy library."""
    return {
        f"{module.file}:{function} {name}"
        for module in modules(tree).values()
        for name, function in module.imports
        if function and not loads(tree, name) - loads(tree, module.name)
    }


def long_functions(tree):
    """`file:function` of functions with more lines than fit on two screens."""
    return {
        f"{module.file}:{function.name}"
        for module in modules(tree).values()
        for function in module.functions()
        if function.end_lineno - function.lineno + 1 > FUNCTION_LINES
    }


def long_files(tree):
    """Files of many lines that do not say why."""
    return {
        module.file
        for module in modules(tree).values()
        if len(module.text.splitlines()) > FILE_LINES and LONG_FILE not in module.text
    }


def shared_names(tree):
    """`name: files` of classes that share a name."""
    found = {}
    for module in modules(tree).values():
        for node in ast.walk(module.syntax):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module.file)
    return {f"{name}: {', '.join(files)}" for name, files in found.items() if len(files) > 1}


def other_top_levels(tree):
    """What pyproject.toml beside the tree would install outside of the package."""
    settings = tomllib.loads((tree.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = settings.get("packages", {}).get("find", {})
    folders = [path.name for path in tree.parent.iterdir() if path.is_dir() and path.name.isidentifier()]
    kept = {name for pattern in found.get("include", ["*"]) for name in fnmatch.filter(folders, pattern)}
    return (kept | set(settings.get("py-modules", []))) - {PACKAGE}


def maxima(tree):
    """Files that reduce an array by a maximum or minimum of JAX's own (`models.largest` keeps a NaN)."""
    modules_of_jax, calls = {"jnp", "jax.numpy", "lax", "jax.lax"}, {"max", "min", "amax", "amin", "pmax", "pmin"}
    calls |= {"reduce_max", "reduce_min", "nanmax", "nanmin"}
    return {
        module.file
        for module in modules(tree).values()
        for node in ast.walk(module.syntax)
        # `lax.max` and `lax.min` are of two arrays, element by element, and lose nothing.
        if isinstance(node, ast.Attribute) and node.attr in calls and ast.unparse(node.value) in modules_of_jax
        if ast.unparse(node) not in ("lax.max", "lax.min", "jax.lax.max", "jax.lax.min")
    }


RULES = (
    *(arrows_up, circles, under_type_checking, by_computed_name, in_functions),
    *(long_functions, long_files, shared_names, other_top_levels, maxima),
)
ALLOWED = {
    "by_computed_name": set(COMPUTED),
    "under_type_checking": set(TYPING),
    "in_functions": set(LATER),
    "maxima": set(MAXIMA),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule, repository):
    found, debt = rule(repository / PACKAGE), DEBT.get(rule.__name__, set())
    found -= ALLOWED.get(rule.__name__, set())
    assert not found - debt, "new in the house"
    assert not debt - found, "no longer true: take it out of DEBT"


def test_a_long_file_of_tests_says_why(repository):
    assert not long_files(repository / "tests")


def test_what_may_import_otherwise_still_does(repository):
    assert by_computed_name(repository / PACKAGE) == set(COMPUTED)
    assert maxima(repository / PACKAGE) == set(MAXIMA)
    assert under_type_checking(repository / PACKAGE) <= set(TYPING) | DEBT.get("under_type_checking", set())


# A tree that keeps every rule, and what a careless hand adds to it: by rule, the file, its text, and what is found.
LAZY = "def run():\n    from ..runs import curves\n    return curves\n"
SOUND = {
    "__init__.py": "",
    "any_step/step.py": "",
    "commands/main.py": LAZY,  # spares commands Matplotlib
    "runs/curves.py": "import matplotlib\n\nfrom ..machine.files import File\n\nDRAWN = matplotlib, File\n",
    "machine/files.py": "class File:\n    pass\n\n\ndef load():\n    import jax\n    return jax\n",
    "../pyproject.toml": f'[tool.setuptools.packages.find]\ninclude = ["{PACKAGE}*"]\n',
}
OTHER = "../pyproject.toml", '[tool.setuptools]\npy-modules = ["models"]\n[tool.setuptools.packages.find]\n'
CARELESS = [
    (arrows_up, "machine/up.py", LAZY, "machine/up.py -> runs/curves.py"),
    (arrows_up, "explicit/side.py", "from ..any_step import step\n", "explicit/side.py -> any_step/step.py"),
    (arrows_up, "cellar/new.py", "", "cellar: a room without a floor"),
    (circles, "machine/files.py", LAZY, "machine/files.py <-> runs/curves.py"),
    (under_type_checking, "runs/a.py", "import typing\nif typing.TYPE_CHECKING:\n    import os\n", "runs/a.py"),
    (by_computed_name, "runs/a.py", "import importlib as i\ni.import_module('a' + 'b')\n", "runs/a.py"),
    (in_functions, "runs/a.py", "def f():\n    import os\n", "runs/a.py:f os"),
    (in_functions, "runs/a.py", f"import matplotlib\n\n{LAZY}", f"runs/a.py:run {PACKAGE}.runs.curves"),
    (long_functions, "runs/a.py", "def f():\n" + "    f()\n" * FUNCTION_LINES, "runs/a.py:f"),
    (long_files, "runs/a.py", "# a line\n" * (FILE_LINES + 1), "runs/a.py"),
    (shared_names, "runs/a.py", "class File:\n    pass\n", "File: machine/files.py, runs/a.py"),
    (other_top_levels, *OTHER, "models"),
    (other_top_levels, *OTHER, "tests"),
    (maxima, "runs/a.py", "import jax.numpy as jnp\n\nPEAK = jnp.max(jnp.abs(jnp.ones(2)))\n", "runs/a.py"),
]


def write(tree, file, text):
    path = tree / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("rule", "file", "text", "expected"), CARELESS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_careless_file_breaks_its_rule(rule, file, text, expected, tmp_path):
    for folder in (tmp_path / "sound" / PACKAGE, tmp_path / "careless" / PACKAGE):
        for name, content in SOUND.items():
            write(folder, name, content)
    (tmp_path / "careless" / "tests").mkdir()
    assert rule(tmp_path / "sound" / PACKAGE) == set()
    write(folder, file, text)
    assert expected in rule(folder)


def test_a_function_and_a_file_of_as_many_lines_as_allowed_pass(tmp_path):
    tree = tmp_path / PACKAGE
    write(tree, "runs/a.py", "def f():\n" + "    f()\n" * (FUNCTION_LINES - 1) + "\n" * (FILE_LINES - FUNCTION_LINES))
    write(tree, "runs/b.py", f"{LONG_FILE}it is a table\n" + "\n" * FILE_LINES)
    assert long_functions(tree) == long_files(tree) == set()
