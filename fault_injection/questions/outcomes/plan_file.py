"""The file of a plan: TOML.  All that can be wrong with it is found before any work starts, and said in one line."""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...campaign.allocation import FIRST
from ...campaign.plan_reader import Reader, as_text, read_document, shown_value
from ...faults.fault_models import FAULT_MODELS, FLIPS, PUBLISHED_MODELS, VALUES, read_histogram
from ...faults.injection import STAGES
from ...faults.number_formats import Format, format_of
from ...faults.profiles.reader import find_profile, profile_text
from ...faults.schedule import ONCE, SCHEDULE, Schedule
from ...machine.errors import InputError, did_you_mean
from ...machine.files import read_text
from ...models.fault import Operand
from ...models.site import Site
from ...seam.measure import NONFINITE_RULES
from ...seam.stages import CHECKPOINT
from ...seam.workload import Workload
from ...workloads.registry import find_workload
from .audits import WANTED_SHARE, share_to_audit
from .plan import EXITS, LARGEST, PROFILED, Model, Plan, sample_size
from .plan_sites import chosen_sites
from .plan_start import START, read_start
from .together import with_groups
from .wanted import WantedOutcome, read_wanted

INJECTION = re.compile(r"([^\S\n]*(#.*)?\n)*+\s*[\"']?(model|stage|fmodel|target_\w+)[\"']?\s*,")  # how its files begin
FAULTS = (
    *("experiments", "half_width", "confidence", "epochs", "stages", "sites", "kinds", "layers", "depth"),
    *("seed", "models", "profile", "schedule"),
)
FLIP_MODELS = [f"FLIPS_{count}" for count in FLIPS]
RUN = (
    *("exit", "horizon", "audit", "audit_near", "twins", "nonfinite", "settled", "settled_follow"),
    *("together", "together_alone"),
)
FOLLOWED = 0.5  # share of the runs that settled which are followed to the end, where the plan does not say


def read_plan(path: pathlib.Path) -> Plan:
    """Read and check a plan.

    Raises:
      InputError: one line that says where, what was found and what was expected.
    """
    return parse_plan(read_text(path), path)


def parse_plan(text: str, path: object = "plan") -> Plan:
    """As `read_plan`, from the file's text; a histogram's path counts from the folder of `path`."""
    if INJECTION.match(text):
        raise InputError(f"an injection file, not a plan; replay it: python -m fault_injection replay {path}", path)
    document, read = read_document(text, path)
    # What is scored: `scoreboard.settings`.
    read.keys(document, ("workload", "options", "faults", "start", "wanted", "run", "score"), "")
    if "start" in document and "faults" in document:
        raise read.wrong("start", "a plan has either [start] or [faults]")
    if "start" in document and "wanted" in document:
        raise read.wrong("wanted", "nothing is drawn of a plan with [start], which takes each altered checkpoint once")
    workload, run = workload_of(document, read), read.table(document, "run")
    read.keys(run, RUN, "run.")
    exit = read.one_of(run, "run.exit", "conditions", EXITS)
    horizon = read.whole(run, "run.horizon", None, 2, 10**9)
    if exit == "full" and horizon is not None:
        raise read.wrong("run.horizon", "the exit mode 'full' follows every run to the end")
    wanted = read_wanted(document, read)
    if wanted is not None and horizon is not None:
        raise read.wrong("run.horizon", "leaves runs undecided, and what is undecided has no rate; [wanted] takes none")
    for audit in ("audit", "audit_near"):
        if exit != "conditions" and audit in run:
            raise read.wrong(f"run.{audit}", f"has no effect: the exit mode '{exit}' gives no verdict to audit")
    twins = read.whole(run, "run.twins", 0, 0, 99)
    if twins == 1:
        raise read.wrong("run.twins", "1; a spread needs two at least")
    given = _start(document, workload, read) if "start" in document else _faults(document, workload, exit, wanted, read)
    settled, followed = _settled(document, run, exit, given.get("schedule", ONCE), read)
    share = read.number(run, "run.audit", None, 0, 1)
    if share == 0 and wanted is not None and exit == "conditions":
        raise read.wrong("run.audit", "0; expected a share above 0: without audits early verdicts leave no rate known")
    if share is None:
        share = 0.0 if exit != "conditions" else _audits(given)
    plan = Plan(
        workload=workload,
        exit=exit,
        horizon=horizon,
        audit=share,
        audit_near=read.number(run, "run.audit_near", None, 0, 1),
        audit_open="audit" not in run,
        twins=twins,
        nonfinite=read.one_of(run, "run.nonfinite", NONFINITE_RULES[0], NONFINITE_RULES),
        settled=settled,
        settled_follow=followed,
        **given,
    )
    return with_groups(plan, run, read)


