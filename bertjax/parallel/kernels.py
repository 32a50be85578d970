"""Fused attention for a mesh: the kernels that ship with JAX, never holding [B, A, S, S] whole.

On TPUs the Pallas flash attention (Dao et al. 2022), on GPUs cuDNN's. Neither drops out attention
weights. Each runs on the rows and heads of one device: the partitioner cannot cut a kernel, so
shard_map does.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from bertjax.errors import UserError
from bertjax.model.attention import AttentionFn, attend, attention_probabilities
from bertjax.parallel.mesh import ROW_AXES

# The Pallas kernel works on tiles of this many tokens.
TILE = 128


def attention_fn(config: Any, mesh: Mesh, *, train: bool) -> AttentionFn | None:
    """What replaces the einsum attention of a model on this mesh, or None where nothing does.

    config: a BertConfig. With `attention` auto, the kernel of the mesh's devices serves where it
    computes the same: in bfloat16 or float16, and without attention dropout, so in evaluation or
    where attention_dropout is 0. fused raises UserError where auto would go the einsum way.
    """
    platform, asked = mesh.devices.flat[0].platform, config.attention == "fused"
    kernel = {"tpu": flash, "gpu": cudnn}.get(platform)
    if config.attention == "einsum":
        return None
    obstacle = None
    if kernel is None:
        obstacle = f"there is no kernel for {platform} devices"
    elif config.dtype == "float32":
        obstacle = "the kernels round float32: config.model.dtype must be bfloat16 or float16"
    elif train and config.attention_dropout > 0:
        obstacle = (
            f"it has no dropout: config.model.attention_dropout is {config.attention_dropout}"
        )
    elif platform == "gpu":
        obstacle = _cudnn_obstacle(config.head_size, mesh.devices.flat[0])
    if obstacle is None:
        return _by_length(on_mesh(kernel, mesh), TILE if platform == "tpu" else 1, asked)
    if asked:
        raise UserError(f"config.model.attention=fused: {obstacle}; choose auto or einsum")
    return None


def _cudnn_obstacle(head_size: int, device: Any) -> str | None:
    """What bars cuDNN's flash attention: its heads are of at most 256, or 128 before Hopper."""
    capability = getattr(device, "compute_capability", "")  # as in '8.0'
    generation = capability.partition(".")[0]
    most = 256 if generation.isdecimal() and int(generation) >= 9 else 128
    if head_size % 8 or head_size > most:
        return f"cuDNN needs heads of a multiple of 8, at most {most} here, not {head_size}"
    return None


def _by_length(kernel: AttentionFn, tile: int, asked: bool) -> AttentionFn:
    """`kernel` for rows of a multiple of `tile` tokens, else the einsum way or, `asked` for the
    kernel, UserError."""

    def attention(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
        length = mask.shape[-1]
        if length % tile == 0:
            return kernel(query, key, value, mask)
        if asked:
            raise UserError(
                f"config.model.attention=fused takes rows of a multiple of {tile} tokens, not "
                f"{length}: choose such a config.data.seq_length, or attention=auto"
            )
        return attend(attention_probabilities(query, key, mask, query.dtype), value)

    return attention


def on_mesh(kernel: AttentionFn, mesh: Mesh) -> AttentionFn:
    """`kernel` on each device's rows and heads."""
    rows, heads = PartitionSpec(ROW_AXES, None), PartitionSpec(ROW_AXES, None, "tensor", None)
    return jax.shard_map(
        kernel, mesh=mesh, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False
    )


def flash(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Pallas flash attention for TPUs, with the mask's numbers as segments.

    Padding, number 0, attends to padding: no row of the kernel is empty, and what stands at
    padding means nothing.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as pallas

    size = query.shape[-1]
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))  # [B, A, S, K]
    context = pallas.flash_attention(
        query, key, value, segment_ids=pallas.SegmentIds(mask, mask), sm_scale=size**-0.5
    )
    return context.swapaxes(1, 2)


def cudnn(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """cuDNN's fused attention."""
    return dot_product(query, key, value, mask, "cudnn")


def dot_product(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, implementation: str
) -> jax.Array:
    """jax.nn.dot_product_attention among tokens of one number; padding sees padding."""
    same = (mask[:, :, None] == mask[:, None, :])[:, None]
    return jax.nn.dot_product_attention(query, key, value, mask=same, implementation=implementation)
