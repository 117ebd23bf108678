"""The command `scale`: what it writes, what it says, and that nothing scales without being asked."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from injection_files import PUBLISHED, VALID, with_row

from fault_injection.commands.main import main
from fault_injection.faults.injection_file import parse_injection, read_injection
from fault_injection.faults.scaling import scale
from fault_injection.machine.errors import InputError


def run(repository, folder, *arguments):
    """`python -m fault_injection …` in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "fault_injection", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
    )


def test_the_pages_command_prints_what_the_page_says(repository, tmp_path):
    page = (repository / "docs" / "scaling.md").read_text()
    command, printed = re.findall(r"```(?:sh)?\n(.*?)```", page, re.DOTALL)
    _, _, module, *arguments = shlex.split(command)
    (tmp_path / "injections").symlink_to(repository / "injections")
    done = run(repository, tmp_path, *arguments)
    assert (module, done.returncode, done.stderr) == ("fault_injection", 0, "")
    assert done.stdout == printed
    written = tmp_path / printed.split()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"injections", written.name}
    assert read_injection(written).sentence() == printed.splitlines()[-2]


def test_a_file_that_exists_is_overwritten_only_by_force(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(VALID)
    command = ["scale", "a.csv", "--width", "4", "--workers", "4"]
    assert main(command) == 0
    path = tmp_path / "a_width4_workers4.csv"
    written = path.read_text()
    path.write_text("mine")
    capsys.readouterr()
    assert main(command) == 2
    line = f"{path.name}: exists already; choose another file with --out, or overwrite it with --force\n"
    assert capsys.readouterr() == ("", line)
    assert path.read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert path.read_text() == written


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ([], "scale to what? give at least one of --dataset, --width"),
        (["--widht", "8"], "unrecognized arguments: --widht 8"),
        (["--width", "0"], "'0'; expected a whole number from 1 to 1024"),
        (["--dataset", "digit"], "'digit' is unknown; did you mean 'digits'?"),
        (["--seed", "1"], "unrecognized arguments: --seed 1"),
        (["--workers", "3"], "batch_size 128 is not a multiple of the 3 workers"),
        (["--batch-size", "4"], "batch_size 4 is not a multiple of the 8 workers"),
        (["--blocks", "2/2"], "blocks 2/2 of resnet18; expected 4 counts"),
        (["--width", "8", "--out", "."], "--out is a folder, expected a file"),
    ],
)
def test_bad_options_give_one_line_and_no_file(tmp_path, monkeypatch, capsys, arguments, fragment):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(VALID)
    code = main(["scale", "a.csv", *arguments])
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert fragment in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


# ---- Never implicit -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "flags"),
    [
        ("resnet18-slow_degrade", "width,8", "--width 8"),  # inj_pos
        ("resnet18-masked", "epochs,20\nwidth,8", "--width 8 --epochs 20"),  # target_epoch
        ("resnet18-slow_degrade", "dataset,digits\nbatch_size,128", "--dataset digits --batch-size 128"),  # target_step
        ("resnet18_nobn-short_term_infs_nans", "workers,4", "--workers 4"),  # target_worker
    ],
)
def test_a_published_file_under_rows_of_another_scale_is_refused_with_the_command(name, rows, flags):
    text = (PUBLISHED / f"{name}.csv").read_text()
    with pytest.raises(InputError) as error:
        parse_injection(text + rows)
    message = str(error.value)
    assert message.endswith(f"then python -m fault_injection scale FILE {flags}")
    assert message.isprintable()
    # The command given is one that works.
    arguments = flags.replace("--", "").replace("-", "_").split()
    values = {
        key: int(value) if value.isdecimal() else value for key, value in zip(*[iter(arguments)] * 2, strict=True)
    }
    scale(parse_injection(text), **values)


def test_no_other_scale_is_suspected_where_no_row_names_one():
    text = (PUBLISHED / "resnet18-masked.csv").read_text()
    with pytest.raises(InputError) as error:
        parse_injection(text.replace("target_epoch,30", "target_epoch,80"))
    assert str(error.value).endswith("expected 0 to 79")


def test_a_misspelled_site_is_no_matter_of_scale():
    with pytest.raises(InputError) as error:
        parse_injection(with_row("target_layer", "target_layer,conv9"))
    assert "scale" not in str(error.value)