def _settled(
    document: Mapping[str, Any], run: Mapping[str, Any], exit: str, schedule: Schedule, read: Reader
) -> tuple[int | None, float]:
    """`settled` and `settled_follow`; refused where a run cannot be compared with a twin."""
    steps = read.whole(run, "run.settled", None, 1, 10**6)
    if steps is None:
        if "settled_follow" in run:
            raise read.wrong("run.settled_follow", "has no effect without run.settled")
        return None, 0.0
    if exit == "full":
        raise read.wrong("run.settled", "the exit mode 'full' follows every run to the end")
    if not read.whole(run, "run.twins", 0, 0, 99):
        raise read.wrong("run.settled", "compares runs with twins, and the plan has none; expected such as twins = 3")
    if "wanted" in document:
        raise read.wrong("run.settled", "a rate with a wanted width counts the ends of runs; leave out one of the two")
    if "start" in document or read.table(document, "faults").get("stages") == [CHECKPOINT]:
        what = "runs that restart from an altered checkpoint are followed"
        raise read.wrong("run.settled", f"does not go with checkpoints: {what}; leave it out")
    if not schedule.single and schedule.steps is None:
        raise read.wrong("run.settled", f"does not go with the schedule '{schedule}', which strikes to the end")
    return steps, float(read.number(run, "run.settled_follow", FOLLOWED, 0, 1))


def _audits(given: Mapping[str, Any]) -> float:
    """The share of early verdicts that is audited where the plan leaves it open."""
    return WANTED_SHARE if "wanted" in given else share_to_audit(given["experiments"], given["confidence"])


def _size(faults: Mapping[str, Any], wanted: tuple[WantedOutcome, float] | None, read: Reader) -> dict[str, Any]:
    """How many experiments there are: fields of `Plan`."""
    if wanted is not None:
        for key in ("half_width", "confidence"):
            if key in faults:
                what = "a plan has either this, or [wanted], whose own confidence it is"
                raise read.wrong(f"faults.{key}", what)
        most = read.whole(faults, "faults.experiments", LARGEST, FIRST, LARGEST)
        return {"experiments": most, "half_width": None, "confidence": wanted[1], "wanted": wanted[0]}
    half_width = read.number(faults, "faults.half_width", None, 1e-4, 0.5)
    confidence = read.number(faults, "faults.confidence", 0.95, 0.5, 0.9999)
    if (half_width is None) == ("experiments" not in faults):
        expected = "expected either experiments, or half_width (and confidence), or else a table [wanted]"
        raise read.wrong("faults", expected)
    if half_width is None and "confidence" in faults:
        raise read.wrong("faults.confidence", "belongs to half_width, and has no effect beside experiments")
    if half_width is None:
        experiments = read.whole(faults, "faults.experiments", None, 1, LARGEST)
    else:
        experiments = sample_size(half_width, confidence)
        if experiments > LARGEST:
            raise read.wrong("faults.half_width", f"takes {experiments} experiments, more than {LARGEST}")
    return {"experiments": experiments, "half_width": half_width, "confidence": confidence}


def _faults(
    document: Mapping[str, Any],
    workload: Workload,
    exit: str,
    wanted: tuple[WantedOutcome, float] | None,
    read: Reader,
) -> dict[str, Any]:
    """What a plan strikes that draws its faults: fields of `Plan`."""
    faults = read.table(document, "faults")
    read.keys(faults, FAULTS, "faults.")
    size = _size(faults, wanted, read)
    sites, schedule = chosen_sites(faults, workload, read), ONCE
    if "profile" in faults:
        sites, models, schedule = _profiles(faults, workload, sites, read)
    else:
        models = _models(faults, [workload.target(name) for name in sites], read)
    return {
        **size,
        "epochs": _epochs(faults, "faults.epochs", workload, read),
        "sites": sites,
        "models": models,
        "seed": read.whole(faults, "faults.seed", 1, 0, 2**31 - 1),
        "schedule": _schedule(faults, exit, schedule, read),
    }


