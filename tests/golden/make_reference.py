"""Makes reference.npz: what transformers on PyTorch computes for a small BERT with known weights.

Run with the extra parity installed:  python tests/golden/make_reference.py
Weights are not stored: `weights` draws them again, name by name.
"""

from __future__ import annotations

import pathlib

import numpy as np

FILE = pathlib.Path(__file__).parent / "reference.npz"
SIZES = {
    "vocab_size": 61, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 24, "type_vocab_size": 2,
}  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    """Every tensor of BertForPreTraining by its published name, float32, from one seed."""
    hidden, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    shapes = {
        "bert.embeddings.word_embeddings.weight": (SIZES["vocab_size"], hidden),
        "bert.embeddings.position_embeddings.weight": (SIZES["max_position_embeddings"], hidden),
        "bert.embeddings.token_type_embeddings.weight": (SIZES["type_vocab_size"], hidden),
        "bert.embeddings.LayerNorm.weight": (hidden,),
        "bert.embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(SIZES["num_layers"]):
        name = f"bert.encoder.layer.{layer}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value",
                     "attention.output.dense"):  # fmt: skip
            shapes |= {f"{name}.{part}.weight": (hidden, hidden), f"{name}.{part}.bias": (hidden,)}
        shapes |= {
            f"{name}.intermediate.dense.weight": (inner, hidden),
            f"{name}.intermediate.dense.bias": (inner,),
            f"{name}.output.dense.weight": (hidden, inner),
            f"{name}.output.dense.bias": (hidden,),
        }
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{name}.{part}.{kind}": (hidden,) for kind in ("weight", "bias")}
    shapes |= {
        "bert.pooler.dense.weight": (hidden, hidden),
        "bert.pooler.dense.bias": (hidden,),
        "cls.predictions.transform.dense.weight": (hidden, hidden),
        "cls.predictions.transform.dense.bias": (hidden,),
        "cls.predictions.transform.LayerNorm.weight": (hidden,),
        "cls.predictions.transform.LayerNorm.bias": (hidden,),
        "cls.predictions.bias": (SIZES["vocab_size"],),
        "cls.seq_relationship.weight": (2, hidden),
        "cls.seq_relationship.bias": (2,),
    }
    rng = np.random.default_rng(20191011)
    return {
        name: (rng.normal(0, 0.3, shape) + ("LayerNorm.weight" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def inputs() -> dict[str, np.ndarray]:
    """Three padded rows of two segments, [B, S] int64."""
    rng = np.random.default_rng(7)
    lengths = np.array([20, 13, 2])[:, None]
    column = np.arange(20)
    mask = (column < lengths).astype(np.int64)
    return {
        "input_ids": rng.integers(1, SIZES["vocab_size"], mask.shape) * mask,
        "token_type_ids": (column >= lengths // 2) * mask,
        "attention_mask": mask,
    }


def main() -> None:
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=SIZES["vocab_size"], num_hidden_layers=SIZES["num_layers"],
        hidden_size=SIZES["hidden_size"], num_attention_heads=SIZES["num_heads"],
        intermediate_size=SIZES["intermediate_size"],
        max_position_embeddings=SIZES["max_position_embeddings"],
        type_vocab_size=SIZES["type_vocab_size"],
    )  # fmt: skip
    model = transformers.BertForPreTraining._from_config(config, attn_implementation="eager").eval()
    state = {name: torch.from_numpy(value) for name, value in weights().items()}
    loaded = model.load_state_dict(state, strict=False)
    assert not loaded.unexpected_keys, loaded
    model.tie_weights()
    given = {name: torch.from_numpy(value) for name, value in inputs().items()}
    with torch.no_grad():
        out = model(**given, output_hidden_states=True, output_attentions=True)
        pooled = model.bert(**given).pooler_output
    np.savez_compressed(
        FILE,
        hidden_states=torch.stack(out.hidden_states).numpy(),
        attentions=torch.stack(out.attentions).numpy(),
        pooled=pooled.numpy(),
        mlm_logits=out.prediction_logits.numpy(),
        nsp_logits=out.seq_relationship_logits.numpy(),
        versions=np.array(
            [f"torch {torch.__version__}", f"transformers {transformers.__version__}"]
        ),
    )
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
