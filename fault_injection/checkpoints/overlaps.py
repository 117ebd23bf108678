"""Arrays of one file that lie where others lie: views of one storage, and weights that two layers share.

An element that several arrays have counts once, and altering it changes all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ..machine.errors import InputError
from .checkpoint import Changes
from .in_place import Region

LARGEST = 1 << 27  # bytes that arrays which overlap in part may reach over together
STEP = 1 << 17  # elements that are looked at together


class _Member(NamedTuple):
    """An array: its name, where it lies, whether it fills that, and whether its elements are apart."""

    name: str
    region: Region
    dense: bool
    apart: bool


def repeated(regions: Mapping[str, Region]) -> dict[str, np.ndarray | None]:
    """Elements that lie where an element of another array, or an earlier one of the same, lies already.

    Args:
      regions: of the arrays by name.  Of each group that overlaps, those that fill their place come first, the
        largest before the others.

    Returns:
      Of the arrays that have such elements, their row-major positions, int64 [n] in ascending order; None for all.

    Raises:
      InputError: arrays overlap in part, over more than `LARGEST` bytes.
    """
    found: dict[str, np.ndarray | None] = {}
    for group in _groups(regions):
        if len(group) == 1 and group[0].apart:
            continue
        group.sort(key=lambda one: (not one.dense, one.region.offset - one.region.end))
        first = group[0].region
        if group[0].dense and all(first.offset <= one.region.offset and one.region.end <= first.end for one in group):
            found |= {one.name: None for one in group[1:]}
        else:
            found |= _marked(group)
    return found


def _groups(regions: Mapping[str, Region]) -> Iterator[list[_Member]]:
    """Arrays whose places reach into one another; those without elements are in no group."""
    members = [_member(name, region) for name, region in regions.items() if region.described.size]
    group: list[_Member] = []
    end = 0
    for one in sorted(members, key=lambda one: one.region.offset):
        if group and one.region.offset >= end:
            yield group
            group = []
        group.append(one)
        end = max(end, one.region.end) if len(group) > 1 else one.region.end
    if group:
        yield group


def _member(name: str, region: Region) -> _Member:
    apart, reach = True, 0
    axes = zip(region.shape, region.strides or (), strict=False)
    for stride, n in sorted((stride, n) for n, stride in axes if n > 1):
        apart, reach = apart and stride > reach, reach + (n - 1) * stride
    return _Member(name, region, apart and region.span == region.described.size, apart)


def _marked(group: list[_Member]) -> dict[str, np.ndarray | None]:
    """As `repeated`, of one group, by marking each byte."""
    begin, end = min(one.region.offset for one in group), max(one.region.end for one in group)
    if end - begin > LARGEST:
        names = ", ".join(one.name for one in group[:5])
        raise InputError(f"these arrays overlap in part, over {end - begin:,} bytes: {names}; name one with --names")
    taken, found = np.zeros(end - begin, bool), {}
    for one in group:
        width, again = one.region.dtype.itemsize, []
        for start in range(0, one.region.described.size, STEP):
            index = np.arange(start, min(start + STEP, one.region.described.size))
            at = one.region.offset - begin + one.region.places(index) * width
            seen = np.any([taken[at + k] for k in range(width)], axis=0)
            if not one.apart:
                seen[np.setdiff1d(np.arange(len(at)), np.unique(at, return_index=True)[1])] = True
            again.append(index[seen])
            for k in range(width):
                taken[at + k] = True
        places = np.concatenate(again)
        if len(places):
            found[one.name] = places if len(places) < one.region.described.size else None
    return found


def sharing(regions: Mapping[str, Region], changes: Changes) -> dict[str, tuple[str, ...]]:
    """Of each altered array, the others that have one of the altered elements, too."""
    found: dict[str, tuple[str, ...]] = {}
    for name, change in changes.items():
        region = regions[name]
        at = region.offset + region.places(change.places) * region.dtype.itemsize
        near = (
            other
            for other, there in regions.items()
            if other != name and there.offset < region.end and region.offset < there.end
        )
        others = tuple(other for other in near if _reaches(regions[other], at, region.dtype.itemsize))
        if not _member(name, region).apart:
            others += (f"other elements of {name}",)
        if others:
            found[name] = others
    return found


def _reaches(region: Region, at: np.ndarray, width: int) -> bool:
    """Whether an array has one of the elements of `width` bytes at `at`, int64 [n] in bytes."""
    inside = at[(at + width > region.offset) & (at < region.end)]
    if region.strides is None or not len(inside):
        return bool(len(inside))
    for start in range(0, region.described.size, STEP):
        index = np.arange(start, min(start + STEP, region.described.size))
        there = region.offset + region.places(index) * region.dtype.itemsize
        if any(np.isin(there + k, inside + m).any() for k in range(region.dtype.itemsize) for m in range(width)):
            return True
    return False


def struck_twice(regions: Mapping[str, Region], changes: Changes) -> str | None:
    """Names of arrays in which one place of the file would be altered twice, as text; None where there is none."""
    seen: dict[int, str] = {}
    for group in _groups({name: regions[name] for name in changes}):
        if len(group) == 1 and group[0].apart:
            continue
        for one in group:
            for place in _bytes(one.region, changes[one.name].places.tolist()):
                if place in seen:
                    return seen[place] if seen[place] == one.name else f"{seen[place]} and {one.name}"
                seen[place] = one.name
    return None


def _bytes(region: Region, places: Iterable[int]) -> Iterator[int]:
    width = region.dtype.itemsize
    for place in region.places(np.asarray([*places], np.int64)).tolist():
        yield from range(region.offset + place * width, region.offset + (place + 1) * width)