def _profiles(
    faults: Mapping[str, Any], workload: Workload, chosen: Sequence[str], read: Reader
) -> tuple[tuple[str, ...], tuple[Model, ...], Schedule]:
    """The operations that every profile of a plan strikes, the profiles, and when they strike again."""
    if "models" in faults:
        raise read.wrong("faults.profile", "a plan has either profile or models")
    given = faults["profile"]
    names = given if isinstance(given, list) else [given]
    if not names or any(type(name) is not str for name in names) or len(set(names)) < len(names):
        raise read.wrong(
            "faults.profile", f"{shown_value(given)}; expected the name of a defect profile, or distinct names"
        )
    models, schedules = [], {}
    sites = {name: workload.target(name) for name in chosen}
    for name in names:
        try:
            model = Model(name, 1.0, PROFILED, (("text", profile_text(name)),))
            profile = find_profile(name)
        except InputError as error:
            raise read.wrong("faults.profile", str(error)) from None
        refused = {at: profile.refuses(site, workload) for at, site in sites.items()}
        if all(refused.values()):
            at, why = next(iter(refused.items()))
            raise read.wrong("faults.profile", f"{name} strikes none of the {len(sites)} sites: of {at}, {why}")
        if profile.worker is not None and profile.worker >= workload.workers:
            what = f"{name} is of worker {profile.worker}; expected 0 to {workload.workers - 1}"
            raise read.wrong("faults.profile", what)
        sites = {at: site for at, site in sites.items() if not refused[at]}
        models.append(model)
        schedules[name] = profile.schedule
    if len(set(schedules.values())) > 1 and "schedule" not in faults:
        each = ", ".join(f"{name} '{schedule}'" for name, schedule in schedules.items())
        raise read.wrong("faults.profile", f"their schedules differ ({each}); expected faults.schedule, one for all")
    return tuple(sites), tuple(models), schedules[names[0]]


def _start(document: Mapping[str, Any], workload: Workload, read: Reader) -> dict[str, Any]:
    """What a plan strikes whose experiments restart from altered checkpoints: fields of `Plan`."""
    start = read.table(document, "start")
    read.keys(start, START, "start.")
    epochs = _epochs(start, "start.epochs", workload, read)
    models, sites = read_start(start, workload, read)
    return {
        "experiments": len(models) * len(sites) * len(epochs),
        "half_width": None,
        "confidence": 0.95,
        "epochs": epochs,
        "sites": sites,
        "models": models,
        "seed": read.whole(start, "start.seed", 1, 0, 2**31 - 1),
    }


def _schedule(faults: Mapping[str, Any], exit: str, unsaid: Schedule, read: Reader) -> Schedule:
    text = faults.get("schedule", str(unsaid))
    try:
        found = SCHEDULE.parse(as_text(text))
    except ValueError:
        raise read.wrong("faults.schedule", SCHEDULE.wrong(as_text(text))) from None
    if found.device:
        raise read.wrong("faults.schedule", f"{found}; each experiment is a device of its own: leave out 'as device …'")
    if not found.single and exit == "conditions":
        what = "early verdicts hold for faults that strike once; expected run.exit = 'exact' or 'full'"
        raise read.wrong("faults.schedule", f"{found} does not go with the exit mode 'conditions': {what}")
    return found


def workload_of(document: Mapping[str, Any], read: Reader) -> Workload:
    """The workload that a plan names, with its options."""
    name = document.get("workload")
    if not isinstance(name, str):
        raise InputError("no workload = '…'", read.path)
    try:
        workload = find_workload(name)
    except InputError as error:
        raise read.wrong("workload", str(error).removeprefix("workload ")) from None
    known = {**workload.OPTIONS, **workload.REQUIRED}
    options = read.table(document, "options")
    read.keys(options, known, "options.")
    values = {}
    for key, value in options.items():
        kind = known[key].kind
        try:
            values[key] = kind.parse(as_text(value))
        except ValueError:
            raise read.wrong(f"options.{key}", kind.wrong(as_text(value))) from None
    workload = workload.changed(**values)
    if (problem := workload.contradiction()) is not None:
        raise read.wrong(f"options.{problem.option}", problem.message)
    return workload


