"""The answer of a scoreboard: what to switch on, what it detects, false alarms, cost, and what nothing sees."""

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...campaign.box import Box, BoxAnswer
from ...campaign.rates import Rate, at_most, wilson
from ...campaign.wording import MINUS, number, plural, share
from ...runs.outcome import DIVERGED, LATENT, MASKED
from .board import MILLION, Board
from .comparison import CheapestPair, cheapest_pairs

NAMED = 8  # experiments that a sentence names


def _slower(board: Board, name: str) -> float:
    """The cost in time; what was not measured comes last."""
    slower = board.slower(name)
    return math.inf if slower is None else slower[0]


def score_box(board: Board) -> Box:
    """The answer; of a scoreboard without outcomes that are not masked that of its fault-free runs."""
    if not board.of((*LATENT, *DIVERGED)):
        return [_noisy(board), _quiet(board), _cost(board, board.detectors), _watched(board)]
    pairs = cheapest_pairs(board)
    chosen = dict.fromkeys(name for pair in pairs for name in pair.detectors)
    return [
        _switch_on(pairs),
        _detects(board),
        _false_alarms(board),
        _cost(board, tuple(chosen) or board.detectors),
        _unseen(board),
        _watched(board),
    ]


def _switch_on(pairs: Sequence[CheapestPair]) -> BoxAnswer:
    known = {"pairs": [{**pair._asdict(), "covered": pair.covered._asdict()} for pair in pairs]}
    if not pairs:
        why = "no detector was without a false alarm in fault-free steps, or none were watched"
        return BoxAnswer("What to switch on", f"Nothing can be said: {why}.", known)
    told = " ".join(pair.sentence() for pair in pairs)
    return BoxAnswer("What to switch on", f"{told} Chosen on these very experiments, which flatters.", known)


def _detects(board: Board) -> BoxAnswer:
    clauses, known = [], {}
    for what, outcomes in (("latent outcomes", LATENT), ("losses that are not finite", DIVERGED)):
        ones = board.of(outcomes)
        rates = {name: board.detected(name, ones) for name in board.detectors}
        known[what] = {name: rate._asdict() for name, rate in rates.items()}
        if not ones:
            clauses.append(f"no {what[:-1] if what.endswith('s') else what} was watched")
            continue
        after = {name: board.latencies(name, ones) for name in rates if rates[name].found}
        if not after:
            clauses.append(f"of {what} no detector stops any")
            continue
        best = max(after, key=lambda name: (rates[name].share, -float(np.median(after[name])), -_slower(board, name)))
        soon = f"after {number(float(np.median(after[best])))} steps (median; at most {after[best][-1]:,})"
        clauses.append(f"of {what}, {best} alone stops most: {share(rates[best])}, {soon}")
    return BoxAnswer("What it detects", _sentence(clauses), known)


def _false_alarms(board: Board) -> BoxAnswer:
    rates = {name: board.false_alarms(name) for name in board.detectors}
    known = {name: rate._asdict() for name, rate in rates.items()}
    noisy = sorted((name for name in rates if rates[name].found), key=lambda name: -rates[name].share)
    quiet = [name for name in rates if rates[name].total and not rates[name].found]
    if not any(rate.total for rate in rates.values()):
        return BoxAnswer("False alarms", "No fault-free run was watched, so none are known.", known)
    clauses = []
    if quiet:
        least = min(rates[name].total for name in quiet)
        most = number(MILLION * at_most(0, least, 0.95))
        clauses.append(
            f"none of {len(quiet)} detectors in {least:,} fault-free steps (at most {most} per million, 95 %)"
        )
    if noisy:
        clauses.append("per million steps: " + ", ".join(f"{name} {_per_million(rates[name])}" for name in noisy))
    return BoxAnswer("False alarms", _sentence(clauses), known)


def _per_million(rate: Rate) -> str:
    """A rate of false alarms with its interval.

    >>> _per_million(Rate(1, 1000, 0.001, 0.0002, 0.0056))
    '1,000 [200, 5,600]'
    """
    share, low, high = (number(MILLION * x) for x in (rate.share, rate.low, rate.high))
    return f"{share} [{low}, {high}]"


