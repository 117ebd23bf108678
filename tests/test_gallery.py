"""Trainings of others: each has a fault and a row in the gallery's table; those that are fetched are replayed."""

import json

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
