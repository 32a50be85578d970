"""The table of axes: strict, and covering every parameter of BERT."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bertjax.errors import UserError
from bertjax.model.bert import BertConfig
from bertjax.model.heads import (
    BertForClassification,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTagging,
)
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.rules import (
    check_heads,
    gathered_shardings,
    partition_spec,
    shardings,
    shardings_like,
)


def boxed(*shape, names):
    return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), names)


def abstract(model):
    return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"]


def by_path(tree, is_leaf=None):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=is_leaf)
    }


def test_specs():
    assert partition_spec(("layers", "embed", "heads")) == PartitionSpec(None, "fsdp", "tensor")
    assert partition_spec(("batch", "length")) == PartitionSpec(("data", "fsdp"), None)
    assert partition_spec(("embed", "embed")) == PartitionSpec("fsdp", None)
    # Vectors stay whole over fsdp, stacked or not, but not over tensor.
    assert partition_spec(("layers", "embed")) == PartitionSpec(None, None)
    assert partition_spec(("layers", "mlp")) == PartitionSpec(None, "tensor")


def test_unknown_or_missing_names_raise():
    mesh = make_mesh(2, 2, 2)
    with pytest.raises(ValueError, match=r"a/kernel: unknown logical axis 'hidden'"):
        shardings(mesh, {"a": {"kernel": boxed(8, 8, names=("hidden", "mlp"))}})
    with pytest.raises(ValueError, match=r"a/kernel \(8, 8\).* None"):
        shardings(mesh, {"a": {"kernel": jax.ShapeDtypeStruct((8, 8), jnp.float32)}})
    with pytest.raises(ValueError, match="not one for each axis"):
        shardings(mesh, {"kernel": boxed(2, 8, 8, names=("embed", "mlp"))})
    with pytest.raises(ValueError, match="None"):
        shardings(mesh, {"kernel": boxed(8, 8, names=("embed", None))})


def test_sizes_must_divide():
    with pytest.raises(UserError, match=r"mesh\.fsdp = 8 does not divide axis embed of k.* 12"):
        shardings(make_mesh(1, 8, 1), {"k": boxed(12, 16, names=("embed", "mlp"))})
    with pytest.raises(UserError, match=r"num_heads is 6, which mesh\.tensor = 4"):
        check_heads(6, make_mesh(2, 1, 4))
    check_heads(8, make_mesh(2, 1, 4))


MODELS = [
    BertForPreTraining,
    lambda config: BertForClassification(config, 3),
    lambda config: BertForTagging(config, 9),
    BertForQuestionAnswering,
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("frozen_layers", [0, 2])
def test_every_matrix_of_bert_is_split(model, frozen_layers):
    tree = abstract(model(BertConfig(frozen_layers=frozen_layers)))
    specs = {
        path: tuple(s.spec) for path, s in by_path(shardings(make_mesh(2, 2, 2), tree)).items()
    }
    sizes = by_path(nn.meta.unbox(tree))
    assert specs.keys() == sizes.keys()
    whole_over_tensor = {
        "bert/embeddings/position_embeddings/embedding",
        "bert/embeddings/token_type_embeddings/embedding",
        "bert/pooler/dense/kernel",
        "mlm/dense/kernel",
        *(f"{head}/dense/kernel" for head in ("nsp", "classifier", "tagger", "span")),
    }
    for path, spec in specs.items():
        matrix = path.endswith(("kernel", "embedding"))
        assert ("fsdp" in spec) == matrix, path
        if matrix:
            assert ("tensor" in spec) == (path not in whole_over_tensor), path


@pytest.mark.parametrize(
    ("sizes", "share"),
    [((8, 1, 1), 1.0), ((1, 8, 1), 0.127), ((2, 2, 2), 0.26), ((2, 1, 4), 0.27), ((1, 1, 8), 0.15)],
)
def test_bytes_of_bert_base_per_device(sizes, share):
    # Of all bytes, 0.12 % are vectors; 2.6 % are matrices that tensor leaves whole.
    tree = abstract(BertForPreTraining(BertConfig(num_heads=16)))
    places = jax.tree.leaves(shardings(make_mesh(*sizes), tree))
    leaves = jax.tree.leaves(nn.meta.unbox(tree))
    held = sum(np.prod(s.shard_shape(x.shape)) for x, s in zip(leaves, places, strict=True))
    assert held / sum(x.size for x in leaves) <= share


def test_gathered_means_without_fsdp_outside_the_layers():
    specs = by_path(
        gathered_shardings(make_mesh(2, 2, 2), abstract(BertForPreTraining(BertConfig())))
    )
    word = specs["bert/embeddings/word_embeddings/embedding"].spec
    assert word == PartitionSpec("tensor", None)
    assert specs["bert/encoder/mlp/output/kernel"].spec == PartitionSpec(None, "tensor", "fsdp")


def test_copies_lie_where_the_parameters_lie():
    mesh = make_mesh(2, 2, 2)
    place = jax.sharding.NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    params = {"a": {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=place)}}
    copy = {"a": {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.float32)}}
    count = jax.ShapeDtypeStruct((), jnp.int32)
    found = shardings_like(mesh, params, {"mu": copy, "count": count, "params": copy})
    assert found["mu"]["a"]["kernel"] == found["params"]["a"]["kernel"] == place
    assert found["count"].spec == PartitionSpec()
    with pytest.raises(ValueError, match=r"extra \(8, 4\)"):
        shardings_like(mesh, params, {"extra": jax.ShapeDtypeStruct((8, 4), jnp.float32)})
