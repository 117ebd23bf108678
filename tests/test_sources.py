"""What a cached result depends on: the files that its code imports, and of these what computes."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.machine.sources import ROOT, closure, source_hash

FILES = {
    "run/__init__.py": "from .unrelated import everything",
    "run/program.py": "from ..nets import resnet\nfrom .steps import step\nimport numpy, nets.layers.conv\n",
    "run/steps.py": "def step():\n    from . import late\n    return late\n",
    "run/late.py": "import run.program  # in a circle\n",
    "run/unrelated.py": "everything = 1\n",
    "nets/__init__.py": "from .densenet import densenet\n",
    "nets/densenet.py": "densenet = 2\n",
    "nets/resnet.py": "from .layers import norm\nfrom .layers.conv import conv\n",
    "nets/layers/__init__.py": "from .norm import norm as normalise\n",
    "nets/layers/conv.py": "conv = 3\n",
    "nets/layers/norm.py": "norm = 4\n",
    "tools/plot.py": "from nets import resnet\n",
}


def checkout(folder, changes=()):
    """A small project in `folder`; `changes` replaces or adds files by path."""
    for name, text in (FILES | dict(changes)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def reached(folder, roots=("run/program.py",), rooms=("run", "nets")):
    found = closure(roots, rooms, folder)
    return {path.relative_to(folder).as_posix() for path in found if path.is_relative_to(folder)}


def hashed(folder, roots=("run/program.py",), rooms=("run", "nets")):
    return source_hash(closure(roots, rooms, folder), folder)


# ---- Which files --------------------------------------------------------------------------


def test_imports_are_followed_absolute_and_relative_and_inside_functions(tmp_path):
    expected = {"run/program.py", "run/steps.py", "run/late.py", "nets/resnet.py"}
    assert reached(checkout(tmp_path)) == expected | {"nets/layers/conv.py", "nets/layers/norm.py"}


@pytest.mark.parametrize(
    "statement, more",
    [
        ("import nets.layers.conv", {"nets/layers/conv.py"}),
        ("from nets.layers import conv", {"nets/layers/conv.py"}),
        ("from nets.layers import normalise", {"nets/layers/__init__.py", "nets/layers/norm.py"}),
        ("from nets.layers import *", {"nets/layers/__init__.py", "nets/layers/norm.py"}),
        ("import nets.layers", {"nets/layers/__init__.py", "nets/layers/norm.py"}),
        ("from nets import densenet", {"nets/densenet.py"}),
        ("from nets import other", {"nets/__init__.py", "nets/densenet.py"}),
        ("from . import late", {"run/late.py", "run/program.py"}),
        ("from tools.plot import resnet", set()),
        ("import nowhere.at.all, json", set()),
        ("from ......far import away", set()),
    ],
)
def test_a_package_counts_where_something_is_imported_from_itself(tmp_path, statement, more):
    folder = checkout(tmp_path, {"run/program.py": "", "run/user.py": statement})
    assert reached(folder, ["run/user.py"]) == {"run/user.py"} | more


def test_the_search_stays_inside_the_rooms(tmp_path):
    folder = checkout(tmp_path)
    assert reached(folder, rooms=["run"]) == {"run/program.py", "run/steps.py", "run/late.py"}
    assert reached(folder, ["tools/plot.py"], ["nets/resnet.py"]) == {"tools/plot.py", "nets/resnet.py"}
    (folder / "nets2").mkdir()
    (folder / "nets2" / "deep.py").write_text("")  # a name that begins like a room's is another room
    (folder / "run" / "late.py").write_text("import nets2.deep")
    assert "nets2/deep.py" not in reached(folder)


def test_a_root_may_lie_outside_of_the_checkout(tmp_path):
    folder, own = checkout(tmp_path / "project"), tmp_path / "mine.py"
    own.write_text("import helper\nfrom nets.layers.conv import conv\n")
    (tmp_path / "helper.py").write_text("")
    assert closure([own], ["nets"], folder) == sorted([own, folder / "nets/layers/conv.py"])
    before = source_hash(closure([own], ["nets"], folder), folder)
    (tmp_path / "elsewhere").mkdir()
    moved = own.rename(tmp_path / "elsewhere" / "mine.py")
    assert source_hash(closure([moved], ["nets"], folder), folder) == before  # its place is not part of the hash


@pytest.mark.parametrize(
    "roots, rooms, error",
    [
        (["run/gone.py"], ["run"], FileNotFoundError),
        (["run"], ["run"], IsADirectoryError),
        (["run/program.py"], ["run", "detectors"], FileNotFoundError),
        (["broken.py"], ["run"], SyntaxError),
    ],
)
def test_what_is_not_there_or_not_python_is_an_error(tmp_path, roots, rooms, error):
    checkout(tmp_path, {"broken.py": "def ("})
    with pytest.raises(error, match=r"gone|run|detectors|broken"):
        hashed(tmp_path, roots, rooms)


def test_what_python_imports_is_in_the_closure():
    """Compared with Python itself: each module that the program of a workload loads, is reached or is a package."""
    rooms = ["fault_injection"]
    code = "import sys, fault_injection.workloads.registry; print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded = {line for line in done.stdout.splitlines() if line.startswith(tuple(f"{ROOT / room}/" for room in rooms))}
    found = set(map(str, closure(["fault_injection/workloads/registry.py"], rooms)))
    assert len(loaded) > 20
    assert {path for path in loaded - found if not path.endswith("__init__.py")} == set()
    assert str(ROOT / "fault_injection/models/networks/__init__.py") in found


# ---- Which of their content ---------------------------------------------------------------

KERNEL = '''"""A docstring."""

class Layer:
    """Another."""

    def forward(self, x):
        """A third."""
        return x * 2  # a comment
'''
TEXT = st.text(st.characters(codec="utf-8", exclude_characters='"\\\r\0', exclude_categories=["Cc"]), max_size=30)


def test_code_changes_the_hash(tmp_path):
    changes = [
        {"nets/layers/conv.py": "conv = 5\n"},
        {"nets/layers/conv.py": "conv = '3'\n"},
        {"nets/layers/conv.py": "conv = 3\nother = 'no docstring'\n"},
        {"run/late.py": ""},
        {"run/late.py": "from nets import densenet\n"},
        {"nets/layers/conv.py": "", "nets/layers/norm.py": "norm = 4\nconv = 3\n"},
    ]
    found = [hashed(checkout(tmp_path / str(i), change)) for i, change in enumerate([{}, *changes])]
    assert len(set(found)) == len(found)
    assert all(len(digest) == 16 and int(digest, 16) >= 0 for digest in found)


@settings(max_examples=30)
@given(docstring=TEXT, comment=TEXT)
def test_a_comment_or_a_docstring_changes_nothing(tmp_path_factory, docstring, comment):
    one, other = (tmp_path_factory.mktemp("checkout") / "layer.py" for _ in range(2))
    one.write_text(KERNEL, encoding="utf-8")
    altered = KERNEL.replace('"""Another."""', f'"""{docstring} """').replace("# a comment", f"# {comment}\n\n")
    other.write_text(altered.replace('        """A third."""\n', ""), encoding="utf-8")
    assert source_hash([one]) == source_hash([other])
    other = tmp_path_factory.mktemp("checkout") / "layer.py"
    other.write_text(altered.replace("* 2", "* 3"), encoding="utf-8")
    assert source_hash([one]) != source_hash([other])


def test_a_file_that_nobody_imports_changes_nothing(tmp_path):
    before = hashed(checkout(tmp_path / "before"))
    added = {"nets/transformer.py": "heads = 8\n", "nets/__init__.py": "from .transformer import heads\n"}
    assert hashed(checkout(tmp_path / "after", added)) == before
    used = {**added, "run/late.py": "import run.program\nimport nets.transformer\n"}
    assert hashed(checkout(tmp_path / "used", used)) != before


def test_a_name_and_a_place_are_part_of_the_hash_and_the_order_is_not(tmp_path):
    folder = checkout(tmp_path, {"nets/copy.py": "conv = 3\n"})
    one, two = folder / "nets/layers/conv.py", folder / "nets/copy.py"
    assert source_hash([one], folder) != source_hash([two], folder)
    assert source_hash([one, two], folder) == source_hash([two, one, two], folder)


def test_an_edit_while_a_process_runs_does_not_change_what_it_has_imported(tmp_path):
    folder = checkout(tmp_path)
    before = hashed(folder)
    (folder / "nets/layers/conv.py").write_text("conv = 5\n")
    assert hashed(folder) == before
