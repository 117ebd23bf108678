"""results/README.md is what `results/write.py` writes, and says nothing that the results do not bear out."""

import doctest
import importlib
import re

import pytest
from jinja2 import DictLoader


@pytest.fixture
def write(results, monkeypatch):
    """The program that writes the page."""
    monkeypatch.syspath_prepend(results)
    return importlib.import_module("write")


@pytest.fixture
def page_of(write, tmp_path, monkeypatch):
    """Runs the program on a template of one's own, with a page that says something else: exit code, and the page."""
    known = write.environment()
    monkeypatch.setattr(write, "PAGE", tmp_path / "README.md")

    def run(template, *arguments):
        loader = DictLoader({write.TEMPLATE: template})
        monkeypatch.setattr(write, "environment", lambda: known.overlay(loader=loader))
        write.PAGE.write_text("something else")
        return write.main([*arguments]), write.PAGE.read_text()

    return run


def test_writing_the_page_anew_changes_nothing(write):
    assert write.main(["--check"]) == 0


def test_a_page_that_says_something_else_is_found_and_written(page_of, capsys):
    assert page_of("The rate is {{ percent(0.125) }} %.\n", "--check") == (1, "something else")
    assert "python results/write.py" in capsys.readouterr().err
    assert page_of("The rate is {{ percent(0.125) }} %.\n") == (0, "The rate is 12.5 %.\n")


@pytest.mark.parametrize(
    ("opening", "borne_out"),
    [
        ("differ(fisher((45, 45), (31, 35)))", "A (Fisher's exact test, p = 0.033)"),
        ("differ(fisher((34, 56), (45, 64)))", None),
        ("differ(newcombe(a, b))", "A (Newcombe's interval of the difference, p = 0.00053)"),
        ("alike(chi2((2, 18), (7, 51)))", "A (χ², p = 0.8)"),
        ("alike(sign(15, 0))", None),
        ("claim(1 + 1 == 2)", "A"),
        ("claim(none)", None),
    ],
)
def test_a_sentence_that_the_numbers_do_not_bear_out_is_named_and_nothing_is_written(
    page_of, capsys, opening, borne_out
):
    cells = '{% set a, b = {"pvf": 0.5, "interval": [0.4, 0.6]}, {"pvf": 0.25, "interval": [0.2, 0.35]} %}'
    done = page_of(f"{cells}{{% call {opening} %}}A{{% endcall %}}")
    assert done == ((0, borne_out) if borne_out else (1, "something else"))
    assert capsys.readouterr().err == ("" if borne_out else "the results do not bear out: A\n")


@pytest.mark.parametrize("template", ["{{ campaign('nowhere').all.n }}", "{{ unheard_of }}", "{% call %}"])
def test_a_mistake_in_a_template_is_one_line(page_of, capsys, template):
    assert page_of(template) == (2, "something else")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_examples_of_numbers_and_tests(write):
    failed, tried = doctest.testmod(importlib.import_module("wording"))
    assert not failed and tried


def test_no_template_is_left_out(results, write):
    included = re.findall(r'"(\w+)"', (results / "template" / write.TEMPLATE).read_text())
    assert set(included) == {path.name.split(".")[0] for path in results.glob("template/*.jinja")} - {"README"}


def test_the_page_on_accelerators_has_the_table_of_what_was_compiled(results, monkeypatch):
    monkeypatch.syspath_prepend(results.parent / "benchmarks")
    table = importlib.import_module("tpus").table()
    assert table in (results.parent / "docs" / "accelerators.md").read_text(encoding="utf-8")
