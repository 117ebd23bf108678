"""Each mistake in a user's training is one line: the file, the line or the leaf, and what to do; exit code 2."""

import mistaken_trainings
import pytest

from fault_injection import Measure
from fault_injection.commands.main import main

FILE = mistaken_trainings.__file__
AT = "(mistaken_trainings.py:"
ANSWERS = {
    "returns_nothing": ["returns NoneType, expected a Training"],
    "exits": ["raises SystemExit: no data"],
    "wants_more": ["missing 1 required positional argument: 'config'"],
    "init_raises": ["init() raises ZeroDivisionError"],
    "init_is_text": [AT, "'weights'", "it is no array; make it one, or keep it outside of state and batch"],
    "init_differs": ["init() is another one when it is asked for again: it differs in 'w'; seed what is random"],
    "init_is_empty": [AT, "KeyError: 'w'"],
    "batch_raises": ["batch(0, 0) raises IndexError"],
    "batch_is_nothing": [AT, "NoneType"],
    "batch_of_epoch": ["batch(0, 0) raises TypeError", "takes 1 positional argument but 2 were given"],
    "batch_shrinks": ["batch(0, 1): 'batch' is float32[7, 3]", "drop the last one, or pad it"],
    "batch_changes_type": ["batch(0, 1): 'batch' is float16[8, 3]", "float32[8, 3]"],
    "batch_changes_names": ["batch(0, 1): ", "lacks 'x'"],
    "batch_unseeded": ["batch(0, 0) is another one when it is asked for again", "seed what is random"],
    "batch_is_hidden": ["it is another Tensor than the step was traced with: make it a pytree"],
    "evaluate_raises": ["evaluate(state) raises KeyError: 'weights'"],
    "evaluate_is_text": ["there is no 'loss' in what evaluate returns, which is 'good'; expected {"],
    "evaluate_is_nothing": ["there is no 'loss' in what evaluate returns, which is None; expected {"],
    "evaluate_misspells": ["there is no 'loss' in what evaluate returns; did you mean 'los'?"],
    "evaluate_is_nan": ["the golden run's own test loss is nan after epoch 0"],
    "metric_is_missing": ["there is no 'accuracy' in the step's metrics", "loss"],
    "metric_is_nothing": ["metric is None; expected a Measure, such as"],
    "epochs_are_broken": ["epochs is 2.5; expected a whole number"],
    "epochs_are_none": ["epochs is 0; expected 1 at least"],
    "steps_are_text": ["steps_per_epoch is '3'; expected a whole number"],
    "turns_are_none": ["turns is 0; expected a whole number from 1"],
    "predict_alone": ["predict is given without tests"],
    "step_is_nothing": ["step is None; expected a function"],
    "step_takes_three": ["takes (params, opt_state, x)", "arguments=lambda state, batch: (*state, batch)"],
    "step_takes_keywords": ["takes (w, *, x)", "arguments=lambda"],
    "step_returns_nothing": ["returns a NoneType, in which its state is not; expected (state, metrics)"],
    "step_changes_type": ["changes 'w' of its state from float32[3, 2] to bfloat16[3, 2]; expected the same"],
    "step_changes_shape": ["changes 'w' of its state from float32[3, 2] to float32[2, 2]; expected the same"],
    "step_adds_a_leaf": ["adds the leaf 'n' of its state; expected the same leaves"],
    "step_loses_a_leaf": ["loses the leaf 'm' of its state; expected the same leaves"],
    "step_has_no_loss": ["there is no 'loss' in the step's metrics"],
    "step_asks_for_a_number": [AT, "as by float() or .item(); return the array"],
    "step_calls_numpy": [AT, "use jax.numpy there"],
    "step_makes_a_shape": [AT, "Shapes must be 1D sequences of concrete values"],
    "step_reads_the_clock": [AT, "something else when it is traced again", "put that into the state"],
    "step_branches": [AT, "use jnp.where or lax.cond there"],
    "step_multiplies_wrongly": [AT, "got (3,) and (8,)"],
    "step_misspells": [AT, "KeyError: 'params'"],
    "step_keeps": ["outside of itself (mistaken_trainings.KEPT): return it"],
    "step_is_still": ["leaves the whole state as it was at epoch 0, step 1: a step returns what it changes"],
    "step_diverges": ["the golden run's own loss is nan at epoch 0, step 1"],
    "roles_are_no_roles": ["roles: 'weights' for 'w'; expected one of parameters"],
    "roles_name_nothing": ["roles: no leaf of the state fits 'v'; expected one of w"],
    "sites_name_nothing": ["no site of the step fits 'conv*'; expected one of forward:w, grad_wt:w"],
}
OF_THE_RUN = ("evaluate_is_nan", "step_is_still", "step_diverges")  # whose epoch and step are named


@pytest.mark.parametrize("name", ANSWERS)
def test_a_mistake_is_one_line_with_its_place_and_what_to_do(name, cache, capsys):
    capsys.readouterr()
    assert main(["golden", f"{FILE}:{name}", "--cache", str(cache)]) == 2
    *_, said = capsys.readouterr().err.strip().splitlines()
    assert all(part in said for part in ANSWERS[name]), said
    assert name in OF_THE_RUN or "mistaken_trainings.py" in said


def test_without_a_mistake_there_is_a_golden_run(cache, capsys):
    assert main(["golden", f"{FILE}:training", "--cache", str(cache)]) == 0


@pytest.mark.parametrize(
    ("better", "chance", "tolerance", "limits", "said"),
    [
        ("small", 1.0, 0.1, None, "better is 'small'; expected one of higher, lower"),
        ("lower", float("nan"), 0.1, None, "chance is nan; expected a number"),
        ("lower", 1.0, -1, None, "tolerance is -1; expected a number from 0"),
        ("lower", 1.0, "2 %", None, "tolerance is '2 %'; expected a number from 0"),
        ("higher", 0.1, 0.1, (1.0, 0.0), "expected the smallest and the largest value"),
    ],
)
def test_a_measure_is_what_it_says(better, chance, tolerance, limits, said):
    with pytest.raises(ValueError) as error:
        Measure("loss", better, chance, tolerance, limits)
    assert said in str(error.value)


def test_what_is_no_function_is_named_with_what_it_is(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("training = {}\n")
    assert main(["sites", f"{file}:training"]) == 2
    assert "'training' is of type dict; expected a function that returns it" in capsys.readouterr().err
