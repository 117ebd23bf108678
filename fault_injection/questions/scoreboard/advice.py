"""The answer of a scoreboard: what to switch on, what it detects, false alarms, cost, and what nothing sees.

Which detectors to switch on is chosen greedily, once of those that cost little and once of all: of those without a
false alarm the one that stops most latent outcomes,
then the one that stops most of the rest, and so on; then the same for losses that are not
finite.  Of several that stop as many, the cheapest comes first.
"""

import collections
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...campaign.box import Answer, Box
from ...campaign.rates import Rate, at_most, wilson
from ...campaign.wording import MINUS, level, number, plural, share
from ...runs.outcome import MASKED
from .board import LATENT, MILLION, NONFINITE, Board, ScoredExperiment

NAMED = 8  # experiments that a sentence names
CHEAP = 0.1  # of a step's time


class Advice(NamedTuple):
    """Which detectors to switch on.

    Attributes:
      detectors: in the order of the choice.
      quiet: whether only detectors without a false alarm were looked at; else there was none.
    """

    detectors: tuple[str, ...]
    quiet: bool


def advice(board: Board, most: float = math.inf) -> Advice:
    """What to switch on; no detector where none stops anything.

    Args:
      most: that a detector may cost of a step's time, a fraction; one whose cost was not measured may be taken.
    """
    affordable = [name for name in board.detectors if (cost := board.slower(name)) is None or cost[0] <= most]
    silent = [name for name in affordable if (rate := board.false_alarms(name)).total and not rate.found]
    candidates = silent or affordable
    chosen: list[str] = []
    for outcomes in (LATENT, NONFINITE):
        left = [one for one in board.of(outcomes) if not any(one.stop(name) is not None for name in chosen)]
        while left and candidates:
            stopped = {name: sum(one.stop(name) is not None for one in left) for name in candidates}
            best = max(candidates, key=lambda name: (stopped[name], -_slower(board, name)))
            if not stopped[best]:
                break
            chosen.append(best)
            left = [one for one in left if one.stop(best) is None]
    return Advice(tuple(chosen), bool(silent))


def _slower(board: Board, name: str) -> float:
    """The cost in time; what was not measured comes last."""
    slower = board.slower(name)
    return math.inf if slower is None else slower[0]


def together(board: Board, detectors: Sequence[str], experiments: Sequence[ScoredExperiment]) -> Rate:
    """The share of experiments in which some detector raised an alarm that stops."""
    found = sum(any(one.stop(name) is not None for name in detectors) for one in experiments)
    return wilson(found, len(experiments), board.confidence)


def score_box(board: Board) -> Box:
    """The answer; of a scoreboard without outcomes that are not masked that of its fault-free runs."""
    if not board.of((*LATENT, *NONFINITE)):
        return [_noisy(board), _quiet(board), _cost(board, board.detectors), _watched(board)]
    chosen = dict.fromkeys([*advice(board, CHEAP).detectors, *advice(board).detectors])
    return [
        _switch_on(board),
        _detects(board),
        _false_alarms(board),
        _cost(board, tuple(chosen)),
        _unseen(board),
        _watched(board),
    ]


def _switch_on(board: Board) -> Answer:
    question, cheap, any_cost = "What to switch on", advice(board, CHEAP), advice(board)
    known = {"detectors": list(cheap.detectors), "quiet": cheap.quiet, "at_any_cost": list(any_cost.detectors)}
    if not any_cost.detectors:
        return Answer(question, "Nothing: no detector stops an outcome that is not masked.", known)
    told = _told(board, cheap) if cheap.detectors else "nothing stops an outcome that is not masked"
    sentence = f"At {level(CHEAP)} or less of a step's time each, {told}"
    bad = board.of((*LATENT, *NONFINITE))
    if together(board, any_cost.detectors, bad).found > together(board, cheap.detectors, bad).found:
        sentence += f"; at any cost, {_told(board, any_cost)}"
    return Answer(question, f"{sentence}; chosen on these very experiments, which flatters.", known)


def _told(board: Board, chosen: Advice) -> str:
    """Detectors that were chosen, and what they stop together."""
    clauses = [
        f"{share(together(board, chosen.detectors, ones))} of the {len(ones)} {what}"
        for what, outcomes in (("latent outcomes", LATENT), ("losses that are not finite", NONFINITE))
        if (ones := board.of(outcomes))
    ]
    names = " and ".join(filter(None, [", ".join(chosen.detectors[:-1]), chosen.detectors[-1]]))
    stop = "stops" if len(chosen.detectors) == 1 else "together stop"
    alarms = "without a false alarm here" if chosen.quiet else "which had false alarms, or were not watched for them"
    return f"{names} ({alarms}) {stop} {' and '.join(clauses)}"


def _detects(board: Board) -> Answer:
    clauses, known = [], {}
    for what, outcomes in (("latent outcomes", LATENT), ("losses that are not finite", NONFINITE)):
        ones = board.of(outcomes)
        rates = {name: board.detected(name, ones) for name in board.detectors}
        known[what] = {name: rate._asdict() for name, rate in rates.items()}
        if not ones:
            clauses.append(f"no {what[:-1] if what.endswith('s') else what} was watched")
            continue
        best = max(rates, key=lambda name: (rates[name].share, -_slower(board, name)))
        if not rates[best].found:
            clauses.append(f"of {what} no detector stops any")
            continue
        after = board.latencies(best, ones)
        soon = f"after {number(float(np.median(after)))} steps (median; at most {after[-1]:,})"
        clauses.append(f"of {what}, {best} alone stops most: {share(rates[best])}, {soon}")
    return Answer("What it detects", _sentence(clauses), known)


