"""The documentation: links that lead somewhere, pages that say what the code says, commands that run."""

import html.parser
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest

from fault_injection.faults import injection_file
from fault_injection.faults.fault_models import FAULT_MODELS
from fault_injection.faults.injection_file import read_injection
from fault_injection.workloads.registry import WORKLOADS

CODE = re.compile(r"^```.*?^```[^\n]*$|`+[^`\n]+`+", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")
LENGTH = 180  # lines of the README, at most
ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "results"  # which the source distribution leaves out
PAGES = [
    *ROOT.glob("*.md"),
    *(
        path
        for folder in ("docs", "benchmarks", "examples", "results")
        for path in (ROOT / folder).rglob("*.md")
        if "fetched" not in path.parts  # repositories of others, which are no pages of ours
    ),
]


def loaded(name):
    """A module of docs/site."""
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page):
    """Those of a page's headings, as GitHub makes them."""
    found = []
    for title in re.findall(
        r"^#+ +(.+)$", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    ):
        found.append(re.sub(r"[^\w\- ]", "", LINK.sub("]", title).lower()).strip().replace(" ", "-"))
    return found


# ---- The sources ---------------------------------------------------------------------------


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LENGTH


def test_the_readme_has_two_commands_of_one_line_each():
    found = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert ["pytest" in line for line in found] == [False, True]  # .ci/run takes the second


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    wrong = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link or (not RESULTS.is_dir() and target.resolve().is_relative_to(RESULTS)):
            continue
        # A folder has no page on the site.
        if not target.is_file() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            wrong.append(link)
    assert wrong == []


def test_a_link_that_leads_nowhere_would_be_found():
    assert LINK.findall("see [this](docs/x.md#y), ![that](a/b.png)") == ["docs/x.md#y", "a/b.png"]
    assert anchors("# A `b_c`: d, e!\n## F\n```\n# no\n```\n") == ["a-b_c-d-e", "f"]


# ---- The pages and the code ----------------------------------------------------------------


def every_row():
    """All rows that an injection file can have, for any workload."""
    options = {name for workload in WORKLOADS.values() for name in (*workload.REQUIRED, *workload.OPTIONS)}
    return {*injection_file.FAULT_ROWS, *injection_file.OWN_ROWS}, options


def test_every_row_has_its_place_in_the_pages():
    of_fault, options = every_row()
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "injection.md").read_text()))
    assert of_fault <= named
    assert options <= named | set(re.findall(r"`(\w+)`", (ROOT / "docs" / "workloads.md").read_text()))


def test_the_template_has_every_row_and_is_valid():
    text = (ROOT / "injections" / "template.csv").read_text()
    of_fault, _ = every_row()
    keys = re.findall(r"^(?:# )?(\w+),\S", text, re.MULTILINE)
    options = {*WORKLOADS["resnet18"].REQUIRED, *WORKLOADS["resnet18"].OPTIONS}
    assert set(keys) == of_fault | options and len(set(keys)) == len(keys)
    assert read_injection(ROOT / "injections" / "template.csv").workload.width == 8


@pytest.mark.parametrize("key", ["schedule", "horizon", "nonfinite", "augmentation", "precision", "strategy", "blocks"])
def test_an_optional_row_of_the_template_is_valid(tmp_path, key):
    text = (ROOT / "injections" / "template.csv").read_text()
    changed = re.sub(rf"^# ({key},)", r"\1", text, flags=re.MULTILINE)
    assert changed != text
    (tmp_path / "x.csv").write_text(changed)
    read_injection(tmp_path / "x.csv")


def test_every_fault_model_has_a_picture():
    families, page = loaded("fault_models").FAMILIES, (ROOT / "docs" / "fault_models.md").read_text()
    assert sorted(name for names in families.values() for name in names) == sorted(FAULT_MODELS)
    assert set(re.findall(r"images/fault_models/(\w+)\.png", page)) == set(families)


def test_the_reference_describes_what_the_code_has():
    pages = {name: make() for name, make in loaded("reference").PAGES.items()}
    assert "### `[score]`" in pages["plans"] and "## replay" in pages["commands"] and "`inj_lane`" in pages["rows"]


def test_a_row_without_a_description_is_an_error():
    with pytest.raises(ValueError, match=r"differ by \['new'\]"):
        loaded("reference").described({"a": "one"}, ["a", "new"])


# ---- The site ------------------------------------------------------------------------------


class Links(html.parser.HTMLParser):
    """The ids of a page, and where its links, images, scripts and styles lead."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.ids.add(known.get("id"))
        self.targets += [known[key] for key in ("href", "src") if known.get(key)]


@pytest.mark.slow
def test_the_site_builds_and_every_link_of_it_leads_somewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs")
    if not RESULTS.is_dir():
        pytest.skip("the source distribution leaves out results/, to which pages link")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {path: Links(path) for path in (tmp_path / "site").rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        for target in page.targets:
            address = urllib.parse.urlsplit(target)
            if address.scheme or address.netloc or path.name == "404.html":  # whose links count from the root of a host
                continue
            found = (path.parent / urllib.parse.unquote(address.path)).resolve() if address.path else path
            found = found / "index.html" if found.is_dir() else found
            fragment = urllib.parse.unquote(address.fragment)
            if not found.is_file() or (fragment and found in pages and fragment not in pages[found].ids):
                wrong.append((str(path.relative_to(tmp_path / "site")), target))
    assert wrong == []
    assert len(pages) > 40 and (tmp_path / "site" / "results" / "reference" / "quick_start" / "curves.png").is_file()


@pytest.mark.slow
def test_the_readmes_own_training_step_does_what_the_readme_says(tmp_path):
    section = (ROOT / "README.md").read_text().split("## Your own training step\n")[1].split("\n## ")[0]
    (source,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    fault, printed = re.findall(r"```\n(\w.*?)```", section, re.DOTALL)[-2:]
    (tmp_path / "my_run.py").write_text(source)
    (tmp_path / "fault.csv").write_text(fault)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FAULT_INJECTION_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "fault_injection", "replay", "fault.csv"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition(":")[0] == printed.partition(":")[0] == "LowTestAccuracy"
