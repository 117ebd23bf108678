"""What `import fault_injection` offers: typed, documented, and imported when it is asked for."""

import ast
import doctest
import inspect
import subprocess
import sys

import pytest

import fault_injection


def test_the_stub_says_the_same_names_as_the_package_and_where_each_is(repository):
    stub = ast.parse((repository / "fault_injection" / "__init__.pyi").read_text())
    homes = {
        alias.name: f"fault_injection.{node.module}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (public,) = (ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(homes) == sorted(public) == sorted(fault_injection.__all__)
    for name, home in homes.items():
        assert getattr(fault_injection, name) is getattr(sys.modules[home], name)
        assert getattr(fault_injection, name).__module__ == home


@pytest.mark.parametrize("name", fault_injection.__all__)
def test_each_has_a_docstring_with_an_example(name):
    """`tests/test_examples.py` runs them."""
    found = getattr(fault_injection, name)
    assert inspect.getdoc(found) and doctest.DocTestParser().get_examples(found.__doc__)


def test_names_are_listed_and_a_wrong_one_is_refused():
    assert {*fault_injection.__all__, "__version__"} <= set(dir(fault_injection))
    with pytest.raises(AttributeError, match="module 'fault_injection' has no attribute 'instrumnt'"):
        fault_injection.instrumnt  # noqa: B018


def test_the_package_alone_loads_no_jax(repository):
    look = "import sys, fault_injection; dir(fault_injection); print([n for n in ('jax', 'numpy') if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", look], cwd=repository, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
