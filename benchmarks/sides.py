"""What the speed and memory benchmarks compare with: other implementations' training steps.

Each side lives in a process of its own and takes one step for each line it reads, so that two
sides can run in turn in one benchmark. Hugging Face's Flax models need an older transformers than
the one of this project's extra 'parity'; they get a virtual environment of their own.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
FLAX_PACKAGES = ("transformers==4.57.6", "numpy<2.5")
VOCAB, PREDICTIONS = 30522, 20


def flax_python(extra: tuple[str, ...] = ()) -> str:
    """The Python of an environment with transformers' Flax models and this one's jax and flax."""
    import flax
    import jax
    import optax

    folder = pathlib.Path.home() / ".cache/bertjax/hf-flax" / f"py{sys.version_info.minor}"
    python = folder / "bin/python"
    wanted = [
        *FLAX_PACKAGES, f"jax=={jax.__version__}", f"flax=={flax.__version__}",
        f"optax=={optax.__version__}", *extra,
    ]  # fmt: skip
    done = folder / "installed.json"
    present = json.loads(done.read_text()) if done.exists() else []
    if not set(wanted) <= set(present):
        print(f"making {folder} with {' '.join(wanted)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
        done.write_text(json.dumps(wanted))
    return str(python)


class Side:
    """A process that takes one training step whenever it is asked to."""

    def __init__(self, name: str, python: str, arguments: list[str]) -> None:
        self.name = name
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [python, str(HERE / "sides.py"), *arguments], text=True, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ready(self) -> None:
        """Wait until it has compiled and warmed up."""
        self._read()

    def step(self) -> dict[str, float]:
        """{seconds, ...} of one step."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def batch(rows: int, length: int, seed: int = 0):
    """Token ids and the places to predict: numpy arrays [rows, length], [rows, PREDICTIONS]."""
    import numpy as np

    random = np.random.default_rng(seed)
    ids = random.integers(1000, VOCAB, (rows, length)).astype(np.int32)
    places = np.stack([random.permutation(length - 1)[:PREDICTIONS] + 1 for _ in range(rows)])
    return ids, places.astype(np.int32)


def ours(rows: int, length: int):
    """bertjax's training step on a batch of random tokens: () -> None takes one."""
    return ours_with_state(rows, length)[0]


def ours_with_state(rows: int, length: int):
    """`ours`, and () -> the state after the steps taken so far."""
    import jax
    import numpy as np

    from bertjax import cli
    from bertjax.parallel import mesh as meshes
    from bertjax.train import step as steps

    cli.keep_memory()  # as bertjax.main does
    task, mesh, optimizer, schedule = our_task(rows, length, "float32")
    state = steps.create_state(task, optimizer, mesh, jax.random.key(0))
    abstract = steps.abstract_state(task, optimizer, mesh)
    train_step = (
        steps.make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
        .lower(abstract, steps.abstract_batch(task, mesh))
        .compile()
    )
    ids, _ = batch(rows, length)
    ids[:, 0] = task.tokenizer.cls_id
    zeros = np.zeros((rows, 1), np.int32)
    inputs = {
        "input_ids": ids, "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids), "nsp_positions": zeros, "nsp_labels": zeros,
        "example": np.stack([np.zeros(rows), np.arange(rows)], 1).astype(np.uint32),
    }  # fmt: skip
    inputs = meshes.to_global(mesh, inputs)

    def take() -> None:
        nonlocal state
        state, metrics = train_step(state, inputs)
        jax.block_until_ready(metrics)

    return take, lambda: state


def our_task(rows: int, length: int, dtype: str, devices=None):
    """BERT-base pretraining without a corpus: (task, mesh, optimizer, schedule)."""
    from bertjax import config as configs
    from bertjax.parallel.mesh import make_mesh
    from bertjax.tasks import pretrain
    from bertjax.train.optimizer import make_optimizer, make_schedule
    from bertjax.train.step import abstract_params

    values = {
        "model.vocab_size": VOCAB, "model.dtype": dtype, "data.batch_size": rows,
        "data.seq_length": length, "data.max_predictions": PREDICTIONS, "train.steps": 1000,
    }  # fmt: skip
    config = configs.resolve(configs.update(configs.default_config(), values))
    task = pretrain.without_data(config)
    mesh = make_mesh(-1, 1, 1, devices)
    schedule = make_schedule(config.optimizer, 1000)
    optimizer = make_optimizer(config.optimizer, schedule, abstract_params(task, mesh))
    return task, mesh, optimizer, schedule


