"""What is scored: the table `[score]` of a plan."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...campaign.plan_reader import read_document
from ...detection.detector import AnyDetector
from ...detection.own_detector import is_own, shown_name
from ...detection.recovery import RECOVERIES, undoing
from ...detection.registry import beside_a_run, of_one_device
from ...detection.value_based import Chosen
from ...machine.errors import InputError, did_you_mean
from ...machine.files import read_text
from ...machine.sources import source_hash, with_own_folder
from ...runs.dependencies import WATCHING, source_of_alarms
from ...runs.outcome import MASKED, UNDECIDED
from ...seam.program import Program
from ..outcomes.plan import LARGEST, Plan
from ..outcomes.plan_file import read_plan

VENDORS = ("NPU_ASD_", "MS_NPU_ASD_")  # how the variables begin that the vendors' detectors read
GROWING = ("fault_free_seeds", "masked", "cannot_watch")  # settings that add rows or sentences, and change none
KEYS = ("detectors", "window", "masked", "fault_free_seeds", "recovered", "recovering", "replay_every")


class OwnFile(NamedTuple):
    """A user's detector: what a scoreboard calls it, its `FILE.py:NAME`, and a hash of the code that it is made of."""

    name: str
    place: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is scored.

    Attributes:
      detectors: names of those that watch.
      window: steps after the faulty one that they watch, at most.
      masked: how many masked experiments are watched at most, the first ones; all others are.
      fault_free_seeds: seeds beside the plan's whose fault-free runs are watched for false alarms.
      recovered: by name of a recovery, how many experiments have a run of their own for each detector
        that stops them, in which it acts on the alarms: the first ones of the plan.
      recovering: names of the detectors on whose alarms it acts.
      replay_every: n of the detector `replay`.
      cannot_watch: why, by the name of a detector that would watch, if the plan does not name detectors.
      own: the users' detectors among them.
      environment: the variables that the vendors' detectors read, wherever the jobs run.
    """

    detectors: tuple[str, ...]
    window: int = 20
    masked: int = 200
    fault_free_seeds: int = 4
    recovered: tuple[tuple[str, int], ...] = (("rewind", 50),)
    recovering: tuple[str, ...] = ("history_bound",)
    replay_every: int = 10
    cannot_watch: tuple[tuple[str, str], ...] = ()
    own: tuple[OwnFile, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def watched(self, judged: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Numbers of the experiments that are watched: the first that were masked, and all that were not.

        Args:
          judged: what the campaign says of them, with their `outcome`, by their numbers in order.
        """
        masked = [number for number, row in judged.items() if row["outcome"] == MASKED]
        others = [number for number, row in judged.items() if row["outcome"] not in (MASKED, UNDECIDED)]
        return [*masked[: self.masked], *others]

    def fault_free(self, plan: Plan) -> list[tuple[str, int]]:
        """The fault-free runs: kind and number; seeds are not the plan's."""
        seeds = [(plan.workload.seed + 1 + n) % 2**31 for n in range(self.fault_free_seeds)]
        return [("golden", 0), *(("twin", n) for n in range(1, plan.twins + 1)), *(("seed", seed) for seed in seeds)]

    def determining(self) -> dict[str, object]:
        """What determines the rows of a scoreboard that are there: of detectors their code, wherever it lies."""
        known = {name: value for name, value in dataclasses.asdict(self).items() if name not in (*GROWING, "own")}
        known["code"] = source_of_alarms(WATCHING)
        return known | ({"own": [(each.name, each.digest) for each in self.own]} if self.own else {})