def _false_alarms(board: Board) -> Answer:
    rates = {name: board.false_alarms(name) for name in board.detectors}
    known = {name: rate._asdict() for name, rate in rates.items()}
    noisy = sorted((name for name in rates if rates[name].found), key=lambda name: -rates[name].share)
    quiet = [name for name in rates if rates[name].total and not rates[name].found]
    if not any(rate.total for rate in rates.values()):
        return Answer("False alarms", "No fault-free run was watched, so none are known.", known)
    clauses = []
    if quiet:
        least = min(rates[name].total for name in quiet)
        most = number(MILLION * at_most(0, least, 0.95))
        clauses.append(
            f"none of {len(quiet)} detectors in {least:,} fault-free steps (at most {most} per million, 95 %)"
        )
    if noisy:
        clauses.append("per million steps: " + ", ".join(f"{name} {_per_million(rates[name])}" for name in noisy))
    return Answer("False alarms", _sentence(clauses), known)


def _per_million(rate: Rate) -> str:
    """A rate of false alarms with its interval.

    >>> _per_million(Rate(1, 1000, 0.001, 0.0002, 0.0056))
    '1,000 [200, 5,600]'
    """
    share, low, high = (number(MILLION * x) for x in (rate.share, rate.low, rate.high))
    return f"{share} [{low}, {high}]"


def _noisy(board: Board) -> Answer:
    """Of fault-free runs: which detectors raised alarms."""
    rates = {name: board.false_alarms(name) for name in board.detectors}
    noisy = sorted((name for name in rates if rates[name].found), key=lambda name: -rates[name].share)
    said = [f"{name} {_per_million(rates[name])}" for name in noisy]
    sentence = f"Per million steps: {'; '.join(said)}." if said else "No detector raised an alarm that stops."
    return Answer("False alarms", sentence, {name: rate._asdict() for name, rate in rates.items()})


def _quiet(board: Board) -> Answer:
    """Of fault-free runs: which detectors raised none, and what that bounds."""
    rates = {name: board.false_alarms(name) for name in board.detectors}
    quiet = [name for name in rates if rates[name].total and not rates[name].found]
    if not quiet:
        return Answer("Quiet", "No detector was quiet in all fault-free steps.", {"detectors": []})
    least = min(rates[name].total for name in quiet)
    most = at_most(0, least, 0.95)
    sentence = f"{', '.join(quiet)}: none in {least:,} steps, so at most {number(MILLION * most)} per million (95 %)."
    return Answer("Quiet", sentence, {"detectors": quiet, "at_most": most})


def _cost(board: Board, detectors: Sequence[str]) -> Answer:
    known: dict[str, Any] = {}
    clauses = []
    for name in detectors:
        slower, larger = board.slower(name), board.larger(name)
        if slower is not None:
            known[name] = {"time": list(slower), "memory": larger}
            memory = "" if larger is None else f", {signed(larger)} % in memory"
            low, high = (signed(x) for x in slower[1:])
            clauses.append(f"{name} {signed(slower[0])} % of a step's time [{low}, {high}]{memory}")
    if not clauses:
        return Answer("What it costs", "Not measured here.", known)
    return Answer("What it costs", _sentence(clauses, named=True), known)


def signed(x: float) -> str:
    """A change in percent.

    >>> signed(0.0123), signed(-0.001), signed(2.5)
    ('+1.23', '−0.100', '+250')
    """
    return f"{MINUS if x < 0 else '+'}{number(100 * abs(x))}"


def _unseen(board: Board) -> Answer:
    """Outcomes that no detector stops."""
    bad = board.of((*LATENT, *NONFINITE))
    missed = [one for one in bad if all(one.stop(name) is None for name in board.detectors)]
    known = {"experiments": [one.number for one in missed], "of": len(bad)}
    if not missed:
        whole = f"each of the {plural(len(bad), 'outcome')} that are not masked is stopped by some detector"
        return Answer("What nothing sees", f"None: {whole}.", known)
    outcomes = collections.Counter(one.outcome for one in missed)
    counted = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
    first = ", ".join(f"{one.number} ({one.model})" for one in missed[:NAMED])
    more = f" and {len(missed) - NAMED} more" if len(missed) > NAMED else ""
    latent = board.of(LATENT)
    unseen = wilson(sum(one in missed for one in latent), len(latent), board.confidence)
    of_latent = f"; {share(unseen)} of the latent outcomes" if latent else ""
    return Answer("What nothing sees", f"{counted}{of_latent}: experiments {first}{more}.", known)


def _watched(board: Board) -> Answer:
    """What all of this rests on."""
    latent, nonfinite, masked = (len(board.of(ones)) for ones in (LATENT, NONFINITE, [MASKED]))
    clauses = [
        f"{plural(len(board.seen), 'experiment')} on {board.title} ({board.details}): {latent} latent outcomes, "
        f"{nonfinite} with a loss that is not finite, {masked} masked; watched for at most "
        f"{plural(board.window, 'step')} after the fault, without influence on them"
        if board.seen
        else f"no experiment on {board.title} ({board.details}) was watched, so nothing is said of what is detected",
        f"{plural(len(board.fault_free), 'fault-free run')} of {plural(board.fault_free_steps, 'step')}",
        *(f"{name} does not watch {why}" for name, why in board.cannot_watch),
    ]
    if board.guesses:
        early = plural(board.guesses, "experiment")
        clauses.append(
            f"{early} with an early verdict that nobody followed, scored as it is: what it misses is unknown"
        )
    return Answer("How sure", _sentence(clauses), {"experiments": len(board.seen), "guesses": board.guesses})


def _sentence(clauses: Sequence[str], named: bool = False) -> str:
    """Clauses as one sentence; the name of a detector at its begin stays as it is."""
    sentence = f"{'; '.join(clauses)}."
    return sentence if named else sentence[0].upper() + sentence[1:]