def _noisy(board: Board) -> BoxAnswer:
    """Of fault-free runs: which detectors raised alarms."""
    rates = {name: board.false_alarms(name) for name in board.detectors}
    noisy = sorted((name for name in rates if rates[name].found), key=lambda name: -rates[name].share)
    said = [f"{name} {_per_million(rates[name])}" for name in noisy]
    sentence = f"Per million steps: {'; '.join(said)}." if said else "No detector raised an alarm that stops."
    return BoxAnswer("False alarms", sentence, {name: rate._asdict() for name, rate in rates.items()})


def _quiet(board: Board) -> BoxAnswer:
    """Of fault-free runs: which detectors raised none, and what that bounds."""
    rates = {name: board.false_alarms(name) for name in board.detectors}
    quiet = [name for name in rates if rates[name].total and not rates[name].found]
    if not quiet:
        return BoxAnswer("Quiet", "No detector was quiet in all fault-free steps.", {"detectors": []})
    least = min(rates[name].total for name in quiet)
    most = at_most(0, least, 0.95)
    sentence = f"{', '.join(quiet)}: none in {least:,} steps, so at most {number(MILLION * most)} per million (95 %)."
    return BoxAnswer("Quiet", sentence, {"detectors": quiet, "at_most": most})


def _cost(board: Board, detectors: Sequence[str]) -> BoxAnswer:
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
        return BoxAnswer("What it costs", "Not measured here.", known)
    return BoxAnswer("What it costs", _sentence(clauses, named=True), known)


def signed(x: float) -> str:
    """A change in percent.

    >>> signed(0.0123), signed(-0.001), signed(2.5)
    ('+1.23', '−0.100', '+250')
    """
    return f"{MINUS if x < 0 else '+'}{number(100 * abs(x))}"


def _unseen(board: Board) -> BoxAnswer:
    """Outcomes that no detector stops."""
    bad = board.of((*LATENT, *DIVERGED))
    missed = [one for one in bad if all(one.stop(name) is None for name in board.detectors)]
    known = {"experiments": [one.number for one in missed], "of": len(bad)}
    if not missed:
        whole = f"each of the {plural(len(bad), 'outcome')} that are not masked is stopped by some detector"
        return BoxAnswer("What nothing sees", f"None: {whole}.", known)
    outcomes = collections.Counter(one.outcome for one in missed)
    counted = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
    first = ", ".join(f"{one.number} ({one.model})" for one in missed[:NAMED])
    more = f" and {len(missed) - NAMED} more" if len(missed) > NAMED else ""
    latent = board.of(LATENT)
    unseen = wilson(sum(one in missed for one in latent), len(latent), board.confidence)
    of_latent = f"; {share(unseen)} of the latent outcomes" if latent else ""
    return BoxAnswer("What nothing sees", f"{counted}{of_latent}: experiments {first}{more}.", known)


def _watched(board: Board) -> BoxAnswer:
    """What all of this rests on."""
    latent, nonfinite, masked = (len(board.of(ones)) for ones in (LATENT, DIVERGED, [MASKED]))
    clauses = [
        f"{plural(len(board.seen), 'experiment')} on {board.title} ({board.details}): {latent} latent outcomes, "
        f"{nonfinite} with a loss that is not finite, {masked} masked; watched for at most "
        f"{plural(board.window, 'step')} after the fault, without influence on them"
        if board.seen
        else f"no experiment on {board.title} ({board.details}) was watched, so nothing is said of what is detected",
        f"{plural(len(board.fault_free), 'fault-free run')} of {plural(board.fault_free_steps, 'step')}",
        *(f"{name} does not watch {why}" for name, why in board.cannot_watch),
    ]
    if board.undecided:
        clauses.append(f"{plural(board.undecided, 'experiment')} with an end that nobody knows, and nobody watches")
    if board.guesses:
        early = plural(board.guesses, "experiment")
        clauses.append(
            f"{early} with an early verdict that nobody followed, scored as it is: what it misses is unknown"
        )
    return BoxAnswer("How sure", _sentence(clauses), {"experiments": len(board.seen), "guesses": board.guesses})


def _sentence(clauses: Sequence[str], named: bool = False) -> str:
    """Clauses as one sentence; the name of a detector at its begin stays as it is."""
    sentence = f"{'; '.join(clauses)}."
    return sentence if named else sentence[0].upper() + sentence[1:]
