"""The reference for benchmarks/finetune.py: transformers on PyTorch at the batches of bertjax.

    python tests/golden/finetune_reference.py TASK --data=FOLDER --weights=FOLDER [--seeds=0,1,2]
        [--config.KEY=VALUE ...]

Batches, in order, and scores are those of bertjax, so that only model, loss, optimizer and
training are compared. The figures of each seed go to finetune_reference.json beside this file
and are taken from there when data, weights and steps are the same. Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers

from bertjax import config as configs
from bertjax import start
from bertjax.main import FLAGS
from bertjax.tasks.finetune import FineTune
from bertjax.tasks.task import Rows

ROOT = pathlib.Path(__file__).parents[2]
STORE = pathlib.Path(__file__).with_suffix(".json")
# Recipe, data files (training, validation, test), other config values, the figure that counts.
TASKS: dict[str, tuple[str, tuple[str, ...], dict[str, Any], str]] = {
    "sst2": ("classify", ("en/sst2/train.tsv", "en/sst2/dev.tsv", "en/sst2/test.tsv"),
             {"data.text_column": "0", "data.label_column": "1", "data.seq_length": 64,
              "train.epochs": 2.0}, "test/accuracy"),
    "cola": ("classify:preset=cola", ("en/glue/CoLA/train.tsv", "en/glue/CoLA/dev.tsv", ""),
             {"data.seq_length": 64}, "validation/matthews"),
    "rte": ("classify:preset=rte", ("en/glue/RTE/train.tsv", "en/glue/RTE/dev.tsv", ""),
            {"data.seq_length": 256}, "validation/accuracy"),
    "stsb": ("classify:preset=stsb", ("en/stsb/stsb-en-train.csv", "en/stsb/stsb-en-dev.csv",
             "en/stsb/stsb-en-test.csv"), {"data.seq_length": 128}, "test/spearman"),
    "wnut17": ("tag", ("en/wnut17/wnut17train.conll", "en/wnut17/emerging.dev.conll",
               "en/wnut17/emerging.test.annotated"), {"data.seq_length": 128}, "test/entity_f1"),
    # At the batch and rate of the others 100 steps teach a small model next to nothing.
    "squad": ("answer", ("SQUAD", "en/xquad/xquad.en.json", ""),
              {"data.batch_size": 8, "optimizer.learning_rate": 1e-4}, "validation/f1"),
    # From random weights: there are no small published ones for Chinese.
    "chnsenticorp": ("classify", ("zh/chnsenticorp/train.tsv", "zh/chnsenticorp/dev.tsv",
                     "zh/chnsenticorp/test.tsv"),
                     {"data.vocab": "vocab/bert-base-chinese.vocab.txt", "model.num_layers": 2,
                      "model.hidden_size": 128, "model.num_heads": 2, "data.text_column": "text_a",
                      "data.seq_length": 128, "optimizer.learning_rate": 5e-4}, "test/accuracy"),
}  # fmt: skip
QUESTIONS = 1500


def squad_part(data: pathlib.Path, folder: pathlib.Path) -> str:
    """The first QUESTIONS questions of the 1.1 part whose paragraphs xquad does not have."""
    load = lambda name: json.loads((data / name).read_text())["data"]  # noqa: E731
    held_out = {
        " ".join(p["context"].split())
        for article in load("en/xquad/xquad.en.json")
        for p in article["paragraphs"]
    }
    kept, count = [], 0
    for article in load("en/squad/v1.1-part.json"):
        for paragraph in article["paragraphs"]:
            if " ".join(paragraph["context"].split()) in held_out or count >= QUESTIONS:
                continue
            paragraph = dict(paragraph, qas=paragraph["qas"][: QUESTIONS - count])
            count += len(paragraph["qas"])
            kept.append(paragraph)
    path = folder / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "part", "paragraphs": kept}]}))
    return str(path)


def run_of(
    args: argparse.Namespace, folder: pathlib.Path, extra: list[str], seed: int
) -> tuple[Any, str]:
    """The prepared run of a task with a seed, and its workdir in `folder`."""
    recipe, files, values, _ = TASKS[args.task]
    name, _, argument = recipe.partition(":")
    data = pathlib.Path(args.data)
    paths = [squad_part(data, folder) if f == "SQUAD" else f and str(data / f) for f in files]
    values = values | dict(zip(("data.train", "data.validation", "data.test"), paths, strict=True))
    if "data.vocab" in values:
        values["data.vocab"] = str(data / values["data.vocab"])
    else:
        values["init_from"] = args.weights
    values["seed"] = seed
    flags = [f"--config={ROOT / 'configs' / name}.py{':' + argument if argument else ''}"]
    flags += [f"--config.{key}={value}" for key, value in values.items()]
    workdir = str(folder / f"seed-{seed}")
    return start.prepare(configs.load([*flags, *extra], FLAGS), workdir), workdir


def reference_model(task: FineTune, weights: str, seed: int) -> torch.nn.Module:
    """The published weights with a fresh head of transformers, or all of it fresh."""
    transformers.set_seed(seed)
    names = {"classify": "SequenceClassification", "tag": "TokenClassification"}
    kind = getattr(transformers, f"BertFor{names.get(task.name, 'QuestionAnswering')}")
    classes = getattr(task.model, "num_classes", 2)
    if task.config.init_from:
        return kind.from_pretrained(weights, num_labels=classes)
    sizes = task.config.model
    return kind(transformers.BertConfig(
        vocab_size=sizes.vocab_size, hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_layers, num_attention_heads=sizes.num_heads,
        intermediate_size=sizes.intermediate_size, num_labels=classes,
    ))  # fmt: skip


def weights_digest(folder: str) -> str:
    """A digest of the published weights in a folder."""
    content = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


def tensors(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {name: torch.from_numpy(batch[name]).long() for name in names}


def reference_loss(model: torch.nn.Module, task: FineTune, batch: Any) -> torch.Tensor:
    """transformers' own loss of the real rows of a batch."""
    real = batch["weight"] > 0
    batch = {name: value[real] for name, value in batch.items()}
    if task.name == "answer":
        ends = {f"{s}_positions": torch.from_numpy(batch[s]).long() for s in ("start", "end")}
        return model(**tensors(batch), **ends).loss
    target = torch.from_numpy(batch["target"])
    regression = getattr(task, "problem_type", "") == "regression"
    return model(**tensors(batch), labels=target if regression else target.long()).loss


