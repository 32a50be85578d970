"""Training against transformers on PyTorch: gradients of one batch, and fifty steps.

Same weights, same batches, no dropout, float32. A gradient agrees within 1e-5 of its tensor's
largest entry; tensors whose reference gradient is below 1e-6 of the global norm (the key biases,
whose true gradient is 0: what both have there is rounding) within that. Fifty losses agree within
1e-4 relative.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from helpers import MaskedTask, bert_config, start

from bertjax.interop import Published, read_checkpoint
from bertjax.interop.names import HUGGINGFACE, get, import_tensor, tensors_of
from bertjax.train.step import create_state

torch = pytest.importorskip("torch", reason="parity needs the extra parity")
transformers = pytest.importorskip("transformers", reason="parity needs the extra parity")
pytestmark = pytest.mark.parity

STEPS = 50
RATE = 1e-3


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> tuple[torch.nn.Module, Published]:
    """A random model of transformers, its noise large enough to matter, and its import."""
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=200, num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
            intermediate_size=128, max_position_embeddings=16, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("reference")
    model.save_pretrained(folder)
    return model.train(), read_checkpoint(str(folder))


def task_of(published: Published) -> MaskedTask:
    assert dataclasses.asdict(bert_config())["hidden_size"] == published.config["hidden_size"]
    return MaskedTask(bert_config())


def batch_of(task: MaskedTask, step: int) -> dict[str, np.ndarray]:
    """A batch without id 0 at real tokens: the reference gives [PAD] no gradient as an input."""
    batch = task.batch(step)
    return batch | {"input_ids": np.maximum(batch["input_ids"], 1)}


def reference_loss(model: torch.nn.Module, batch: dict[str, np.ndarray]) -> torch.Tensor:
    """The loss of our definition from the reference's logits: mean over scored places, plus NSP."""
    given = {k: torch.from_numpy(v).long() for k, v in batch.items() if k != "masked_weights"}
    out = model(
        input_ids=given["input_ids"],
        token_type_ids=given["token_type_ids"],
        attention_mask=given["attention_mask"],
    )
    rows = torch.arange(len(given["input_ids"]))[:, None]
    logits = out.prediction_logits[rows, given["masked_positions"]]
    weights = torch.from_numpy(batch["masked_weights"])
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), given["masked_labels"].flatten(), reduction="none"
    )
    nsp = torch.nn.functional.cross_entropy(
        out.seq_relationship_logits, given["nsp_labels"].flatten()
    )
    return (each * weights.flatten()).sum() / weights.sum() + nsp


def test_gradients_equal_the_reference(reference):
    model, published = reference
    task = task_of(published)
    batch = batch_of(task, 0)
    model.zero_grad()
    loss = reference_loss(model, batch)
    loss.backward()
    grads = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    # The tied decoder shares the embedding's gradient and the stored copy of its bias.
    grads.setdefault("cls.predictions.bias", grads.get("cls.predictions.decoder.bias"))

    def ours(params):
        means = task.losses(params, batch, dropout_key=None)
        return sum(s / w for s, w in (means["mlm_loss"], means["nsp_loss"]))

    value, gradient = jax.jit(jax.value_and_grad(ours))(published.params)
    assert float(value) == pytest.approx(loss.item(), rel=1e-6)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in grads.values()))
    worst = 0.0
    for tensor in tensors_of(("mlm", "nsp")):
        expected = import_tensor(tensor, grads, HUGGINGFACE, 2)
        found = np.asarray(get(gradient, tensor.path))
        difference, largest = np.abs(found - expected).max(), np.abs(expected).max()
        if largest < 1e-6 * norm:
            assert tensor.path.endswith("key/bias") and difference < 1e-6 * norm, tensor.path
            continue
        worst = max(worst, difference / largest)
        assert difference <= 1e-5 * largest, tensor.path
    print(f"gradients: largest difference {worst:.1e} of the tensor's largest entry")


def test_fifty_steps_follow_the_reference(reference):
    model, published = reference
    task = task_of(published)
    task.train_steps = STEPS
    run = start(
        task, name="adamw", learning_rate=RATE, epsilon=1e-6, schedule="linear_after_warmup",
        warmup_steps=5, grad_clip=1.0,
    )  # fmt: skip
    run.state = create_state(task, run.optimizer, run.mesh, jax.random.key(0), published.params)
    decayed = [p for n, p in model.named_parameters() if "LayerNorm" not in n and "bias" not in n]
    others = [p for n, p in model.named_parameters() if "LayerNorm" in n or "bias" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=RATE, betas=(0.9, 0.999), eps=1e-6,
    )  # fmt: skip
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 5, STEPS)
    worst = 0.0
    for step in range(STEPS):
        batch = batch_of(task, step % 4)
        optimizer.zero_grad()
        loss = reference_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        metrics = run.take(batch)
        difference = abs(float(metrics["loss"]) - loss.item()) / loss.item()
        worst = max(worst, difference)
        assert difference <= 1e-4, f"step {step}: {float(metrics['loss'])} and {loss.item()}"
    assert loss.item() < 4.0  # it has learned: a fresh model of this vocabulary stands at 6
    print(f"{STEPS} steps: largest relative difference of a loss {worst:.1e}")
