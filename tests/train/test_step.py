"""The train step against one device, one microbatch and hand-computed losses."""

import collections
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import MaskedTask, bert_config, optimizer_config, start

from bertjax.model.bert import BertModel, dropout
from bertjax.parallel.mesh import make_mesh, replicated, to_global
from bertjax.train import loss as losses
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import (
    abstract_batch,
    abstract_params,
    abstract_state,
    make_eval_step,
    make_train_step,
)

LONG = pytest.mark.long  # each mesh is a compilation
MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), pytest.param((2, 1, 4), marks=LONG), (1, 1, 4)]


def ten_losses(sizes):
    run = start(MaskedTask(), sizes)
    return [float(run.take(run.task.batch(step))["loss"]) for step in range(10)], run


@functools.cache
def losses_of_one_device():
    return ten_losses((1, 1, 1))[0]


def bytes_by_device(tree):
    """Bytes that each device really holds."""
    held = collections.Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return held


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_every_mesh_follows_one_device(sizes):
    # Among others, the first of eight devices has no scored place.
    got, run = ten_losses(sizes)
    np.testing.assert_allclose(got, losses_of_one_device(), rtol=1e-5)
    held = bytes_by_device((run.state.params, run.state.opt_state))
    assert len(held) == np.prod(sizes) and len(set(held.values())) == 1
    whole = sum(x.nbytes for x in jax.tree.leaves((run.state.params, run.state.opt_state)))
    share = max(held.values()) / whole
    assert share <= {(8, 1, 1): 1.0, (1, 8, 1): 0.15, (2, 2, 2): 0.30}.get(sizes, 0.35)


def test_a_state_born_in_pieces_is_that_of_one_device():
    whole, pieces = start(MaskedTask()), start(MaskedTask(), (2, 2, 2), fresh=True)
    jax.tree.map(np.testing.assert_array_equal, whole.state, pieces.state)
    kernel = pieces.state.params["bert"]["encoder"]["mlp"]["output"]["kernel"]
    assert kernel.shape == (2, 128, 64)
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 64, 32)}


def gradient(run, batch):
    """Metrics and gradient, from the first moment after one step: (1 - beta1) g."""
    metrics = run.take(batch)
    mu = optax.tree_utils.tree_get(run.state.opt_state, "mu")
    return jax.device_get(metrics), jax.tree.map(lambda m: np.asarray(m) / 0.1, mu)


@pytest.mark.parametrize(
    ("sizes", "accumulate"),
    [((1, 1, 1), 4), ((8, 1, 1), 1), pytest.param((4, 1, 1), 4, marks=LONG)],
)
def test_microbatches_and_devices_give_the_gradient_of_the_whole_batch(sizes, accumulate):
    # Row r has r mod 4 scored places and is in microbatch r mod 4, so the first microbatch has
    # none and the others differ.
    task = MaskedTask()
    batch = task.batch(0)
    assert batch["masked_weights"][0::4].sum() == 0 < batch["masked_weights"].sum()
    expected, reference = gradient(start(task), batch)
    got, grads = gradient(start(task, sizes, accumulate=accumulate), batch)
    for name in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "grad_norm"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, err_msg=name)
    largest = max(np.abs(g).max() for g in jax.tree.leaves(reference))

    def close(path, a, b):
        # The keys' biases have no gradient but rounding.
        allowed = 1e-5 * max(np.abs(b).max(), 1e-2 * largest)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=allowed, err_msg=str(path))

    jax.tree_util.tree_map_with_path(close, grads, reference)


def test_the_divisor_of_microbatches_costs_no_forward_pass():
    # The weights come from a pass over the whole batch of which nothing else is used.
    activation = "f32[16,16,64]"  # of the whole batch
    assert activation in start(MaskedTask()).step.as_text()
    assert activation not in start(MaskedTask(), accumulate=4).step.as_text()


class GivenLosses(MaskedTask):
    """Losses that the batch says, times the sum of two parameters (1 in all)."""

    def __init__(self):
        super().__init__()
        self.loss_weights = {"given": 1.0}

    def batch_spec(self):
        return {name: jax.ShapeDtypeStruct((4, 3), jnp.float32) for name in ("value", "scored")}

    def init_params(self, key):
        return {"kernel": nn.LogicallyPartitioned(jnp.full(2, 0.5), ("norm",))}

    def losses(self, params, inputs, *, dropout_key):
        predictions = inputs["value"] * params["kernel"].sum()
        zeros = jnp.zeros_like(predictions)
        total, weight = losses.squared_error(jnp.sqrt(predictions), zeros, inputs["scored"])
        return {"given": (total, weight)}