def read_settings(path: pathlib.Path, more: Sequence[str] = ()) -> tuple[Plan, Settings]:
    """A plan, and what is scored of it.

    Args:
      more: detectors that watch beside those of the plan: names, or users' `FILE.py:NAME`.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    plan = read_plan(path)
    document, read = read_document(read_text(path), path)
    if plan.wanted is not None:
        what = "experiments are drawn by strata, and a scoreboard counts them as they are"
        raise read.wrong("wanted", f"{what}; expected a plan with faults.experiments or half_width to be scored")
    table = read.table(document, "score")
    read.keys(table, KEYS, "score.")
    program = plan.workload.program(frozenset(), devices=1)
    environment = {name: value for name, value in os.environ.items() if name.startswith(VENDORS)}
    reasons = of_one_device(program, environment)
    known = tuple(name for name, why in reasons.items() if not why)
    default = Settings(known)

    def names(key: str, otherwise: Sequence[str]) -> tuple[str, ...]:
        found = read.list_of(table, f"score.{key}", list(otherwise), str, "detectors")
        for name in found:
            read.one_of({key: name}, f"score.{key}", None, tuple(reasons))
            if reasons[name]:
                raise read.wrong(f"score.{key}", f"{name} watches {reasons[name]}")
        return tuple(dict.fromkeys(found))

    given = table.get("recovered", dict(default.recovered))
    if not isinstance(given, dict):
        raise read.wrong("score.recovered", "expected a table of recoveries and numbers, such as { rewind = 50 }")
    read.keys(given, RECOVERIES, "score.recovered.")
    recovered = [(name, read.whole(given, f"score.recovered.{name}", None, 0, LARGEST)) for name in given]

    own = _own_files([name for name in more if is_own(name)], program)
    for name in more:
        if not is_own(name) and reasons.get(name, "nothing of this kind"):
            near = f"watches {reasons[name]}" if name in reasons else f"is unknown{did_you_mean(name, reasons)}"
            raise InputError(f"--detector {name[:60]!r} {near}")
    for name, most in recovered:
        try:
            undoing(name if most else None, program)
        except InputError as error:
            raise read.wrong("score.recovered", str(error)) from None
    added = [shown_name(name) if is_own(name) else name for name in more]
    detectors = tuple(dict.fromkeys((*names("detectors", known), *added)))
    usual = [name for name in default.recovering if name in detectors]
    recovering = read.list_of(table, "score.recovering", usual, str, "detectors")
    for name in recovering:
        if name not in detectors:
            raise read.wrong("score.recovering", f"{name!r:.60} does not watch; expected of {', '.join(detectors)}")
    return plan, Settings(
        detectors=detectors,
        masked=read.whole(table, "score.masked", default.masked, 0, LARGEST),
        recovering=tuple(dict.fromkeys(recovering)),
        window=read.whole(table, "score.window", default.window, 1, 10_000),
        fault_free_seeds=read.whole(table, "score.fault_free_seeds", default.fault_free_seeds, 0, 10_000),
        recovered=tuple(recovered),
        replay_every=read.whole(table, "score.replay_every", default.replay_every, 1, 10**9),
        cannot_watch=tuple((name, why) for name, why in reasons.items() if why and "detectors" not in table),
        own=own,
        environment=tuple(sorted(environment.items())),
    )


def _own_files(names: Sequence[str], program: Program) -> tuple[OwnFile, ...]:
    """The users' detectors, each tried out."""
    found: dict[str, OwnFile] = {}
    for name in names:
        file, _, wanted = name.rpartition(":")
        place = f"{pathlib.Path(file).resolve()}:{wanted}"
        beside_a_run(name, program, os.environ)
        code = source_hash(with_own_folder(pathlib.Path(file).resolve()))
        one = OwnFile(shown_name(name), place, code)
        if found.setdefault(one.name, one) != one:
            raise InputError(f"--detector {one.name}: two files of this name; give one of them another name", file)
    return tuple(found.values())


def chosen_detectors(settings: Settings, program: Program) -> dict[str, AnyDetector]:
    """The detectors by name."""
    # None is None: `read_settings` refuses what the environment switches off.
    return {name: one.detector for name, one in _chosen(settings, program).items() if one.detector is not None}


def remarks(settings: Settings, program: Program) -> list[str]:
    """What is to be known of the detectors, a sentence each."""
    return list(dict.fromkeys(note for one in _chosen(settings, program).values() for note in one.notes))


def _chosen(settings: Settings, program: Program) -> dict[str, Chosen]:
    found, places = {}, {each.name: each.place for each in settings.own}
    for name in settings.detectors:
        changed = {"every": str(settings.replay_every)} if name == "replay" else {}
        found[name] = beside_a_run(places.get(name, name), program, dict(settings.environment), changed)
    return found
