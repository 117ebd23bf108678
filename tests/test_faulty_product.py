"""What a strike reports of the tensors around it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection.models.fault import Operand
from fault_injection.models.faulty_product import faulty_product
from fault_injection.models.isolation import fence
from fault_injection.models.overwrite import overwrite, overwritten
from fault_injection.models.site import Site, make_fault

X, W = jnp.ones((2, 3)), jnp.ones((3, 4))
SITE = Site("fc", "fc", "forward", dict(zip(Operand, map(jax.typeof, (X, W, X @ W)), strict=True)))


def careless(place):
    """`overwrite`, which also changes an element of one tensor that nobody listed."""

    def wrong(tensors, fault):
        tensors, report = overwrite(tensors, fault)
        changed = [one.at[0, 1].add(1) if number == place else one for number, one in enumerate(tensors)]
        return tuple(changed), report

    return wrong


@pytest.mark.parametrize("operand", Operand)
def test_an_element_of_any_tensor_that_is_changed_by_mistake_is_reported(monkeypatch, operand):
    fault = make_fault(SITE, operand, 0, [0], flip=0x40000000)
    _, differs, struck = faulty_product(jnp.matmul, (X, W), X @ W, fault)
    assert struck.operand_changed == 1 and struck.output_changed == np.sum(differs)
    assert struck.output_changed == {Operand.INPUT: 4, Operand.WEIGHT: 2, Operand.OUTPUT: 1}[operand]
    for place in Operand:
        monkeypatch.setattr("fault_injection.models.faulty_product.overwrite", careless(place))
        assert faulty_product(jnp.matmul, (X, W), X @ W, fault)[2].operand_changed == 2, place


def test_an_element_of_a_tensor_struck_by_itself_that_is_changed_by_mistake_is_reported(monkeypatch):
    fault = make_fault(SITE, Operand.INPUT, 0, [0], flip=0x40000000)
    assert overwritten(X, fault)[1].operand_changed == 1
    monkeypatch.setattr("fault_injection.models.overwrite.overwrite", careless(0))
    assert overwritten(X, fault)[1].operand_changed == 2


def test_tensors_that_have_more_elements_together_than_a_position_can_count_are_compared():
    large = jax.ShapeDtypeStruct((2**30,), "int8")
    fault = make_fault(SITE, Operand.INPUT, 0, [0])
    _, differs, _ = jax.eval_shape(lambda a, b, y: faulty_product(jnp.add, (a, b), y, fault), large, large, large)
    assert differs.shape == large.shape


def test_on_gpus_tensors_lie_row_by_row_where_they_are_kept_apart(monkeypatch):
    """So that a conditional, which the fault-free step lacks, has no say in how they lie; bits are as they were."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = jax.jit(fence)(X, X[0], jax.random.key(0))
    traced = jax.make_jaxpr(fence)(X, X[0], jax.random.key(0))
    kept = [equation for equation in traced.eqns if equation.primitive.name == "layout_constraint"]
    assert [equation.invars[0].aval.shape for equation in kept] == [X.shape]
    assert kept[0].params["layout"].major_to_minor == (0, 1)
    assert (found[0] == X).all() and (found[1] == X[0]).all()
