"""Each fine-tuning task against transformers on PyTorch: gradients of one batch, and 100 steps.

Same weights, same batches, no dropout, float32, AdamW with warm-up and decay. The first loss agrees
within 1e-5 relative, a gradient within 1e-5 of its tensor's largest entry (tensors whose reference
gradient is below 1e-6 of the global norm: within that), 100 losses within 1e-3 relative.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from helpers_finetune import VOCAB, make, mean_losses, write, write_rows

from bertjax.interop import read_checkpoint
from bertjax.interop.names import HUGGINGFACE, get, import_tensor, tensors_of
from bertjax.parallel.mesh import make_mesh, to_global
from bertjax.tasks.finetune import FineTune
from bertjax.tasks.task import Rows
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import create_state, make_train_step

torch = pytest.importorskip("torch", reason="parity needs the extra parity")
transformers = pytest.importorskip("transformers", reason="parity needs the extra parity")
pytestmark = pytest.mark.parity

STEPS, WARMUP, RATE = 100, 10, 1e-3
HEADS = {"classify": "classifier", "tag": "tagger", "answer": "span"}
KINDS = ("single", "score", "tag", "answer")
ROWS = 24
# These programs run for moments: most of their time would go into compiling.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def words(draw: np.random.Generator, low: int = 2, high: int = 20) -> list[str]:
    plain = [piece for piece in VOCAB[5:] if piece.isalpha()]
    return list(draw.choice(plain, draw.integers(low, high)))


def task_of(kind: str, tmp_path: pathlib.Path) -> FineTune:
    draw = np.random.default_rng(0)
    options: dict[str, Any] = {
        "train__steps": STEPS, "model__hidden_size": 32, "model__num_layers": 2,
        "model__num_heads": 4, "model__intermediate_size": 64, "data__batch_size": 8,
        "data__length_buckets": False,
        "optimizer__learning_rate": RATE, "optimizer__warmup_steps": WARMUP,
    }  # fmt: skip
    if kind == "tag":
        sentences = (words(draw) for _ in range(ROWS))
        lines = ("".join(f"{w}\t{'B-X' if w < 'h' else 'O'}\n" for w in s) for s in sentences)
        path = write(tmp_path, "a.conll", "\n".join(lines))
        columns = {"data__text_column": "0", "data__label_column": "-1"}
        return make("tag", tmp_path, data__train=path, **columns, **options)
    if kind == "answer":
        paragraphs = []
        for number in range(ROWS):
            context = words(draw, 6, 40)
            answer = {"text": context[3], "answer_start": len(" ".join(context[:3])) + 1}
            qa = {"id": str(number), "question": f"who {context[2]}", "answers": [answer]}
            paragraphs.append({"context": " ".join(context), "qas": [qa]})
        path = write(tmp_path, "a.json", json.dumps({"data": [{"paragraphs": paragraphs}]}))
        return make("answer", tmp_path, data__train=path, **options)
    rows = []
    for _ in range(ROWS):
        text, pair = words(draw), words(draw, 1, 9)
        label = len(pair) / 2 if kind == "score" else "abc"[len(text) % 3]
        rows.append({"text": " ".join(text), "pair": " ".join(pair), "label": label})
    path = write_rows(tmp_path, "a.jsonl", rows)
    problem = "regression" if kind == "score" else "single_label"
    options |= {"data__pair_column": "pair", "data__problem_type": problem}
    return make("classify", tmp_path, data__train=path, **options)


def reference_of(task: FineTune, tmp_path: pathlib.Path) -> tuple[Any, Any]:
    """A random model of transformers for the task, its noise large enough to matter, and ours."""
    torch.manual_seed(0)
    kind = {"classify": "SequenceClassification", "tag": "TokenClassification"}
    config = transformers.BertConfig(
        vocab_size=len(VOCAB), num_hidden_layers=2, hidden_size=32, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=getattr(task.model, "num_classes", 2),
    )  # fmt: skip
    name = f"BertFor{kind.get(task.name, 'QuestionAnswering')}"
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "reference")
    params = dict(read_checkpoint(str(tmp_path / "reference")).params)
    if "pooler" not in params["bert"]:  # taggers and span models have none; ours is not used
        bert = dict(params["bert"])
        size = 32
        bert["pooler"] = {"dense": {"kernel": np.zeros((size, size), np.float32),
                                    "bias": np.zeros(size, np.float32)}}  # fmt: skip
        params["bert"] = bert
    return model.train(), params


def reference_loss(model: Any, task: FineTune, batch: Any) -> Any:
    """The loss of our definition, from the reference's logits."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    out = model(**{name: torch.from_numpy(batch[name]).long() for name in names})
    weight = torch.from_numpy(batch["weight"])
    cross_entropy = torch.nn.functional.cross_entropy
    if task.name == "answer":
        padding = torch.from_numpy(batch["attention_mask"]) == 0
        each = [
            cross_entropy(
                logits.masked_fill(padding, -1e30), torch.from_numpy(batch[side]).long(),
                reduction="none",
            )
            for side, logits in (("start", out.start_logits), ("end", out.end_logits))
        ]  # fmt: skip
        return sum((losses * weight).sum() / weight.sum() for losses in each) / 2
    target = torch.from_numpy(batch["target"])
    if task.name == "tag":
        return cross_entropy(out.logits.flatten(0, 1), target.flatten().long(), ignore_index=-100)
    if task.problem_type == "regression":
        losses = (out.logits[:, 0] - target) ** 2
    else:
        losses = cross_entropy(out.logits, target.long(), reduction="none")
    return (losses * weight).sum() / weight.sum()


