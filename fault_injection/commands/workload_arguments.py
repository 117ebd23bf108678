"""Options of workloads on the command line."""

import argparse
from collections.abc import Callable
from typing import Any

from ..machine.errors import InputError
from ..seam.workload import Workload, format_option
from ..workloads.registry import WORKLOADS, find_workload
from .arguments import flag


def workload_options(
    parser: argparse.ArgumentParser, default: Callable[[Workload], Workload] | None, scaling_only: bool = False
) -> None:
    """Options of workloads, named as rows of an injection file; `given` reads them.

    Args:
      default: gives the workload whose values hold where options are absent; None where a file says them.
      scaling_only: only options that a fault's place scales with.
    """
    meanings: dict[str, dict[str, None]] = {}  # ordered; workloads may mean different things by one name
    values: dict[str, dict[str, list[str]]] = {}  # of an option: which workloads have which value
    for workload in WORKLOADS.values():
        for name, option in (workload.OPTIONS if scaling_only else {**workload.OPTIONS, **workload.REQUIRED}).items():
            if option.scales or not scaling_only:
                meanings.setdefault(name, {})[option.meaning] = None
                value = "as in FILE" if default is None else str(format_option(getattr(default(workload), name)))
                values.setdefault(name, {}).setdefault(value, []).append(workload.name)
    for name, meaning in meanings.items():
        first, *others = values[name].items()
        known = "; ".join([first[0], *(f"{', '.join(of)}: {value}" for value, of in others)])
        parser.add_argument(flag(name), metavar="VALUE", help=f"{'; or '.join(meaning)} (default: {known})")
    parser.set_defaults(option_names=list(meanings))


def given(options: argparse.Namespace, workload: Workload) -> dict[str, Any]:
    """The options of `workload_options` that were given, read as the workload reads them.

    Raises:
      InputError: the workload has no such option, or it is no such value.
    """
    known, values = {**workload.OPTIONS, **workload.REQUIRED}, {}
    for name in options.option_names:
        if (text := getattr(options, name)) is None:
            continue
        if name not in known:
            raise InputError(f"{flag(name)} is not an option of {workload.name}; it has {', '.join(map(flag, known))}")
        try:
            values[name] = known[name].kind.parse(text)
        except ValueError:
            raise InputError(f"argument {flag(name)}: {known[name].kind.wrong(text)}") from None
    return values


def chosen_workload(options: argparse.Namespace, embedded: bool = False) -> Workload:
    """The workload that is named, with the options given.

    Args:
      embedded: start from the embedded default instead of the published set-up.

    Raises:
      InputError: there is none of that name, or its options do not go together.
    """
    workload = find_workload(options.workload)
    values = given(options, workload)
    workload = (workload.embedded() if embedded else workload).changed(**values)
    if (problem := workload.contradiction()) is not None:
        raise InputError(problem.message)
    return workload
