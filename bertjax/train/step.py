"""The train step and the evaluation step: pure functions of a state and a batch, compiled once.

The loss of a step is  sum over task.loss_weights of  coefficient * sum / weight , where sum and
weight run over the whole global batch: over every device and every microbatch. It is divided once,
so neither devices nor accumulation change it, however unevenly the scored positions fall.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.parallel import kernels, rules
from bertjax.parallel.mesh import ROW_AXES, batch_sharding, replicated
from bertjax.tasks.task import Mean, Task
from bertjax.train.loss import mean

Params = Any
Arrays = Mapping[str, jax.Array]


class TrainState(flax.struct.PyTreeNode):
    """All that a run carries from step to step.

    step: int32 scalar, the steps taken: batches seen, skipped ones included.
    skipped: int32 scalar, those whose loss or gradient was not finite and that changed nothing.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    skipped: jax.Array


def abstract_params(task: Task, mesh: Mesh) -> Params:
    """The task's parameters as ShapeDtypeStructs with shardings; nothing is allocated."""
    boxed = jax.eval_shape(task.init_params, jax.random.key(0))
    return _with_shardings(nn.meta.unbox(boxed), rules.shardings(mesh, boxed))


def abstract_state(task: Task, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The whole state as ShapeDtypeStructs with shardings: what is lowered, restored and planned.

    Whatever the optimizer keeps for a parameter lies where the parameter lies.
    """
    params = abstract_params(task, mesh)
    state = jax.eval_shape(lambda p: _fresh(p, optimizer), params)
    return _with_shardings(state, rules.shardings_like(mesh, params, state))


def create_state(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    key: jax.Array,
    params: Params | None = None,
) -> TrainState:
    """A state at step 0, each array born in its place: no device ever holds one whole.

    With `params` (complete, any placement) these are taken instead of fresh ones from `key`.
    """
    shardings = _shardings(abstract_state(task, optimizer, mesh))
    if params is not None:
        params = jax.device_put(params, shardings.params)
        return jax.jit(lambda p: _fresh(p, optimizer), out_shardings=shardings)(params)

    def init(key: jax.Array) -> TrainState:
        return _fresh(nn.meta.unbox(task.init_params(key)), optimizer)

    return jax.jit(init, out_shardings=shardings)(key)


def make_train_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    schedule: optax.Schedule,
    seed: int,
    accumulate: int = 1,
) -> Callable[[TrainState, Arrays], tuple[TrainState, dict[str, jax.Array]]]:
    """The jitted step (state, batch) -> (state, metrics); the state given is donated.

    Metrics are float32 scalars on the device: every mean of task.losses by its name, `loss`,
    `grad_norm` (before clipping), `learning_rate`, and `nonfinite`, 1 where the loss or the
    gradient was not finite. Such a step leaves parameters and optimizer state as they were and
    adds one to state.skipped; whether to go on is for the caller to say.

    The dropout key is folded from seed, step and microbatch, so no result depends on devices,
    processes or restarts.
    """
    task = _with_kernels(task, mesh, train=True)
    abstract = abstract_state(task, optimizer, mesh)
    gradients = _gradients(task, mesh, accumulate)
    optimizer = optax.with_extra_args_support(optimizer)

    def train_step(state: TrainState, batch: Arrays) -> tuple[TrainState, dict[str, jax.Array]]:
        with _tracing(task, mesh):
            inputs = task.inputs(batch, train=True)
            key = jax.random.fold_in(jax.random.key(seed), state.step)
            means, grads = gradients(state.params, inputs, key)
            grads = jax.lax.with_sharding_constraint(grads, _shardings(abstract.params))
            loss, grad_norm = _loss(task, means), optax.global_norm(grads)
            finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)

            def update(params: Params, opt_state: optax.OptState, grads: Params) -> tuple:
                updates, opt_state = optimizer.update(
                    grads, opt_state, params, step=state.step, grad_norm=grad_norm
                )
                return optax.apply_updates(params, updates), opt_state

            # A branch, not a choice between two states: those would have to exist at once.
            params, opt_state = jax.lax.cond(
                finite, update, lambda params, opt_state, _: (params, opt_state),
                state.params, state.opt_state, grads,
            )  # fmt: skip
        metrics = {name: mean(*pair) for name, pair in means.items()} | {
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "nonfinite": 1.0 - finite.astype(jnp.float32),
        }
        state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped=state.skipped + jnp.where(finite, 0, 1),
        )
        return state, metrics

    shardings = _shardings(abstract)
    return jax.jit(
        train_step,
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


class StepByShape:
    """A jitted train step, compiled once for each shape of batch.

    Args:
        jitted: what `make_train_step` returns.
        abstract: the state as ShapeDtypeStructs.
    """

    def __init__(self, jitted: Any, abstract: TrainState) -> None:
        self._jitted, self._abstract = jitted, abstract
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def knows(self, batch: Mapping[str, Any]) -> bool:
        """Whether batches of this shape need no compiling."""
        return _shape_key(batch) in self._compiled

    def compile(self, batch: Mapping[str, Any]) -> None:
        """Compile for the shape of `batch`: global arrays or ShapeDtypeStructs."""
        self._compiled[_shape_key(batch)] = self._jitted.lower(self._abstract, batch).compile()

    def __call__(self, state: TrainState, batch: Arrays) -> tuple[TrainState, dict[str, jax.Array]]:
        """Take the step; `batch` has a shape that was compiled for."""
        return self._compiled[_shape_key(batch)](state, batch)


def _shape_key(batch: Mapping[str, Any]) -> Any:
    return tuple(sorted((name, x.shape, jnp.dtype(x.dtype).name) for name, x in batch.items()))


def make_eval_step(
    task: Task, mesh: Mesh
) -> Callable[[Params, Arrays], tuple[dict[str, Mean], dict[str, jax.Array]]]:
    """The jitted (params, batch) -> (means, outputs): no dropout, nothing donated.

    means: the (sum, weight) of task.losses, float32 scalars, to be added up over batches.
    outputs: task.outputs, arrays [B, ...] whole on every process, in the order of the rows.
    """
    task = _with_kernels(task, mesh, train=False)
    gather = _gather(task, mesh)

    def eval_step(params: Params, batch: Arrays) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        with _tracing(task, mesh):
            inputs, params = task.inputs(batch, train=False), gather(params)
            return task.losses(params, inputs, dropout_key=None), task.outputs(params, inputs)

    return jax.jit(
        eval_step,
        in_shardings=(_shardings(abstract_params(task, mesh)), batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )


def abstract_batch(task: Task, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """One global training batch with shardings: what the step is lowered for."""
    spec = task.batch_spec()
    return _with_shardings(spec, jax.tree.map(lambda _: batch_sharding(mesh), spec))


def _gradients(
    task: Task, mesh: Mesh, accumulate: int
) -> Callable[[Params, Arrays, jax.Array], tuple[dict[str, Mean], Params]]:
    """(params, inputs, key) -> the means of a whole batch and the gradient of its loss."""
    gather = _gather(task, mesh)

    def loss(
        params: Params, inputs: Arrays, key: jax.Array, weights: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, dict[str, Mean]]:
        means = task.losses(gather(params), inputs, dropout_key=key)
        return _loss(task, means, weights), means

    gradient = jax.grad(loss, has_aux=True)

    def at_once(params: Params, inputs: Arrays, key: jax.Array) -> tuple[dict[str, Mean], Params]:
        grads, means = gradient(params, inputs, jax.random.fold_in(key, 0), {})
        return means, grads

    def in_parts(params: Params, inputs: Arrays, key: jax.Array) -> tuple[dict[str, Mean], Params]:
        # The divisors are the weights of the whole batch, wanted before the first microbatch. Only
        # the weights are used, so the compiler drops the forward pass that this seems to ask for.
        whole = task.losses(params, inputs, dropout_key=None)
        weights = {name: whole[name][1] for name in task.loss_weights}

        def add(total: Any, microbatch: tuple[jax.Array, Arrays]) -> tuple[Any, None]:
            index, rows = microbatch
            grads, means = gradient(params, rows, jax.random.fold_in(key, index), weights)
            return jax.tree.map(jnp.add, total, (means, grads)), None

        zeros = jax.tree.map(jnp.zeros_like, (whole, params))
        rows = _microbatches(mesh, inputs, accumulate)
        return jax.lax.scan(add, zeros, (jnp.arange(accumulate), rows))[0]

    return at_once if accumulate == 1 else in_parts


def _with_kernels(task: Task, mesh: Mesh, *, train: bool) -> Task:
    """The task with the fused attention of the mesh, where its model takes one."""
    config = getattr(task.model, "config", None)
    if config is None:
        return task
    return task.with_attention(kernels.attention_fn(config, mesh, train=train))


def _gather(task: Task, mesh: Mesh) -> Callable[[Params], Params]:
    """Parameters from where they are stored to where a step uses them."""
    boxed = jax.eval_shape(task.init_params, jax.random.key(0))
    shardings = rules.gathered_shardings(mesh, boxed)
    return lambda params: jax.lax.with_sharding_constraint(params, shardings)


def _microbatches(mesh: Mesh, inputs: Arrays, accumulate: int) -> Arrays:
    """[B, ...] -> [accumulate, B / accumulate, ...]: row r is in microbatch r mod accumulate.

    Each device cuts up its own block of rows, so nothing moves, and which rows are in a
    microbatch does not depend on the number of devices.
    """
    sharding = NamedSharding(mesh, PartitionSpec(None, ROW_AXES))

    def cut(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // accumulate, accumulate, *x.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree.map(cut, inputs)


def _loss(
    task: Task, means: Mapping[str, Mean], weights: Mapping[str, jax.Array] | None = None
) -> jax.Array:
    """The weighted sum of the losses, each divided by its own weight or by that in `weights`."""
    weights = weights or {}
    return sum(
        coefficient * mean(means[name][0], weights.get(name, means[name][1]))
        for name, coefficient in task.loss_weights.items()
    )


def _fresh(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, optimizer.init(params), zero)


@contextlib.contextmanager
def _tracing(task: Task, mesh: Mesh) -> Iterator[None]:
    """What holds while a step is traced: axis rules for the model, and true float32 matmuls
    (accelerators round their factors otherwise) where the model computes in float32."""
    config = getattr(task.model, "config", None)
    exact = jnp.dtype(getattr(config, "dtype", jnp.float32)) == jnp.float32
    with contextlib.ExitStack() as stack:
        stack.enter_context(nn.logical_axis_rules(tuple(rules.RULES.items())))
        stack.enter_context(jax.sharding.use_abstract_mesh(mesh.abstract_mesh))
        if exact:
            stack.enter_context(jax.default_matmul_precision("highest"))
        yield


def _with_shardings(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings
    )


def _shardings(abstract: Any) -> Any:
    return jax.tree.map(lambda x: x.sharding, abstract)