def without_padding_gradient(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The reference gives [PAD] no gradient as an input, and here none is behind a mask either."""
    assert (batch["input_ids"][batch["attention_mask"] > 0] != 0).all()
    return batch


def check_gradients(task: FineTune, gradient: Any, model: Any) -> float:
    grads = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in grads.values()))
    worst = 0.0
    for tensor in tensors_of((HEADS[task.name],)):
        if any(name not in grads for name in tensor.names(HUGGINGFACE, 2)):
            assert tensor.path.startswith("bert/pooler")
            continue
        expected = import_tensor(tensor, grads, HUGGINGFACE, 2)
        found = np.asarray(get(gradient, tensor.path))
        difference, largest = np.abs(found - expected).max(), np.abs(expected).max()
        if largest < 1e-6 * norm:
            assert difference < 1e-6 * norm, tensor.path
            continue
        worst = max(worst, difference / largest)
        assert difference <= 1e-5 * largest, tensor.path
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_a_hundred_steps_follow_the_reference(kind, tmp_path):
    task = task_of(kind, tmp_path)
    model, params = reference_of(task, tmp_path)
    batches = task.train_batches(0, Rows())
    first = without_padding_gradient(next(batches))
    gradients = jax.value_and_grad(lambda p, b: mean_losses(task)(p, b)["loss"])
    compiled = jax.jit(gradients).lower(params, first).compile(QUICK)
    value, gradient = compiled(params, first)
    loss = reference_loss(model, task, first)
    loss.backward()
    assert float(value) == pytest.approx(loss.item(), rel=1e-5)
    worst = check_gradients(task, gradient, model)

    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    optimizer_config = task.config.optimizer
    schedule = make_schedule(optimizer_config, STEPS)
    optimizer = make_optimizer(optimizer_config, schedule, params)
    state = create_state(task, optimizer, mesh, jax.random.key(0), params)
    step = make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
    step = step.lower(state, to_global(mesh, first)).compile(QUICK)
    plain = ("LayerNorm", "bias")
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not any(x in n for x in plain)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(x in n for x in plain)], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-6)
    decay = transformers.get_linear_schedule_with_warmup(reference, WARMUP, STEPS)
    batches, far, losses = task.train_batches(0, Rows()), 0.0, []
    for number in range(STEPS):
        batch = next(batches)
        reference.zero_grad()
        loss = reference_loss(model, task, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        reference.step()
        decay.step()
        state, metrics = step(state, to_global(mesh, batch))
        losses.append(loss.item())
        difference = abs(float(metrics["loss"]) - loss.item()) / abs(loss.item())
        far = max(far, difference)
        assert difference <= 1e-3, f"step {number}: {float(metrics['loss'])} and {loss.item()}"
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])  # it has learnt
    print(f"{kind}: gradients within {worst:.1e}, losses of {STEPS} steps within {far:.1e}")
