"""Slow proofs of strategies, of which no optimisation of a compiler decides any: sums, struck gradients, replays."""

import jax
import numpy as np
import pytest
from small import small
from strategy_programs import WORKERS, named, program
from test_strategies import ROWS, STEPS, STRUCK, close, step

from fault_injection.commands.main import main
from fault_injection.explicit.exchange import exchanged_sites
from fault_injection.faults.injection_file import parse_injection
from fault_injection.models.fault import Operand
from fault_injection.models.observe.reductions import WHOLE as WHOLE_GRADIENTS
from fault_injection.models.site import make_fault
from fault_injection.runs.witness import check_struck
from fault_injection.seam.strategies import parse_strategy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]


@pytest.mark.parametrize("strategy", ["ddp", "horovod", "zero parameters", "pipeline 2"])
def test_summed_gradients_are_those_of_one_shared_state(strategy):
    """To 1e-5 of the largest element, at each of twenty steps."""
    whole = {"reductions": frozenset({WHOLE_GRADIENTS})}
    programs = [program(name, **whole) for name in (strategy, "replicated")]
    states = [own.place(own.init()) for own in programs]
    for number in range(STEPS):
        at, gradients = divmod(number, programs[0].steps_per_epoch), []
        for k, own in enumerate(programs):
            states[k], report = jax.block_until_ready(own.step(states[k], own.batch(*at), *at))
            gradients.append(
                {f"gradient/{name}": leaf for name, leaf in jax.device_get(dict(report.reductions)).items()}
            )
        close(*gradients)


@pytest.mark.parametrize("strategy", ["horovod", "zero", "local 3", "pipeline 2"])
def test_a_struck_gradient_of_one_worker_reaches_those_who_read_it(strategy):
    own = program(strategy, "sgd", STRUCK)
    site = exchanged_sites(program().state.abstract.params)["worker_gradient/fc/kernel"]
    fault = make_fault(site, Operand.INPUT, 2, [3], flip=np.float32(7).view(np.uint32))
    (state, report), (plain, _) = step(own, fault), step(own)
    check_struck(site.name, fault, report.struck)
    for worker in range(WORKERS):
        one, other = (named(own.state.single(each, worker)) for each in (state, plain))
        differs = {name: np.flatnonzero(one[name] != other[name]).tolist() for name in one}
        reached = worker == 2 or strategy != "local 3"
        assert {name: at for name, at in differs.items() if at} == ({"params/fc/kernel": [3]} if reached else {})
        if reached:
            # Seven in the place of a small gradient, at a rate of 0.05.
            assert one["params/fc/kernel"].reshape(-1)[3] == pytest.approx(
                float(
                    other["params/fc/kernel"].reshape(-1)[3] - 0.05 * (7 - report.struck.old[:1].view(np.float32)[0])
                ),
                rel=1e-4,
            )


@pytest.mark.parametrize("strategy", ["horovod", "pipeline 2"])
def test_a_file_is_replayed_with_a_strategy(strategy, tmp_path):
    text = ROWS.format(target="params/fc/kernel", strategy=strategy)
    if small(strategy=strategy).copies:
        text = text.replace("target_epoch", "target_worker,2\ntarget_epoch")
    (tmp_path / "struck.csv").write_text(text)
    assert parse_injection(text).workload.rules == parse_strategy(strategy)
    folders = ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    assert main(["replay", str(tmp_path / "struck.csv"), *folders]) == 0