def _epochs(table: Mapping[str, Any], key: str, workload: Workload, read: Reader) -> tuple[int, ...]:
    epochs = read.list_of(table, key, list(range(workload.epochs)), int, "epochs, counted from 0")
    for epoch in epochs:
        if not 0 <= epoch < workload.epochs:
            found = f"{shown_value(epoch)} is not among the {workload.epochs} epochs, 0 to {workload.epochs - 1}"
            raise read.wrong(key, found)
    if len(set(epochs)) < len(epochs):
        raise read.wrong(key, "an epoch is listed twice")
    return tuple(sorted(epochs))


def _models(faults: Mapping[str, Any], sites: Sequence[Site], read: Reader) -> tuple[Model, ...]:
    of_leaves = sites[0].stage not in STAGES.values()
    given = faults.get("models", dict.fromkeys(FLIP_MODELS[:1] if of_leaves else PUBLISHED_MODELS, 1))
    if not isinstance(given, dict) or not given:
        raise read.wrong("faults.models", "expected a table of fault models and weights, such as RD = 1")
    models = []
    for name, entry in given.items():
        key = f"faults.models.{name[:60]}"
        if name not in FAULT_MODELS:
            raise read.wrong(key, f"unknown fault model{did_you_mean(name, FAULT_MODELS)}")
        if of_leaves and FAULT_MODELS[name].operand != Operand.INPUT:
            what = f"strikes the {FAULT_MODELS[name].operand.name.lower()} of an operation"
            raise read.wrong(key, f"{what}, and a leaf is no operation; expected such as {', '.join(FLIP_MODELS)}")
        entry = entry if isinstance(entry, dict) else {"weight": entry}
        read.keys(entry, ("weight", "values", "bits", "histogram"), f"{key}.")
        weight = entry.get("weight", 1)
        if type(weight) not in (int, float) or not 0 < weight < 1e6:
            raise read.wrong(key, f"weight {shown_value(weight)}; expected a positive number")
        values = entry.get("values", FAULT_MODELS[name].values)
        if not isinstance(values, str) or values not in VALUES:
            near = did_you_mean(values, VALUES) if isinstance(values, str) else f"; expected one of {', '.join(VALUES)}"
            raise read.wrong(key, f"values {shown_value(values)} are unknown{near}")
        struck = {format_of(site.operands[FAULT_MODELS[name].operand].dtype) for site in sites}
        narrowest = min(struck, key=lambda format: format.width)
        models.append(Model(name, float(weight), values, _value_options(entry, values, narrowest, key, read)))
    return tuple(models)


def _value_options(
    entry: Mapping[str, Any], values: str, narrowest: Format, key: str, read: Reader
) -> tuple[tuple[str, Any], ...]:
    """Options of a value source, where `narrowest` is the narrowest format of what it strikes."""
    width = narrowest.width
    taken_by = {"bits": ("bit_flip", "stuck"), "histogram": ("histogram",)}
    for option, sources in taken_by.items():
        if option in entry and values not in sources:
            raise read.wrong(key, f"{option} belongs to the values '{sources[0]}', not to '{values}'")
    if values == "histogram":
        path = entry.get("histogram")
        if not isinstance(path, str):
            raise read.wrong(key, "the values 'histogram' need histogram = 'FILE'")
        patterns = read_histogram(pathlib.Path(str(read.path)).parent / path)
        if any(pattern.bits >> width for pattern in patterns):
            raise read.wrong(key, f"a pattern of {path[:60]!r} has more than the {width} bits of a {narrowest.name}")
        return (("patterns", patterns),)
    if "bits" in entry:
        expected = f"bits of a {narrowest.name}, from 0 (the lowest) to {width - 1}"
        bits = read.list_of(entry, f"{key}.bits", None, int, expected)
        if not all(0 <= bit < width for bit in bits) or len(set(bits)) < len(bits):
            raise read.wrong(key, f"bits {shown_value(bits)}; expected distinct {expected}")
        return (("bits", tuple(bits)),)
    return ()
