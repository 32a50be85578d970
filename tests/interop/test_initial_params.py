"""How a checkpoint becomes a model's first parameters: coverage is shown, nothing is silent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from interop_models import CONFIG, published, same_trees

from bertjax.errors import UserError
from bertjax.interop import initial_params
from bertjax.interop.published import whole_encoder
from bertjax.model.bert import BertConfig
from bertjax.model.heads import BertForClassification, BertForPreTraining


def abstract(module) -> dict:
    """A model's parameter tree as shapes, without boxes."""
    ids = jnp.zeros((1, 8), jnp.int32)
    variables = jax.eval_shape(module.init, jax.random.key(0), ids, ids, ids)
    return meta.unbox(variables)["params"]


def pretraining(**sizes) -> dict:
    return abstract(BertForPreTraining(BertConfig(**{**CONFIG, **sizes})))


def classification(classes: int, **sizes) -> dict:
    return abstract(BertForClassification(BertConfig(**{**CONFIG, **sizes}), classes))


def test_our_tree_is_the_models_tree() -> None:
    model = published(("mlm", "nsp"))
    shapes = jax.tree.map(lambda leaf: leaf.shape, pretraining())
    assert jax.tree.map(lambda leaf: leaf.shape, model.params) == shapes


def test_everything_lands() -> None:
    model = published(("mlm", "nsp"))
    params, coverage = initial_params(model, pretraining())
    assert same_trees(params, model.params)
    assert str(coverage) == (
        "39 of 39 encoder tensors loaded and the heads mlm, nsp, left over: none, "
        f"newly initialised: none, parameter checksum {model.coverage.checksum}"
    )


def test_base_size_has_199_encoder_tensors() -> None:
    model = published(("mlm", "nsp"), num_layers=12)
    _, coverage = initial_params(model, pretraining(num_layers=12))
    assert str(coverage).startswith("199 of 199 encoder tensors loaded")


def test_a_task_head_is_new_and_unused_heads_are_left_over() -> None:
    params, coverage = initial_params(published(("mlm", "nsp")), classification(3))
    assert coverage.new == ("classifier/dense/kernel", "classifier/dense/bias")
    assert "mlm/bias" in coverage.left_over and "nsp/dense/kernel" in coverage.left_over
    assert "classifier" not in params and "mlm" not in params


def test_a_head_of_another_size() -> None:
    model = published(("classifier",))  # 3 classes
    with pytest.raises(UserError, match=r"'classifier' has 3 .* 5 in .*config\.new_head=True"):
        initial_params(model, classification(5))
    params, coverage = initial_params(model, classification(5), new_head=True)
    assert coverage.new == ("classifier/dense/kernel", "classifier/dense/bias")
    assert "classifier" not in params and coverage.heads == ()
    same, _ = initial_params(model, classification(3))
    assert same_trees(same, model.params)


def test_the_encoder_alone() -> None:
    params, coverage = initial_params(published(("mlm", "nsp")), pretraining(), encoder_only=True)
    assert set(params) == {"bert"}
    assert {path.partition("/")[0] for path in coverage.new} == {"mlm", "nsp"}


def test_a_missing_pooler_is_new() -> None:
    model = published(("mlm", "nsp"))
    del model.params["bert"]["pooler"]
    _, coverage = initial_params(model, pretraining())
    assert coverage.new == ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_layers": 4}, r"has 2 layers but .* num_layers=4; missing: bert\.encoder\.layer\.2"),
        ({"num_layers": 1}, r"has 2 layers but the model has num_layers=1"),
        ({"hidden_size": 16}, r"word_embeddings/embedding' has the shape \(128, 8\).*\(128, 16\)"),
        ({"vocab_size": 500}, r"\(128, 8\) in random but \(512, 8\) in the model"),
        ({"max_position_embeddings": 30}, r"position_embeddings.*\(24, 8\) .*\(30, 8\)"),
    ],
)
def test_an_encoder_of_another_size_is_an_error(sizes, message) -> None:
    with pytest.raises(UserError, match=message):
        initial_params(published(("mlm", "nsp")), pretraining(**sizes))


@pytest.mark.parametrize("frozen", [1, 2])
def test_frozen_layers_are_a_stack_of_their_own(frozen) -> None:
    model = published(("mlm", "nsp"))
    shapes = pretraining(frozen_layers=frozen)
    params, _ = initial_params(model, shapes)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == jax.tree.map(
        lambda leaf: leaf.shape, shapes
    )
    kernel = model.params["bert"]["encoder"]["mlp"]["output"]["kernel"]
    low = params["bert"]["frozen_encoder"]["mlp"]["output"]["kernel"]
    np.testing.assert_array_equal(low, kernel[:frozen])
    assert same_trees(whole_encoder(params), model.params)
