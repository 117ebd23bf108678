"""The same flip by a replay: where a flip that was followed, its replay, and a row of the store disagree."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from follow_flips import EXACT, FIELDS, Enumeration, Followed, nth, stored

from fault_injection.faults.injection import ALL, Injection
from fault_injection.models.bits import NewBits
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import Outcome
from fault_injection.runs.replay_run import Replay, replay
from fault_injection.runs.steps import Address, numbered


class Flip(NamedTuple):
    """One flip of the population: the step struck, the leaf, the element, counted row by row, and the bit."""

    at: Address
    leaf: str
    element: int
    bit: int


def injection_of(golden: Golden, flip: Flip) -> Injection:
    """The flip as an injection file has it."""
    return Injection.drawn(
        workload=golden.workload,
        site=golden.workload.target(flip.leaf),
        fmodel="",
        worker=ALL,
        epoch=flip.at.epoch,
        step=flip.at.step,
        bits=NewBits.inverted(np.array([flip.element]), 1 << flip.bit),
    )


def differences(enumeration: Enumeration, flip: Flip, row: dict[str, Any] | None) -> list[str]:
    """Where a flip followed anew, its replay, and a row of the store disagree; empty where they are the same.

    Args:
      row: of the store, by the names of `FIELDS`; None to compare with the replay alone.
    """
    e, (at, leaf, element, bit) = enumeration, flip
    told = nth(e.follow(at, e.position(leaf, element)), bit)
    judged, replayed = e.verdict(at, told), replay(injection_of(e.golden, flip), e.golden)
    ours, theirs = _said(judged.outcome), _said(replayed.outcome)
    found = [f"{name}: {ours[name]}, its replay {theirs[name]}" for name in ours if ours[name] != theirs[name]]
    found += [f"{name} differs from its replay" for name in _columns_apart(e, at, told, replayed)]
    here = {name: value.tobytes() for name, value in stored(judged).items()}
    return found + [f"{name} differs from the store" for name in here if row is not None and here[name] != row[name]]


def _said(outcome: Outcome) -> dict[str, Any]:
    """What has to be the same of two verdicts; a NaN is one word."""
    worse = {part: repr(value) for part, value in (outcome.worse or {}).items()}
    return {
        "outcome": outcome.outcome,
        "exactly_masked_after": outcome.exactly_masked_after,
        "first_nonfinite": outcome.first_nonfinite,
        "worse": worse,
        "struck": outcome.struck,
    }


def _columns_apart(e: Enumeration, at: Address, told: Followed, replayed: Replay) -> Iterator[str]:
    """Losses and metrics, of steps and of tests, that have other bits than those of a replay."""
    taken = int(told.at) - numbered(at, e.per_epoch)
    for name, ours in (("loss", told.loss), ("metric", told.metric)):
        theirs = replayed.faulty.column(name)[at.step :][:taken]
        if ours[numbered(at, e.per_epoch) :][:taken].tobytes() != theirs.tobytes():
            yield name
    evaluated = replayed.faulty.ended if told.why != EXACT else (int(told.at) - 1) // e.per_epoch - at.epoch
    for name, ours in (("valid_loss", told.test_loss), ("valid_metric", told.test_metric)):
        theirs = replayed.faulty.epoch_column(name)[:evaluated]
        if ours[at.epoch :][:evaluated].astype(np.float64).tobytes() != theirs.tobytes():
            yield name


def sample(store: dict[str, np.ndarray], count: int, seed: int) -> list[Flip]:
    """Flips of a store, each outcome of each leaf at least once where it occurs, and more by lot."""
    rng, strata = np.random.default_rng(seed), []
    for name in [name.removeprefix("outcome/") for name in store if name.startswith("outcome/")]:
        outcome, proved = store[f"outcome/{name}"], store[f"ended/{name}"] >= 0
        for kind in np.unique(np.stack([outcome.ravel(), proved.ravel()]), axis=1).T:
            strata.append((name, np.flatnonzero(((outcome == kind[0]) & (proved == kind[1])).ravel())))
    chosen: dict[tuple[str, int], None] = {}
    while len(chosen) < count:  # in turns, so that what is rare is seen as often as what is frequent
        for name, places in strata:
            chosen[name, int(rng.choice(places))] = None
    flips = []
    for name, place in list(chosen)[: max(count, len(strata))]:
        time_, element, bit = np.unravel_index(place, store[f"outcome/{name}"].shape)
        flips.append(Flip(Address(*map(int, store["times"][time_])), name, int(element), int(bit)))
    return flips


def row_of(store: dict[str, np.ndarray], flip: Flip) -> dict[str, bytes]:
    """What a store says of a flip: the bytes of each of `FIELDS`."""
    (time_,) = np.flatnonzero((store["times"] == flip.at).all(axis=1))
    return {name: store[f"{name}/{flip.leaf}"][time_, flip.element, flip.bit].tobytes() for name in FIELDS}
