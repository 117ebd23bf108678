"""`trainer_state.json`, which Hugging Face's Trainer saves with each checkpoint: the list `log_history`."""

from ..machine.errors import InputError
from .json_lines import flat, parsed
from .source import Source
from .table import LogTable, records

NAME = "Hugging Face trainer_state.json"


def fits(source: Source) -> bool:
    """Whether the file is one JSON object with `log_history`."""
    return source.text.lstrip()[:1] == "{" and '"log_history"' in source.text


def read(source: Source) -> LogTable:
    """The table: one row per entry of the history.

    Raises:
      InputError: it is no JSON, or the history is no list of objects.
    """
    whole = parsed(source.text)
    history = whole.get("log_history") if isinstance(whole, dict) else None
    if not isinstance(history, list) or not all(isinstance(each, dict) for each in history):
        raise InputError("log_history is no list of objects, or the file is no JSON: is it cut off?", source.path)
    return records(NAME, [(0, flat(each)) for each in history])
