"""The sites that a plan draws from: by pass, name, kind, layer and depth, each of which leaves some out."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...campaign.plan_reader import LONGEST, Reader, shown_value
from ...faults.injection import STAGES, too_large
from ...machine.errors import did_you_mean
from ...machine.reading import matches
from ...models.site import Site
from ...seam.stages import BESIDE, EXCHANGED
from ...seam.workload import Workload

OF_OPERATIONS = ("kinds", "layers", "depth")  # keys that say nothing of leaves


def chosen_sites(faults: Mapping[str, Any], workload: Workload, read: Reader) -> tuple[str, ...]:
    """The names of the sites, in the order of the workload.

    Args:
      faults: the table of the plan.

    Raises:
      InputError: a key says what is not there, or nothing is left.
    """
    leaves = [*BESIDE, *EXCHANGED]
    known = [*STAGES.values(), *leaves]
    stages = read.list_of(faults, "faults.stages", list(STAGES.values()), str, "stages")
    for stage in stages:
        if stage not in known:
            raise read.wrong("faults.stages", f"{stage[:60]!r} is unknown{did_you_mean(stage, known)}")
    of_leaves = [stage for stage in stages if stage in leaves]
    if of_leaves and len(stages) > 1:
        raise read.wrong("faults.stages", f"{of_leaves[0]!r} stands alone: a plan strikes operations, or such leaves")
    sites = workload.leaves() if of_leaves else workload.sites()
    chosen = _fitting(faults, workload.name, sites, read)
    found = {name: site for name, site in sites.items() if name in chosen and site.stage in stages}
    if not found:
        raise read.wrong("faults.sites", f"no site of the {' and '.join(stages)} pass is left")
    for key in OF_OPERATIONS:
        if key in faults and of_leaves:
            raise read.wrong(f"faults.{key}", f"is of operations; {of_leaves[0]} stands alone")
    if "kinds" in faults:
        kinds = {name: workload.kind(site) for name, site in found.items()}
        asked = read.list_of(faults, "faults.kinds", [], str, "kinds of operations, such as convolution")
        found = {name: found[name] for name in _named(asked, kinds, "faults.kinds", "kind", read)}
    if "layers" in faults:
        layers = {name: site.layer for name, site in found.items()}
        asked = read.list_of(faults, "faults.layers", [], str, "patterns of layers, such as basicblock_1_*")
        found = {name: found[name] for name in _named(asked, layers, "faults.layers", "layer", read)}
    if "depth" in faults:
        deep = _deep(faults, sites, read)
        found = {name: site for name, site in found.items() if site.layer in deep}
        if not found:
            raise read.wrong("faults.depth", "no site that is asked for lies so deep")
    for site in found.values():
        if (problem := too_large(site)) is not None:
            raise read.wrong("faults.sites", problem)
    return tuple(found)


def _fitting(faults: Mapping[str, Any], workload: str, sites: Mapping[str, Site], read: Reader) -> set[str]:
    """Sites that fit a pattern of names, and none that begins with an exclamation mark."""
    patterns = read.list_of(faults, "faults.sites", ["*"], str, "patterns of names, such as basicblock_*_conv1")
    chosen = {name for name in sites if sites[name].layer} if patterns[0].startswith("!") else set()
    for pattern in patterns:
        name = pattern.removeprefix("!")
        fitting = [one for one in sites if matches(one, [name])] if len(pattern) <= LONGEST else []
        # A part of the state is chosen by its name alone: its leaves are there as well.
        fitting = [found for found in fitting if sites[found].layer or found == name]
        if not fitting:
            what = f"no site of {workload} fits {pattern[:60]!r}{did_you_mean(pattern, sites)}"
            raise read.wrong("faults.sites", what)
        chosen = chosen - set(fitting) if pattern.startswith("!") else chosen | set(fitting)
    return chosen


def _named(asked: Sequence[str], of: Mapping[str, str], key: str, what: str, read: Reader) -> list[str]:
    """The sites whose kind, or layer, fits one of the patterns; each pattern has to fit one."""
    there: Collection[str] = sorted(set(of.values()))
    fitting: set[str] = set()
    for pattern in asked:
        some = [one for one in there if matches(one, [pattern])] if len(pattern) <= LONGEST else []
        if not some:
            hint = did_you_mean(pattern, there) or f"; there are {', '.join(there)}"[:300]
            raise read.wrong(key, f"no site of the {what} {pattern[:60]!r} is left{hint}")
        fitting |= set(some)
    return [name for name, one in of.items() if one in fitting]


def _deep(faults: Mapping[str, Any], sites: Mapping[str, Site], read: Reader) -> set[str]:
    """The layers that lie between two shares of the depth: a layer's is its place in the forward pass."""
    given = faults["depth"]
    numbers = isinstance(given, list) and len(given) == 2 and all(type(one) in (int, float) for one in given)
    if not numbers or not 0 <= given[0] < given[1] <= 1:
        expected = "expected two shares of the forward pass, such as [0, 0.25] for its first quarter"
        raise read.wrong("faults.depth", f"{shown_value(given)}; {expected}")
    layers = list(dict.fromkeys(site.layer for site in sites.values() if site.stage == "forward"))
    first, last = (math.ceil(share * len(layers)) for share in given)
    return set(layers[first:last])
