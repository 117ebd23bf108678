"""MaxText's decoder, loss, optimizer and train step as they are installed: no model and no step of ours."""

import pathlib
import tempfile

import jax
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.common.train_state_nnx import TrainStateNNX
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train.train import eval_step, train_step
from maxtext.utils import maxtext_utils, model_creation_utils, sharding, train_utils
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

from fault_injection.data.shakespeare import load_shakespeare

CONTEXT, BATCH, HELD_OUT, STEPS, EPOCHS, VOCABULARY = 64, 8, 64, 20, 4, 256
text = load_shakespeare(None, VOCABULARY, CONTEXT)


def configuration(seed):
    return pyconfig.initialize(
        ["", str(pathlib.Path(MAXTEXT_CONFIGS_DIR) / "base.yml")],
        run_name="faults",
        base_output_directory=tempfile.gettempdir(),
        hardware="cpu",
        skip_jax_distributed_system=True,
        enable_checkpointing=False,
        dataset_type="synthetic",  # the batches below are given to the step directly
        base_num_decoder_layers=2,
        base_emb_dim=64,
        base_num_query_heads=4,
        base_num_kv_heads=4,
        head_dim=16,
        base_mlp_dim=128,
        vocab_size=VOCABULARY,
        max_target_length=CONTEXT,
        per_device_batch_size=BATCH,
        eval_per_device_batch_size=HELD_OUT,
        dtype="float32",
        attention="dot_product",  # the others are kernels of accelerators
        learning_rate=1e-2,
        steps=STEPS * EPOCHS,
        init_weights_seed=seed,
    )


def create_state(config, mesh):
    """As MaxText's `setup_train_loop` does it, without its data pipelines."""
    create_model, model = model_creation_utils.create_nnx_abstract_model(config, mesh)
    _, optimizer = train_utils.create_training_optimizer(config, model, mesh)

    def create():
        model = create_model()
        return TrainStateNNX(model, nnx.Optimizer(model, optimizer, wrt=nnx.Param))

    state, _, shardings, *_ = maxtext_utils.setup_training_state(None, config, mesh, None, create)
    with logical_axis_rules(config.logical_axis_rules):
        return state, nnx.graphdef(nnx.eval_shape(create)), shardings


def batch_of(part, random, count):
    starts = random.integers(0, len(part) - CONTEXT - 1, count)
    tokens = part[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int32)
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    for name in ("inputs", "targets"):
        batch[f"{name}_position"] = np.tile(np.arange(CONTEXT, dtype=np.int32), (count, 1))
        batch[f"{name}_segmentation"] = np.ones((count, CONTEXT), np.int32)
    return batch


# Above: the training as it was.  Below: what strikes it.


def training(seed: int = 0):
    from fault_injection import Measure, Training

    config = configuration(seed)
    mesh = maxtext_utils.get_mesh_from_config(config)
    initial, graph, shardings = create_state(config, mesh)
    params, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
    batches = sharding.get_input_data_sharding(config, mesh)
    train = train_utils.jit_train_step(config, graph, initial, shardings, batches, train_step, params, mesh)
    evaluation = train_utils.jit_eval_step(config, graph, shardings, batches, eval_step)

    def called(function, *args):
        # MaxText's loop says jax.set_mesh, which JAX refuses while a step is traced.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), logical_axis_rules(config.logical_axis_rules):
            return function(*args)

    def step(state, batch):
        state, metrics = called(train, state, batch)
        return state, {"loss": metrics["scalar"]["learning/loss"]}

    def evaluate(state):
        return {"loss": called(evaluation, state, held_out)["scalar"]["evaluation/loss"]}

    held_out = batch_of(text.test, np.random.default_rng(2**31), HELD_OUT)
    return Training(
        init=lambda: initial,
        step=step,
        batch=lambda epoch, number: batch_of(text.train, np.random.default_rng([seed, epoch, number]), BATCH),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        evaluate=evaluate,
        metric=Measure("loss", "lower", chance=text.chance, tolerance=0.05),
    )
