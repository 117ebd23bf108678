"""A file or folder that somebody hands in, looked at once by all families."""

import codecs
import csv
import functools
import io
import pathlib
from collections.abc import Iterator

from ..machine.errors import InputError
from ..machine.files import read_bounded
from .cells import Cell
from .table import plain

LARGEST = 2**31  # bytes of a log
BEGINNING = 200  # lines that families look at
SEPARATORS = ",;\t|"
FIELD = 2**17  # characters of a cell


class Source:
    """A file or folder; its text, lines and header are read when a family asks for them.

    Args:
      path: of it.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    @functools.cached_property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @functools.cached_property
    def text(self) -> str:
        """The text of the file: UTF-8, with or without a byte order mark, or UTF-16 with one."""
        try:
            content = read_bounded(self.path, LARGEST)
        except OSError as error:
            raise InputError(error.strerror or str(error), self.path) from None
        except ValueError:
            raise InputError("a file's name has no NUL byte", self.path) from None
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        try:
            return content.decode("utf-16" if wide else "utf-8-sig")
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text, and no log that is known", self.path) from None

    def lines(self) -> Iterator[tuple[int, str]]:
        """The lines of the text that are not empty, with their numbers."""
        for number, line in enumerate(io.StringIO(self.text), 1):
            if line.strip():
                yield number, line.strip()

    @functools.cached_property
    def beginning(self) -> tuple[str, ...]:
        return tuple(line for (_, line), _ in zip(self.lines(), range(BEGINNING), strict=False))

    @functools.cached_property
    def separator(self) -> str:
        line = next((line for line in self.beginning if not line.startswith("#")), "")
        return max(SEPARATORS, key=line.count)

    @functools.cached_property
    def header(self) -> tuple[str, ...]:
        """The names in the first line, as `plain` writes them; empty where it is no row of cells."""
        line = next((line for line in self.beginning if not line.startswith("#")), "")
        try:
            return tuple(plain(cell) for cell in next(csv.reader([line], delimiter=self.separator), []))
        except csv.Error:
            return ()

    def cells(self) -> tuple[tuple[str, ...], list[tuple[int, list[Cell]]], tuple[str, ...]]:
        """Header, rows with their lines, and notes, of a file of separated values.

        Raises:
          InputError: a row has another number of cells than the header, or quotes are not closed.
        """
        if not self.text.strip():
            raise InputError("empty; expected a log", self.path)
        reader = csv.reader(io.StringIO(self.text, newline=""), strict=True, delimiter=self.separator)
        header: tuple[str, ...] = ()
        rows: list[tuple[int, list[Cell]]] = []
        again = commented = 0
        short: tuple[int, int] | None = None
        try:
            for row in reader:
                if not row or (len(row) == 1 and not row[0].strip()):
                    continue
                if row[0].startswith("#") and (not header or len(row) != len(header)):
                    commented += 1
                    continue
                cells = [cell.strip() for cell in row]
                if not header:
                    header = self._names(cells, reader.line_num)
                elif tuple(cells) == header:
                    again += 1  # a logger that was restarted wrote it once more
                elif short or len(cells) > len(header):
                    line, count = short or (reader.line_num, len(cells))
                    raise InputError(f"{count} cells; expected {len(header)}: {','.join(header)}", self.path, line)
                elif len(cells) < len(header):
                    short = reader.line_num, len(cells)  # the last row may have been cut off
                else:
                    rows.append((reader.line_num, list(cells)))
        except csv.Error as error:
            raise InputError(f"not a row of separated values: {error}", self.path, reader.line_num) from None
        notes = [f"the header stands in {again + 1} places: each is taken as one"] * bool(again)
        notes += [f"{commented} comment(s) are left out"] * bool(commented)
        if short and self.text.endswith(("\n", "\r")):
            raise InputError(f"{short[1]} cells; expected {len(header)}: {','.join(header)}", self.path, short[0])
        notes += [f"the last row, of line {short[0]}, is cut off and left out"] if short else []
        return header, rows, tuple(notes)

    def _names(self, cells: list[str], line: int) -> tuple[str, ...]:
        names = [cell or f"column {number}" for number, cell in enumerate(cells, 1)]
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1] if len(set(names)) < len(names) else []
        if twice:
            raise InputError(f"column {twice[0][:60]!r} stands {names.count(twice[0])} times", self.path, line)
        return tuple(names)
