"""Sentences a second of `embed` against transformers on PyTorch, in one run, float32.

    python benchmarks/embed.py FOLDER [--texts=FILE] [--sentences=1000] [--batch=32]

FOLDER is a Hugging Face folder such as all-MiniLM-L6-v2. Both sides mean-pool the same sentences
of mixed lengths, tokenisation included, with the same number of rows a batch, warm (every shape
was seen once). PyTorch is measured twice: in the order of the texts, as a plain loop does it, and
sorted by length. The sides take turns, `--repeats` times; the best of each counts. Needs the extra
`parity`.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import time

import numpy as np
import torch
import transformers

import bertjax
from bertjax import inference
from bertjax.inference import batching


def mixed_sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of 4 to 160 words: many short ones, some long ones."""
    words = ("the", "a", "dog", "fox", "house", "river", "green", "small", "runs", "near", "not")
    rng = random.Random(seed)
    lengths = (min(160, 4 + int(rng.expovariate(1 / 20))) for _ in range(count))
    return [" ".join(rng.choices(words, k=length)) for length in lengths]


def torch_vectors(model, tokenizer, texts: list[str], batch: int, by_length: bool) -> np.ndarray:
    """Mean-pooled vectors [N, H] of transformers' model."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i])) if by_length else None
    order = order or list(range(len(texts)))
    result = np.zeros((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            chunk = order[start : start + batch]
            inputs = tokenizer(
                [texts[i] for i in chunk], padding=True, truncation=True, return_tensors="pt"
            )
            hidden = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None]
            result[chunk] = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    return result


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--texts", help="a sentence a line; default: generated ones")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    texts = mixed_sentences(args.sentences)
    if args.texts:
        lines = pathlib.Path(args.texts).read_text(encoding="utf-8").splitlines()
        texts = [line for line in lines if line.strip()][: args.sentences]
    batching.MAX_ROWS = args.batch
    bert = bertjax.load(args.folder)
    model = transformers.BertModel.from_pretrained(args.folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    sides = {
        "bertjax": lambda: np.stack(list(inference.embed(bert, texts))),
        "PyTorch, in order": lambda: torch_vectors(model, tokenizer, texts, args.batch, False),
        "PyTorch, by length": lambda: torch_vectors(model, tokenizer, texts, args.batch, True),
    }
    start = time.perf_counter()
    vectors = {name: side() for name, side in sides.items()}  # compiles
    print(f"first round, with compilation: {time.perf_counter() - start:.1f} s")
    difference = np.abs(vectors["bertjax"] - vectors["PyTorch, in order"]).max()
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(args.repeats):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            best[name] = min(best[name], time.perf_counter() - start)
    tokens = bert.tokenizer.encode_batch(texts)
    lengths = np.array([len(ids) + 2 for ids in tokens])
    print(
        f"{len(texts)} sentences of {lengths.min()} to {lengths.max()} tokens (mean "
        f"{lengths.mean():.0f}), {args.batch} a batch, largest difference {difference:.1e}"
    )
    for name, seconds in best.items():
        print(
            f"{name:20} {len(texts) / seconds:8.1f} sentences/s   bertjax / it = "
            f"{seconds / best['bertjax']:.2f}"
        )


if __name__ == "__main__":
    main()
