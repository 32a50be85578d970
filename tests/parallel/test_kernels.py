"""Fused attention against the einsum path: values, gradients, padding, packed rows, choice."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from bertjax.errors import UserError
from bertjax.model.attention import attend, attention_probabilities
from bertjax.model.bert import BertConfig
from bertjax.parallel import kernels
from bertjax.parallel.mesh import make_mesh

BATCH, LENGTH, HEADS, SIZE = 4, 128, 2, 16


def arrays(seed: int = 0) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return tuple(jax.random.normal(key, (BATCH, LENGTH, HEADS, SIZE)) for key in keys)


def masks() -> jax.Array:
    """A full row, a padded one, a packed one, a packed and padded one."""
    mask = np.ones((BATCH, LENGTH), np.int32)
    mask[1, 70:] = 0
    mask[2, 50:] = 2
    mask[3, 30:] = 2
    mask[3, 60:] = 3
    mask[3, 100:] = 0
    return jnp.asarray(mask)


def reference(query, key, value, mask):
    return attend(attention_probabilities(query, key, mask), value)


def dot_product(query, key, value, mask):
    return kernels.dot_product(query, key, value, mask, "xla")


def assert_same(kernel):
    """Values and gradients at real tokens, to 1e-5 of the largest."""
    inputs, mask = arrays(), masks()
    real = (mask != 0)[:, :, None, None]
    weights = jax.random.normal(jax.random.key(9), inputs[0].shape)

    def results(function):
        def total(inputs):
            context = jnp.where(real, function(*inputs, mask), 0)
            return jnp.sum(context * weights), context

        (_, context), grads = jax.value_and_grad(total, has_aux=True)(inputs)
        return context, *grads

    for want, got in zip(results(reference), results(kernel), strict=True):
        limit = 1e-5 * max(1.0, float(jnp.abs(want).max()))
        assert float(jnp.abs(want - got).max()) <= limit


def test_pallas_kernel_equals_einsum():
    with pltpu.force_tpu_interpret_mode():
        assert_same(kernels.flash)


def test_dot_product_attention_equals_einsum():
    assert_same(dot_product)


@pytest.mark.parametrize("shape", [(4, 1, 2), (2, 2, 2), (1, 4, 1)])
def test_kernel_on_a_mesh_equals_one_device(shape):
    mesh = make_mesh(*shape, jax.devices()[: np.prod(shape)])
    assert_same(jax.jit(kernels.on_mesh(dot_product, mesh)))


def mesh_of(platform: str, capability: str):
    """What attention_fn asks of a mesh: the platform of its devices, and a GPU's generation."""
    device = types.SimpleNamespace(platform=platform, compute_capability=capability)
    devices = np.array([[[device]]], dtype=object)
    return types.SimpleNamespace(devices=devices)


@pytest.fixture
def chosen(monkeypatch):
    """(config overrides, platform, train) -> the kernel that is taken, or None."""
    monkeypatch.setattr(kernels, "on_mesh", lambda kernel, mesh: kernel)
    monkeypatch.setattr(kernels, "_by_length", lambda kernel, tile, asked: kernel)

    def choose(overrides, platform="tpu", train=True, capability="9.0"):
        config = BertConfig(**({"dtype": "bfloat16"} | overrides))
        return kernels.attention_fn(config, mesh_of(platform, capability), train=train)

    return choose


def test_auto_takes_the_kernel_only_where_it_computes_the_same(chosen):
    no_dropout = {"attention_dropout": 0.0}
    assert chosen(no_dropout, "tpu") is kernels.flash
    assert chosen(no_dropout, "gpu") is kernels.cudnn
    assert chosen(no_dropout, "cpu") is None
    assert chosen({"attention_dropout": 0.1}, "tpu", train=True) is None
    assert chosen({"attention_dropout": 0.1}, "tpu", train=False) is kernels.flash
    assert chosen(no_dropout | {"dtype": "float32"}, "tpu") is None
    assert chosen(no_dropout | {"attention": "einsum"}, "tpu") is None