def flax_step(dtype):
    """transformers' Flax BERT-base: (model, optimizer, step function), as its example trains it:
    optax.adamw, cross entropy over every position's logits, dropout on."""
    import jax
    import jax.numpy as jnp
    import optax
    from transformers import BertConfig, FlaxBertForPreTraining

    model = FlaxBertForPreTraining(BertConfig(), seed=0, dtype=dtype, _do_init=False)
    optimizer = optax.adamw(1e-4, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)

    def loss(params, ids, labels, key):
        out = model(ids, params=params, dropout_rng=key, train=True)
        scored = labels >= 0
        each = optax.softmax_cross_entropy_with_integer_labels(
            out.prediction_logits.astype(jnp.float32), jnp.where(scored, labels, 0)
        )
        nsp = optax.softmax_cross_entropy_with_integer_labels(
            out.seq_relationship_logits.astype(jnp.float32), jnp.zeros(len(ids), jnp.int32)
        )
        return jnp.sum(each * scored) / jnp.sum(scored) + jnp.mean(nsp)

    def step(params, moments, ids, labels, key):
        key, dropout_key = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, ids, labels, dropout_key)
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, key, value

    return model, optimizer, step


def labels_of(ids, places):
    """[rows, length], -100 where nothing is predicted."""
    import numpy as np

    labels = np.full_like(ids, -100)
    np.put_along_axis(labels, places, np.take_along_axis(ids, places, 1), 1)
    return labels


def flax(rows: int, length: int):
    import jax
    import jax.numpy as jnp

    model, optimizer, step = flax_step(jnp.float32)
    params = model.init_weights(jax.random.key(0), (1, length))
    moments, key = optimizer.init(params), jax.random.PRNGKey(1)
    ids, places = batch(rows, length)
    labels = labels_of(ids, places)
    compiled = jax.jit(step, donate_argnums=(0, 1))

    def take() -> None:
        nonlocal params, moments, key
        params, moments, key, value = compiled(params, moments, ids, labels, key)
        value.block_until_ready()

    return take


def torch_side(rows: int, length: int, variant: str):
    """transformers' PyTorch BERT-base with fused AdamW. Variants: float32; bfloat16 (autocast);
    compile (torch.compile); masked (its MLM head on the predicted positions alone)."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids, places = batch(rows, length)
    labels = torch.from_numpy(labels_of(ids, places)).long()
    ids, index = torch.from_numpy(ids).long(), torch.from_numpy(places).long()
    nsp = torch.zeros(rows, dtype=torch.long)

    def whole() -> torch.Tensor:
        return model(input_ids=ids, labels=labels, next_sentence_label=nsp).loss

    def masked() -> torch.Tensor:
        out = model.bert(input_ids=ids)
        at = torch.arange(rows)[:, None]
        logits, pooled = model.cls(out.last_hidden_state[at, index], out.pooler_output)
        cross_entropy = torch.nn.functional.cross_entropy
        mlm = cross_entropy(logits.flatten(0, 1), labels[at, index].flatten())
        return mlm + cross_entropy(pooled, nsp)

    loss = masked if variant == "masked" else whole
    if variant == "compile":
        loss = torch.compile(loss)

    def take() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "bfloat16"):
            value = loss()
        value.backward()
        optimizer.step()
        value.item()

    return take


def matmul(rows: int, length: int):
    """Products of the model's own largest shape, about 50 ms of them."""
    import jax
    import jax.numpy as jnp

    a = jnp.ones((rows * length, 768), jnp.float32)
    b = jnp.ones((768, 3072), jnp.float32)
    product = jax.jit(jnp.matmul)

    def take() -> None:
        for _ in range(8):
            product(a, b).block_until_ready()

    return take


MATMUL_FLOPS_PER_ROW = 8 * 2 * 768 * 3072


def serve(name: str, rows: int, length: int) -> None:
    import time

    kind, _, variant = name.partition(":")
    sides = {"ours": ours, "flax": flax, "matmul": matmul}
    take = torch_side(rows, length, variant) if kind == "torch" else sides[kind](rows, length)
    for _ in range(2):
        take()
    print("{}", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.monotonic(), time.process_time()
        take()
        figures = {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