def reference_steps(
    task: FineTune, model: torch.nn.Module, batches: Iterator[Any], steps: int
) -> None:
    """Train like our optimizer: AdamW, no decay of biases and LayerNorms, warm-up and decay."""
    config = task.config.optimizer
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        (others if "LayerNorm" in name or "bias" in name else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay},
         {"params": others, "weight_decay": 0.0}],
        lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.epsilon,
    )  # fmt: skip
    warmup = config.warmup_steps or round(config.warmup_ratio * task.train_steps)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, task.train_steps)
    model.train()
    for step in range(steps):
        if step % 50 == 49:
            print(f"reference: step {step + 1} of {steps}", file=sys.stderr, flush=True)
        optimizer.zero_grad()
        reference_loss(model, task, next(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        schedule.step()


def reference_outputs(task: FineTune, model: torch.nn.Module, split: str) -> dict[str, np.ndarray]:
    """What task.outputs gives, from the reference."""
    parts: dict[str, list[np.ndarray]] = {}
    size = task.config.data.seq_length
    model.eval()
    for batch in task.eval_batches(split, Rows()):
        real = batch["weight"] > 0
        with torch.inference_mode():
            out = model(**tensors({name: value[real] for name, value in batch.items()}))
        more = (0, size - batch["input_ids"].shape[1])
        if task.name == "classify":
            found = {"logits": out.logits}
        elif task.name == "tag":
            best = out.logits.softmax(-1).max(-1)
            found = {"label": best.indices, "probability": best.values}
            found = {n: torch.nn.functional.pad(v, more) for n, v in found.items()}
        else:
            found = {"start": out.start_logits, "end": out.end_logits}
            found = {n: torch.nn.functional.pad(v, more, value=-1e30) for n, v in found.items()}
        for name, values in found.items():
            parts.setdefault(name, []).append(values.numpy())
    return {name: np.concatenate(values) for name, values in parts.items()}


def reference(args: argparse.Namespace, extra: list[str], seed: int) -> dict[str, float]:
    """Figures of transformers' run, from the store where they are there."""
    known = json.loads(STORE.read_text()) if STORE.exists() else {}
    key = " ".join([args.task, f"seed={seed}", *extra])
    with tempfile.TemporaryDirectory() as folder:
        task = run_of(args, pathlib.Path(folder), extra, seed)[0].task
        made_of = {"data": task.artifacts()["data"], "steps": task.train_steps}
        if task.config.init_from:
            made_of["weights"] = weights_digest(args.weights)
        if key in known and made_of.items() <= known[key].items():
            return known[key]["figures"]
        model = reference_model(task, args.weights, seed)
        reference_steps(task, model, task.train_batches(0, Rows()), task.train_steps)
        figures = {}
        for split in task.eval_splits:
            outputs = reference_outputs(task, model, split)
            for name, value in task.metrics(split, {"loss": 0.0}, outputs).items():
                if name != "loss":
                    figures[f"{split}/{name}"] = value
    # Read again: another task's run may have written meanwhile.
    known = json.loads(STORE.read_text()) if STORE.exists() else {}
    known[key] = made_of | {"figures": figures}
    STORE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return figures


def arguments(description: str) -> argparse.ArgumentParser:
    """What the benchmark and this script both ask for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument(
        "--seeds", default=[0, 1, 2], type=lambda text: [int(part) for part in text.split(",")]
    )
    return parser


def main() -> None:
    """Compute and print the figures of a task."""
    args, extra = arguments(__doc__.splitlines()[0]).parse_known_args()
    for seed in args.seeds:
        print(args.task, f"seed {seed}", json.dumps(reference(args, extra, seed)), flush=True)


if __name__ == "__main__":
    main()