@pytest.mark.parametrize(
    ("heads", "capability", "taken"),
    [
        (6, "8.0", True), (6, "9.0", True),  # 128
        (3, "8.0", False), (3, "8.9", False), (3, "9.0", True), (3, "10.0", True),  # 256
        (2, "9.0", False),  # 384
    ],
)  # fmt: skip
def test_heads_that_cudnn_takes_by_generation(chosen, heads, capability, taken):
    """The rule of JAX's own check, which raises NotImplementedError while the step is traced."""
    overrides = {"attention_dropout": 0.0, "num_heads": heads}  # of 768 / heads each
    got = chosen(overrides, "gpu", capability=capability)
    assert got is (kernels.cudnn if taken else None)
    if not taken:
        with pytest.raises(UserError, match=f"at most .*, not {768 // heads}"):
            chosen(overrides | {"attention": "fused"}, "gpu", capability=capability)


@pytest.mark.parametrize(
    ("overrides", "platform", "named"),
    [
        ({"attention_dropout": 0.0}, "cpu", "cpu"),
        ({"attention_dropout": 0.0, "dtype": "float32"}, "tpu", "dtype"),
        ({"attention_dropout": 0.1}, "gpu", "attention_dropout is 0.1"),
        ({"attention_dropout": 0.0, "num_heads": 64}, "gpu", "12"),
    ],
)
def test_fused_is_refused_where_it_cannot_be(chosen, overrides, platform, named):
    with pytest.raises(UserError, match=named):
        chosen({"attention": "fused"} | overrides, platform)


def test_rows_that_fill_no_tiles_go_the_einsum_way_or_are_refused():
    inputs, mask = tuple(x[:, :100] for x in arrays()), masks()[:, :100]
    never = pytest.fail
    got = kernels._by_length(never, kernels.TILE, asked=False)(*inputs, mask)
    np.testing.assert_array_equal(got, reference(*inputs, mask))
    with pytest.raises(UserError, match="multiple of 128 tokens, not 100"):
        kernels._by_length(never, kernels.TILE, asked=True)(*inputs, mask)


def test_a_train_step_with_the_kernel_equals_the_einsum_one(monkeypatch):
    """The whole step on 8 devices, the kernel in shard_map inside scan, gradients and all."""
    from bertjax import config as configs
    from bertjax.parallel.mesh import to_global
    from bertjax.tasks import pretrain
    from bertjax.train import step as steps
    from bertjax.train.optimizer import make_optimizer, make_schedule

    values = {
        "model.num_layers": 2, "model.hidden_size": 32, "model.num_heads": 2,
        "model.vocab_size": 100, "model.attention_dropout": 0.0, "model.hidden_dropout": 0.0,
        "data.batch_size": 8, "data.seq_length": 16, "train.steps": 10,
    }  # fmt: skip
    config = configs.resolve(configs.update(configs.default_config(), values))
    task, mesh = pretrain.without_data(config), make_mesh(2, 2, 2)
    schedule = make_schedule(config.optimizer, 10)
    optimizer = make_optimizer(config.optimizer, schedule, steps.abstract_params(task, mesh))
    random = np.random.default_rng(0)
    mask = np.ones((8, 16), np.int32)
    mask[1, 9:] = 0
    batch = {
        "input_ids": (random.integers(10, 90, (8, 16)) * mask).astype(np.int32),
        "token_type_ids": np.zeros((8, 16), np.int32), "attention_mask": mask,
        "nsp_positions": np.zeros((8, 1), np.int32), "nsp_labels": np.zeros((8, 1), np.int32),
        "example": np.zeros((8, 2), np.uint32),
    }  # fmt: skip
    figures = []
    for kernel in (None, lambda *_, **__: kernels.on_mesh(dot_product, mesh)):
        if kernel is not None:
            monkeypatch.setattr(kernels, "attention_fn", kernel)
        state = steps.create_state(task, optimizer, mesh, jax.random.key(0))
        step = steps.make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
        metrics = step(state, to_global(mesh, batch))[1]
        figures.append([float(metrics[name]) for name in ("loss", "grad_norm")])
    np.testing.assert_allclose(*figures, rtol=1e-5)
