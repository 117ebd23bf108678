"""Write `LEADERBOARD.md` from the records in `leaderboard/`: `python results/leaderboard.py`; `--check` writes nothing.

`--record STORE SET DAY COMMAND` writes the records of a scoreboard that is there, such as those of `results/latent`,
whose experiments were watched before `score --record` was.  What such a store does not know is null: it names the first
tensor with an alarm, not the one farthest beyond its threshold.
"""

import argparse
import pathlib
import sys

from fault_injection.machine.errors import InputError
from fault_injection.machine.files import write_json, write_text
from fault_injection.questions.scoreboard.board import read_board
from fault_injection.questions.scoreboard.leaderboard import file_name, leaderboard, read_records, record
from fault_injection.questions.scoreboard.store import ScoreStore

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE, RECORDS, SETS = ROOT / "LEADERBOARD.md", ROOT / "results" / "leaderboard", ROOT / "injections" / "sets"


def sets() -> dict[str, str]:
    """What each frozen set is, by its name: the end of the comment that its file begins with."""
    found = {}
    for path in sorted(SETS.glob("*.toml")):
        lines = path.read_text(encoding="utf-8").split("\n")
        comment = " ".join(
            line.removeprefix("# ") for line in lines[: next(i for i, x in enumerate(lines) if x[:1] != "#")]
        )
        found[path.stem] = comment.partition("gets another name.")[2].strip()
    return found


def add(store: pathlib.Path, of_set: str, day: str, command: str) -> None:
    """Write the records of all detectors of a scoreboard."""
    board = read_board(store)
    with ScoreStore(store) as rows:
        environment, knows = rows.get("about", "environment"), "own" in rows.get("about", "settings")
    for name in board.detectors:
        found = record(board, name, of_set, command, environment, day)
        if not knows:
            found["localized"] = None
        write_json(RECORDS / file_name(found), found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page would change")
    parser.add_argument("--record", nargs=4, metavar=("STORE", "SET", "DAY", "COMMAND"), help="write records")
    options = parser.parse_args(arguments)
    try:
        if options.record:
            add(pathlib.Path(options.record[0]), *options.record[1:])
        page = leaderboard(read_records(RECORDS), sets())
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    if options.check:
        print("LEADERBOARD.md is not what the records say: run python results/leaderboard.py", file=sys.stderr)
        return 1
    write_text(PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
