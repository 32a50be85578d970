"""What predict prints for published models against BERT written out in NumPy, float64.

Nothing of bertjax computes the expected values: the weights are read by their published names and
the texts are words that the vocabulary holds whole.
"""

from __future__ import annotations

import json
import math
import os
import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax import predict


@pytest.fixture(params=["mlm_tiny", "minilm"])
def folder(request) -> pathlib.Path:
    root = os.environ.get("BERTJAX_WEIGHTS")
    if not root or not (pathlib.Path(root) / request.param).is_dir():
        pytest.skip("BERTJAX_WEIGHTS names no folder with the published models")
    return pathlib.Path(root) / request.param


class NumpyBert:
    """The published equations (Devlin et al., 2019), one text at a time."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.weights = {
            n.removeprefix("bert.").replace("gamma", "weight").replace("beta", "bias"): a.astype(
                np.float64
            )
            for n, a in weights.items()
        }
        self.ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]

    def dense(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def encode(self, text: str) -> list[int]:
        return [self.ids[word] for word in f"[CLS] {text} [SEP]".split()]

    def hidden(self, ids: list[int]) -> np.ndarray:
        """States of the last layer, [S, H]."""
        table = [
            self.weights[f"embeddings.{n}_embeddings.weight"]
            for n in ("word", "position", "token_type")
        ]
        x = table[0][ids] + table[1][: len(ids)] + table[2][0]
        x = self.norm(x, "embeddings.LayerNorm")
        heads = self.config["num_attention_heads"]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                np.stack(np.split(self.dense(x, f"{at}.attention.self.{n}"), heads, -1))
                for n in ("query", "key", "value")
            )
            scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
            attended = np.concatenate(list(softmax(scores) @ v), -1)
            attended = self.dense(attended, f"{at}.attention.output.dense")
            x = self.norm(x + attended, f"{at}.attention.output.LayerNorm")
            wide = gelu(self.dense(x, f"{at}.intermediate.dense"))
            x = self.norm(x + self.dense(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        return x

    def probabilities(self, ids: list[int], column: int) -> np.ndarray:
        """Of every token at a column, [V]."""
        x = gelu(self.dense(self.hidden(ids)[column], "cls.predictions.transform.dense"))
        x = self.norm(x, "cls.predictions.transform.LayerNorm")
        words = self.weights["embeddings.word_embeddings.weight"]
        return softmax(x @ words.T + self.weights["cls.predictions.bias"])


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def ask(capsys, *arguments: str) -> list[dict]:
    assert predict.main(arguments) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


TEXTS = ["the quick brown fox", "paris is the capital of france .", "中 国 is a large country"]


def test_mean_pooled_vectors(folder, capsys) -> None:
    bert = NumpyBert(folder)
    for answer in ask(capsys, "embed", f"--checkpoint={folder}", *TEXTS):
        expected = bert.hidden(bert.encode(answer["text"])).mean(0)
        gap = np.abs(np.array(answer["vector"]) - expected).max()
        assert gap <= 1e-5 * max(1, np.abs(expected).max())


def test_probabilities_and_pseudo_log_likelihoods(folder, capsys) -> None:
    if folder.name != "mlm_tiny":
        pytest.skip("it has no MLM head")
    bert, checkpoint = NumpyBert(folder), f"--checkpoint={folder}"
    text = "the capital of france is [MASK] ."
    (answer,) = ask(capsys, "fill-mask", checkpoint, "--top_k=7", text)
    ids = bert.encode(text)
    expected = bert.probabilities(ids, ids.index(bert.ids["[MASK]"]))
    best = np.argsort(-expected)[:7]
    (found,) = answer["masks"]
    assert [bert.ids[candidate["token"]] for candidate in found] == best.tolist()
    np.testing.assert_allclose(
        [candidate["probability"] for candidate in found], expected[best], rtol=1e-4
    )
    (answer,) = ask(capsys, "score", checkpoint, TEXTS[1])
    ids, total = bert.encode(TEXTS[1]), 0.0
    for column in range(1, len(ids) - 1):
        masked = [*ids[:column], bert.ids["[MASK]"], *ids[column + 1 :]]
        total += math.log(bert.probabilities(masked, column)[ids[column]])
    assert answer["tokens"] == len(ids) - 2
    assert answer["log_likelihood"] == pytest.approx(total, rel=1e-5)
