"""Fine-tuning beside transformers on PyTorch: the same data, batches and hyperparameters.

    python benchmarks/finetune.py TASK --data=FOLDER --weights=FOLDER [--seeds=3]
        [--side=both|ours|reference] [--out=FILE] [--speed=STEPS] [--config.KEY=VALUE ...]

TASK is a row of docs/finetuning.md: sst2, cola, rte, stsb, wnut17, squad. Each side trains from the
same published weights and prints a line of figures for each seed and their median. The
reference takes its batches, in order, and its scores from bertjax, so that only model, loss,
optimizer and training are compared; its results go to --out as JSON and are read from there when
they are asked for again. --speed only times so many steps of each side, at the same batches, and
ours padded to length 128. Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch
import transformers

from bertjax import config as configs
from bertjax import start
from bertjax.main import FLAGS
from bertjax.parallel.mesh import make_mesh, to_global
from bertjax.tasks.finetune import FineTune
from bertjax.tasks.task import Rows
from bertjax.train import loop
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import abstract_params, create_state, make_train_step

ROOT = pathlib.Path(__file__).parents[1]
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
    "squad": ("answer", ("SQUAD", "en/xquad/xquad.en.json", ""), {}, "validation/f1"),
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


def run_of(args: argparse.Namespace, folder: pathlib.Path, extra: list[str], seed: int) -> Any:
    """The prepared run of a task with a seed, in a workdir of its own."""
    recipe, files, values, _ = TASKS[args.task]
    name, _, argument = recipe.partition(":")
    data = pathlib.Path(args.data)
    paths = [squad_part(data, folder) if f == "SQUAD" else f and str(data / f) for f in files]
    values = values | dict(zip(("data.train", "data.validation", "data.test"), paths, strict=True))
    values |= {"init_from": args.weights, "seed": seed}
    flags = [f"--config={ROOT / 'configs' / name}.py{':' + argument if argument else ''}"]
    flags += [f"--config.{key}={value}" for key, value in values.items()]
    workdir = str(folder / f"seed-{seed}")
    return start.prepare(configs.load([*flags, *extra], FLAGS), workdir), workdir


def ours(args: argparse.Namespace, extra: list[str], seed: int) -> dict[str, float]:
    """Figures of our run."""
    with tempfile.TemporaryDirectory() as folder:
        run, workdir = run_of(args, pathlib.Path(folder), extra, seed)
        return loop.train(
            run.config, run.task, workdir, mesh=run.mesh, load_initial=run.load_initial
        )


def reference_model(task: FineTune, weights: str, seed: int) -> torch.nn.Module:
    """The published weights with a fresh head of transformers."""
    transformers.set_seed(seed)
    names = {"classify": "SequenceClassification", "tag": "TokenClassification"}
    kind = getattr(transformers, f"BertFor{names.get(task.name, 'QuestionAnswering')}")
    return kind.from_pretrained(weights, num_labels=getattr(task.model, "num_classes", 2))


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
    for _ in range(steps):
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
    """Figures of transformers' run, from --out where they are there."""
    store = pathlib.Path(args.out)
    known = json.loads(store.read_text()) if store.exists() else {}
    key = " ".join([args.task, f"seed={seed}", *extra])
    if key in known:
        return known[key]
    with tempfile.TemporaryDirectory() as folder:
        task = run_of(args, pathlib.Path(folder), extra, seed)[0].task
        model = reference_model(task, args.weights, seed)
        reference_steps(task, model, task.train_batches(0, Rows()), task.train_steps)
        figures = {}
        for split in task.eval_splits:
            outputs = reference_outputs(task, model, split)
            for name, value in task.metrics(split, {"loss": 0.0}, outputs).items():
                figures[f"{split}/{name}"] = value
    known[key] = figures
    store.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return figures


def our_speed(args: argparse.Namespace, extra: list[str], steps: int) -> tuple[float, FineTune]:
    """Examples a second of our steps, every shape compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        run, _ = run_of(args, pathlib.Path(folder), extra, 0)
    task, mesh = run.task, make_mesh(-1, 1, 1)
    abstract = abstract_params(task, mesh)
    schedule = make_schedule(task.config.optimizer, task.train_steps)
    optimizer = make_optimizer(task.config.optimizer, schedule, abstract)
    state = create_state(task, optimizer, mesh, jax.random.key(0), run.load_initial(abstract))
    step = make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
    source = task.train_batches(0, Rows())
    batches = [next(source) for _ in range(steps)]
    for batch in {b["input_ids"].shape: b for b in batches}.values():
        state, _ = step(state, to_global(mesh, batch))
    began = time.monotonic()
    for batch in batches:
        state, metrics = step(state, to_global(mesh, batch))
    jax.block_until_ready(metrics)
    return steps * task.config.data.batch_size / (time.monotonic() - began), task


def speed(args: argparse.Namespace, extra: list[str]) -> None:
    """Print examples a second of both sides and their ratios."""
    rate, task = our_speed(args, extra, args.speed)
    fixed = [*extra, "--config.data.length_buckets=False", "--config.data.seq_length=128"]
    padded, _ = our_speed(args, fixed, args.speed)
    model = reference_model(task, args.weights, 0)
    reference_steps(task, model, task.train_batches(0, Rows()), 3)
    began = time.monotonic()
    reference_steps(task, model, task.train_batches(0, Rows()), args.speed)
    other = args.speed * task.config.data.batch_size / (time.monotonic() - began)
    print(f"examples a second: {rate:.1f}, padded to 128 {padded:.1f}, reference {other:.1f}")
    print(f"ratios: to padding {rate / padded:.2f}, to the reference {rate / other:.2f}")


def main() -> None:
    """Print the row of a task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--side", choices=("both", "ours", "reference"), default="both")
    parser.add_argument("--out", default=str(ROOT / "tests/golden/finetune_reference.json"))
    parser.add_argument("--speed", type=int, default=0, metavar="STEPS")
    args, extra = parser.parse_known_args()
    if args.speed:
        return speed(args, extra)
    figure = TASKS[args.task][-1]
    for name, side in (("ours", ours), ("reference", reference)):
        if args.side not in ("both", name):
            continue
        values = [side(args, extra, seed)[figure] for seed in range(args.seeds)]
        shown = ", ".join(f"{value:.4f}" for value in values)
        median = statistics.median(values)
        print(f"{args.task} {figure} {name}: median {median:.4f} of {shown}", flush=True)


if __name__ == "__main__":
    main()