def given(value):
    return {"value": np.full((4, 3), value, np.float32), "scored": np.ones((4, 3), np.float32)}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_division_over_uneven_microbatches(accumulate):
    # Rows 0 and 2: one scored place, loss 4. Rows 1 and 3: three, mean 2. (4 + 6) / 4 = 2.5,
    # where a mean of means would say 3.
    batch = {
        "value": np.array([[4, 9, 9], [1, 2, 3], [9, 9, 9], [9, 9, 9]], np.float32),
        "scored": np.array([[1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0]], np.float32),
    }
    metrics = start(GivenLosses(), accumulate=accumulate).take(batch)
    assert float(metrics["loss"]) == float(metrics["given"]) == pytest.approx(2.5, rel=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(2.5 * np.sqrt(2), rel=1e-6)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 1, 1)], ids=str)
def test_a_batch_without_any_scored_place_gives_zero(sizes):
    task = MaskedTask()
    batch = task.batch(0) | {
        "masked_weights": np.zeros((16, 3), np.float32),
        "nsp_labels": np.full((16, 1), -100, np.int32),
    }
    run = start(task, sizes, weight_decay=0.0)
    before = jax.device_get(run.state.params)
    metrics = run.take(batch)
    assert {float(metrics[name]) for name in ("loss", "grad_norm", "nonfinite")} == {0.0}
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), before, run.state.params)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_broken_step_changes_nothing_and_is_counted(where):
    good, bad = given(1.0), given(np.inf if where == "loss" else 1e37)
    run = start(GivenLosses(), name="adamw")
    assert float(run.take(good)["nonfinite"]) == 0.0
    before = jax.device_get(run.state)
    metrics = run.take(bad)
    assert float(metrics["nonfinite"]) == 1.0
    assert np.isfinite(float(metrics["loss"])) == (where == "gradient")
    after = jax.device_get(run.state)
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    jax.tree.map(np.testing.assert_array_equal, before.opt_state, after.opt_state)
    assert (after.step, after.skipped) == (2, 1)
    assert float(run.take(good)["nonfinite"]) == 0.0
    assert (run.state.params["kernel"] != before.params["kernel"]).all()


def test_the_rate_follows_the_step():
    run = start(GivenLosses(), warmup_steps=5, learning_rate=1e-2)
    rates = [float(run.take(given(1.0))["learning_rate"]) for _ in range(7)]
    np.testing.assert_allclose(
        rates, [0, 2e-3, 4e-3, 6e-3, 8e-3, 1e-2 * 0.95, 1e-2 * 0.94], rtol=1e-6
    )


def test_one_compile_of_each_step():
    run = start(MaskedTask(), (2, 2, 2))
    task, mesh, state = run.task, run.mesh, run.state
    train = make_train_step(task, run.optimizer, mesh, schedule=lambda step: 1e-3, seed=0)
    evaluate = make_eval_step(task, mesh)
    first = jax.tree.leaves(state.params)[0]
    for step in range(20):
        batch = to_global(mesh, task.batch(step))
        state, _ = train(state, batch)
        if step % 10 == 9:
            evaluate(state.params, batch)
    assert first.is_deleted()  # donated
    assert int(state.step) == 20
    assert (train._cache_size(), evaluate._cache_size()) == (1, 1)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 1, 1), (2, 2, 2)], ids=str)
def test_evaluation_counts_real_rows_and_keeps_their_order(sizes):
    class Scored(GivenLosses):
        def outputs(self, params, inputs):
            return {"value": inputs["value"] * params["kernel"].sum()}

    task, mesh = Scored(), make_mesh(*sizes, devices=jax.devices()[: np.prod(sizes)])
    # Ten examples of 16 rows; 7 of them are right.
    right = np.array([1, 1, 0, 1, 1, 0, 1, 1, 1, 0] + [1] * 6, np.float32)
    real = np.array([1] * 10 + [0] * 6, np.float32)
    batch = {"value": right, "scored": real}
    params = jax.device_put({"kernel": np.full(2, 0.5, np.float32)}, replicated(mesh))
    means, outputs = make_eval_step(task, mesh)(params, to_global(mesh, batch))
    assert tuple(map(float, means["given"])) == (7.0, 10.0)
    np.testing.assert_array_equal(outputs["value"], right)
    assert outputs["value"].is_fully_replicated


# Dropout


