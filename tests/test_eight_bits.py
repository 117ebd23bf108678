"""Products of int8 and float8 in a step of one's own: struck bit by bit, drawn from, and told by role of a bit."""

import jax.numpy as jnp
import pytest
import quantised_training as quantised
from jax import lax

from fault_injection import instrument
from fault_injection.commands.main import main
from fault_injection.faults.number_formats import format_of
from fault_injection.models.fault import Operand
from fault_injection.questions.outcomes.store import Store
from fault_injection.seam.trees import same_bits
from fault_injection.workloads.registry import find_workload


def flipped(row, column, mask):
    """Invert bits of one element, as NumPy's and JAX's own functions do it."""

    def strike(tensor):
        words = lax.bitcast_convert_type(tensor, jnp.uint8)
        words = words.at[row, column].set(words[row, column] ^ jnp.uint8(mask))
        return lax.bitcast_convert_type(words, tensor.dtype)

    return strike


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize(("site", "by_hand"), [("forward:w1", "strike_integers"), ("grad_wt:w1", "strike_float8")])
def test_a_struck_operand_equals_the_step_modified_by_hand(site, by_hand, bit):
    state, batch = quantised.make_state(1), quantised.make_batch(0, 0)
    program = instrument(quantised.step_with(), state, batch)
    (new, told), struck = program(program.fault(site, "input", (3, 2), flip=1 << bit), state, batch)
    wanted, said = quantised.step_with(**{by_hand: flipped(3, 2, 1 << bit)})(state, batch)
    assert int(struck.hits) == int(struck.operand_changed) == 1
    assert (int(struck.old[0]) ^ int(struck.new[0])) & 0xFF == 1 << bit
    assert same_bits(new, wanted)
    assert same_bits(told, said)


def test_an_inactive_fault_is_the_reference_and_the_step_itself():
    state, batch = quantised.make_state(1), quantised.make_batch(0, 0)
    program = instrument(quantised.step_with(), state, batch)
    own, _ = quantised.step_with()(state, batch)
    reference, _ = program.reference(state, batch)
    assert same_bits(reference, own)


def test_a_campaign_draws_eight_bits_and_tells_what_each_is(tmp_path, cache, capsys):
    plan = f"""
workload = "{quantised.__file__}:training"
[faults]
experiments = 40
seed = 3
sites = ["forward:*", "grad_wt:*"]
[faults.models]
INPUT = {{ weight = 1, values = "bit_flip" }}
[run]
exit = "full"
"""
    (tmp_path / "plan.toml").write_text(plan)
    assert main(["campaign", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out"), "--cache", str(cache)]) == 0
    with Store(tmp_path / "out") as store:
        rows = store.query("SELECT site, bit, old_bits, new_bits FROM experiments")
    sites = find_workload(f"{quantised.__file__}:training").sites()
    assert len(rows) == 40
    roles = {}
    for row in rows:
        assert row["old_bits"] ^ row["new_bits"] == 1 << row["bit"] < 256
        kind = format_of(sites[row["site"]].operands[Operand.INPUT].dtype)
        roles.setdefault(kind.name, {})[row["bit"]] = kind.role(row["bit"])
    integers, float8 = sorted(roles, reverse=True)  # int8, float8_e4m3fn
    assert all(role == f"bit {bit}" for bit, role in roles[integers].items())
    named = {7: "sign", 6: "exponent 1", 5: "exponent 2", 4: "exponent 3", 3: "exponent 4", 2: "mantissa 1"}
    assert roles[float8].items() <= (named | {1: "mantissa 2", 0: "mantissa 3"}).items()
