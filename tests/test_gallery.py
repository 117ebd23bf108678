"""Trainings of others: each has a fault and a row in the gallery's table; those that are fetched are replayed."""

import json
import re
import xml.etree.ElementTree as ET

import pytest
from conftest import HERE

from fault_injection.commands.main import main

GALLERY = HERE.parent / "examples" / "gallery"
FAULTS = sorted(GALLERY.glob("*.csv"))


def rows():
    """The outcome that the table says, by the training's name."""
    table = [line.split("|")[1:-1] for line in (GALLERY / "README.md").read_text().splitlines() if line[:3] == "| ["]
    return {cells[0].split("`")[1]: cells[-1].strip(" *") for cells in table}


def test_each_training_has_a_fault_and_an_outcome():
    trainings = {path.stem for path in GALLERY.glob("*.py")} - {"others", "run"}
    assert {path.stem for path in FAULTS} == trainings == rows().keys() and len(trainings) >= 8
    for path in FAULTS:
        assert path.read_text().startswith(f"model,examples/gallery/{path.stem}.py:training\n")


def maps():
    """Every map that a README of an example shows: the picture, and the paragraph above it."""
    shown = re.compile(r"^(?:`\w+`: )?(.+)\n\n!\[[^]]*\]\(([\w/]+\.svg)\)$", re.MULTILINE)
    for readme in sorted(GALLERY.parent.rglob("README.md")):
        if "fetched" not in readme.parts:
            for said, picture in shown.findall(readme.read_text(encoding="utf-8")):
                yield readme.parent / picture, said


MAPS = dict(maps())


def test_each_training_of_the_gallery_shows_its_map():
    assert {path.stem for path in MAPS if path.parent.name == "maps"} == {path.stem for path in FAULTS}
    assert set(GALLERY.parent.rglob("map*/*.svg")) | set(GALLERY.parent.glob("*/map.svg")) == set(MAPS)
    without = {path.parent.name for path in GALLERY.parent.glob("*/fault.csv")} - {path.parent.name for path in MAPS}
    assert without == {"maxtext", "easydel"}  # which the page of the examples names


@pytest.mark.parametrize("path", MAPS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_map_is_small_and_its_readme_says_what_it_says(path):
    written = path.read_bytes()
    (described,) = [one.text for one in ET.fromstring(written).iter() if one.tag.endswith("}description")]
    assert len(written) < 150_000 and b"<image" not in written
    sentences = re.split(r"(?<=\.) (?=[A-Z])", MAPS[path])
    assert [one for one in sentences if one not in described] == [] and len(sentences) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_the_outcome_is_the_one_of_the_table(path, tmp_path, repository, monkeypatch, capsys):
    monkeypatch.chdir(repository)
    code = main(["replay", str(path), "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")])
    err = capsys.readouterr().err
    if code and ("is not there" in err or "No module named" in err):
        pytest.skip(err.strip().splitlines()[-1])
    assert code == 0, err
    assert json.loads((tmp_path / "out" / "outcome.json").read_text())["outcome"] == rows()[path.stem]