class Noise(MaskedTask):
    """The gradient of its parameters, ones [16, 32], is their dropout mask of rate 0.5."""

    def __init__(self):
        super().__init__()
        self.loss_weights = {"noise": 1.0}

    def batch_spec(self):
        return {"row": jax.ShapeDtypeStruct((16, 16), jnp.float32)}

    def init_params(self, key):
        return {"kernel": nn.LogicallyPartitioned(jnp.ones((16, 32)), ("norm", "norm"))}

    def losses(self, params, inputs, *, dropout_key):
        rows = inputs["row"] @ params["kernel"]  # a row of the parameters for each row
        rows = rows if dropout_key is None else dropout(rows, 0.5, dropout_key)
        return {"noise": (rows.sum(), jnp.float32(1.0))}


def masks(sizes, accumulate=1, steps=2):
    """The dropout masks [steps, 16, 32] of 16 rows."""
    run = start(Noise(), sizes, accumulate=accumulate, learning_rate=0.0, beta1=0.0)
    found = []
    for _ in range(steps):
        run.take({"row": np.eye(16, dtype=np.float32)})
        found.append(np.asarray(optax.tree_utils.tree_get(run.state.opt_state, "mu")["kernel"]) > 0)
    return np.stack(found)


def different_rows(mask):
    return len({row.tobytes() for row in mask.reshape(-1, 32)})


def test_dropout_differs_between_rows_steps_and_microbatches():
    whole = masks((1, 1, 1))
    assert 0.4 < whole.mean() < 0.6
    assert different_rows(whole) == 32
    # Rows 0..3 are the first of their microbatches: with one key they would be equal.
    assert different_rows(masks((1, 1, 1), accumulate=4)) == 32


@pytest.mark.parametrize("accumulate", [1, 2])
def test_dropout_does_not_depend_on_devices(accumulate):
    eight = masks((8, 1, 1), accumulate)
    np.testing.assert_array_equal(eight, masks((1, 1, 1), accumulate))
    assert different_rows(eight) == 32


@LONG
def test_dropout_of_the_model_on_eight_devices_is_that_of_one():
    task = MaskedTask(bert_config(hidden_dropout=0.3, attention_dropout=0.2))
    one, eight = (
        [float(run.take(task.batch(step))["loss"]) for step in range(3)]
        for run in (start(task), start(task, (2, 2, 2)))
    )
    np.testing.assert_allclose(one, eight, rtol=1e-5)
    assert abs(one[0] - losses_of_one_device()[0]) > 1e-4


def test_layers_draw_different_dropout():
    # Zero kernels and a large bias: what dropout leaves of the bias is all that a layer adds.
    model = BertModel(bert_config(hidden_dropout=0.5))
    ids = jnp.zeros((1, 8), jnp.int32)

    @jax.jit
    def hidden_states(key):
        params = nn.meta.unbox(model.init(key, ids))["params"]
        for part in ("attention", "mlp"):
            params["encoder"][part]["output"]["kernel"] *= 0.0
        params["encoder"]["mlp"]["output"]["bias"] = jnp.full((2, 64), 100.0)
        return model.apply(
            {"params": params}, ids, deterministic=False, output_hidden_states=True,
            rngs={"dropout": key},
        ).hidden_states  # fmt: skip

    # After a layer an entry is positive where dropout kept the bias of 200, else negative.
    kept = np.asarray(hidden_states(jax.random.key(0))[1:, 0]) > 0
    assert 0.4 < kept.mean() < 0.6
    assert 0.4 < (kept[0] == kept[1]).mean() < 0.6


# Lowering what a pod would run


def test_bert_large_lowers_on_eight_devices_without_allocating():
    config = bert_config(
        vocab_size=30522, num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096,
        max_position_embeddings=512, dtype="bfloat16", hidden_dropout=0.1, attention_dropout=0.1,
    )  # fmt: skip
    task, mesh = MaskedTask(config, batch=64, length=128, places=20), make_mesh(2, 2, 2)
    optimizer_of = optimizer_config(name="lamb")
    schedule = make_schedule(optimizer_of, 1000)
    optimizer = make_optimizer(optimizer_of, schedule, abstract_params(task, mesh))
    state = abstract_state(task, optimizer, mesh)
    real = 335_141_888 + 1024 * 1024 + 1024 + 2048 + 30522 + 2048 + 2  # with both heads
    padding = (30592 - 30522) * 1025
    assert sum(x.size for x in jax.tree.leaves(state.params)) == real + padding
    step = make_train_step(task, optimizer, mesh, schedule=schedule, seed=0, accumulate=4)
    lowered = step.lower(state, abstract_batch(task, mesh))
    assert "sharding" in lowered.as_text()[:100_000]
