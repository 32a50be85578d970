"""Against transformers on PyTorch: outputs of published weights, bit-exact round trips.

The measure is max|difference| <= 1e-5 * max(1, max|reference|) for each tensor at real tokens, in
float32 on the CPU.
"""

from __future__ import annotations

import os
import pathlib

import jax
import numpy as np
import pytest
from interop_models import VOCAB

from bertjax.interop import Published, read_checkpoint, write_huggingface
from bertjax.model.bert import BertModel
from bertjax.model.heads import (
    BertForClassification,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTagging,
)

torch = pytest.importorskip("torch", reason="parity needs the extra parity")
transformers = pytest.importorskip("transformers", reason="parity needs the extra parity")
pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
TEXTS = [  # short, medium and long; English and Chinese; alone and in pairs
    ("hello world", None),
    ("今天天气很好,我们去公园散步吧。", None),
    ("The quick brown fox jumps over the lazy dog near the river bank.", "It did not rain at all."),
    ("他昨天去了北京。", "The capital of China is Beijing, 中国的首都。"),
    ("a long text about nothing in particular, repeated many times over. " * 9, None),
    ("我们在学习自然语言处理和机器学习的方法。" * 5, "the end"),
]
ARCHITECTURES = {
    "BertModel": (),
    "BertForPreTraining": ("mlm", "nsp"),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("nsp",),
    "BertForSequenceClassification": ("classifier",),
    "BertForTokenClassification": ("tagger",),
    "BertForQuestionAnswering": ("span",),
}


def error(ours, reference, mask=None) -> float:
    """max|difference| / max(1, max|reference|) at real tokens."""
    ours, reference = np.asarray(ours), np.asarray(reference)
    if mask is not None:
        ours, reference = ours[mask.astype(bool)], reference[mask.astype(bool)]
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))


@pytest.fixture(scope="session")
def weights() -> pathlib.Path:
    folder = pathlib.Path(os.environ.get("BERTJAX_WEIGHTS", ""))
    if not (folder / "minilm" / "model.safetensors").exists():
        pytest.skip("BERTJAX_WEIGHTS names no folder with the published weights minilm, mlm_tiny")
    return folder


def batch(tokenizer, max_length: int) -> dict[str, np.ndarray]:
    """TEXTS as one padded batch with segments, from our tokenizer."""
    rows = []
    for first, second in TEXTS:
        ids = [tokenizer.cls_id, *tokenizer.encode(first).ids[: max_length // 2], tokenizer.sep_id]
        types = [0] * len(ids)
        if second:
            more = [*tokenizer.encode(second).ids, tokenizer.sep_id]
            ids, types = ids + more, types + [1] * len(more)
        rows.append((ids, types))
    length = max(len(ids) for ids, _ in rows)
    result = {
        name: np.zeros((len(rows), length), np.int32)
        for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    for i, (ids, types) in enumerate(rows):
        result["input_ids"][i, : len(ids)] = ids
        result["token_type_ids"][i, : len(ids)] = types
        result["attention_mask"][i, : len(ids)] = 1
    return result


def reference(model, inputs, **options):
    with torch.no_grad():
        tensors = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
        return model.eval()(**tensors, **options)


def logits_of(model: Published, inputs) -> tuple[np.ndarray, ...]:
    """The outputs of our model with the head that `model` has."""
    config, params = model.bert_config(), dict(model.params)
    args = (inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"])
    pooler = {"dense": {"kernel": np.zeros((config.hidden_size,) * 2, np.float32),
                        "bias": np.zeros(config.hidden_size, np.float32)}}  # fmt: skip
    params["bert"] = {"pooler": pooler} | params["bert"]
    if set(model.heads) & {"mlm", "nsp"}:
        module = BertForPreTraining(config)
        fresh = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, np.float32),
            jax.eval_shape(module.init, jax.random.key(0), *args)["params"],
        )
        params = {**{h: fresh[h] for h in ("mlm", "nsp")}, **params}
        mlm, nsp = jax.jit(module.apply)({"params": params}, *args)
        return np.asarray(mlm)[..., : config.vocab_size], np.asarray(nsp)[:, 0]
    if model.heads == ("classifier",):
        module = BertForClassification(config, len(model.labels))
    elif model.heads == ("tagger",):
        module = BertForTagging(config, len(model.labels))
    else:
        module = BertForQuestionAnswering(config)
    return jax.device_get(jax.jit(module.apply)({"params": params}, *args))


def test_published_encoder_against_pytorch(weights, record_property, capsys) -> None:
    model = read_checkpoint(str(weights / "minilm"))
    inputs = batch(model.tokenizer, 200)
    assert inputs["input_ids"].shape[1] > 100
    ours = jax.jit(
        lambda params, x, t, m: BertModel(model.bert_config()).apply(
            {"params": params}, x, t, m, output_hidden_states=True
        )
    )(model.params["bert"], *inputs.values())
    hf = transformers.BertModel.from_pretrained(weights / "minilm")
    theirs = reference(hf, inputs, output_hidden_states=True)
    mask = inputs["attention_mask"]
    errors = [
        error(ours.hidden_states[i], state, mask) for i, state in enumerate(theirs.hidden_states)
    ]
    pooled = error(ours.pooled[:, 0], theirs.pooler_output)
    means = [
        (np.asarray(x) * mask[..., None]).sum(1) / mask.sum(1)[:, None]
        for x in (ours.sequence, theirs.last_hidden_state)
    ]
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in means]
    cosines = float(np.abs(unit[0] @ unit[0].T - unit[1] @ unit[1].T).max())
    with capsys.disabled():
        print(
            f"\nminilm against PyTorch: hidden states {max(errors):.1e}, pooled {pooled:.1e}, "
            f"mean-pooled cosines {cosines:.1e}"
        )
    assert max(errors) <= TOLERANCE and pooled <= TOLERANCE and cosines <= TOLERANCE


def test_published_mlm_against_pytorch(weights, capsys) -> None:
    model = read_checkpoint(str(weights / "mlm_tiny"))
    inputs = batch(model.tokenizer, 200)
    hf = transformers.BertForMaskedLM.from_pretrained(weights / "mlm_tiny")
    theirs = reference(hf, inputs).logits
    found = error(logits_of(model, inputs)[0], theirs, inputs["attention_mask"])
    with capsys.disabled():
        print(f"\nmlm_tiny against PyTorch: MLM logits {found:.1e}")
    assert found <= TOLERANCE


def test_googles_toy_exported_gives_the_same_logits(real_data, tmp_path) -> None:
    model = read_checkpoint(str(real_data / "models" / "google_tf1_toy"))
    write_huggingface(tmp_path / "toy", model)
    hf = transformers.BertForPreTraining.from_pretrained(tmp_path / "toy")
    rng = np.random.default_rng(0)
    inputs = {
        "input_ids": rng.integers(0, 15, (3, 16)).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, (3, 16)).astype(np.int32),
        "attention_mask": (np.arange(16) < np.array([[16], [9], [3]])).astype(np.int32),
    }
    theirs = reference(hf, inputs)
    mlm, nsp = logits_of(model, inputs)
    assert error(mlm, theirs.prediction_logits, inputs["attention_mask"]) <= TOLERANCE
    assert error(nsp, theirs.seq_relationship_logits) <= TOLERANCE


def random_model(architecture: str, seed: int = 0, **sizes):
    """transformers' model with large random weights, so that differences would show."""
    torch.manual_seed(seed)
    defaults = {
        "vocab_size": len(VOCAB),
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
        "initializer_range": 0.3,
    }
    config = transformers.BertConfig(**(defaults | sizes))
    model = getattr(transformers, architecture)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "LayerNorm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def outputs_of(output) -> list[np.ndarray]:
    names = ("prediction_logits", "seq_relationship_logits", "logits", "start_logits", "end_logits")
    found = [getattr(output, name).numpy() for name in names if hasattr(output, name)]
    return found or [output.last_hidden_state.numpy()]


def same_state(one, other) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize(
    ("architecture", "act"),
    [*((name, "gelu") for name in ARCHITECTURES), ("BertForPreTraining", "gelu_new")],
)
def test_round_trip_through_transformers_keeps_every_bit(tmp_path, architecture, act) -> None:
    labelled = {"classifier", "tagger"} & set(ARCHITECTURES[architecture])
    hf = random_model(architecture, hidden_act=act, **({"num_labels": 5} if labelled else {}))
    hf.save_pretrained(tmp_path / "theirs")
    model = read_checkpoint(str(tmp_path / "theirs"))
    assert model.heads == ARCHITECTURES[architecture]
    assert model.coverage.left_over == ()
    assert write_huggingface(tmp_path / "ours", model) == architecture
    back = getattr(transformers, architecture).from_pretrained(tmp_path / "ours")
    assert same_state(hf, back)
    assert back.config.id2label == hf.config.id2label and back.config.hidden_act == act
    rng = np.random.default_rng(1)
    inputs = {
        "input_ids": rng.integers(0, len(VOCAB), (3, 20)).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, (3, 20)).astype(np.int32),
        "attention_mask": (np.arange(20) < np.array([[20], [11], [2]])).astype(np.int32),
    }
    theirs, again = outputs_of(reference(hf, inputs)), outputs_of(reference(back, inputs))
    assert all((a == b).all() for a, b in zip(theirs, again, strict=True))
    if architecture == "BertModel":
        return
    ours = logits_of(model, inputs)
    if len(model.heads) == 1 and set(model.heads) & {"mlm", "nsp"}:
        ours = [ours[("mlm", "nsp").index(model.heads[0])]]
    for a, b in zip(ours if isinstance(ours, (list, tuple)) else [ours], theirs, strict=True):
        mask = inputs["attention_mask"] if b.shape[:2] == (3, 20) else None
        assert error(a, b, mask) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_base_size_round_trip(tmp_path, architecture) -> None:
    sizes = dict(
        vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072, max_position_embeddings=512, initializer_range=0.02,
    )  # fmt: skip
    hf = random_model(architecture, **sizes)
    hf.save_pretrained(tmp_path / "theirs")
    model = read_checkpoint(str(tmp_path / "theirs"))
    assert model.coverage.expected == 199
    write_huggingface(tmp_path / "ours", model)
    back = getattr(transformers, architecture).from_pretrained(tmp_path / "ours")
    assert same_state(hf, back)


def test_the_exported_tokenizer_gives_the_same_ids(tmp_path, weights) -> None:
    model = read_checkpoint(str(weights / "minilm"))
    write_huggingface(tmp_path / "out", model)
    texts = [text for pair in TEXTS for text in pair if text] + ["the [MASK] world", "Café CAFÉ"]
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").unlink()
    built = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = model.tokenizer.encode_batch(texts)
    assert fast(texts, add_special_tokens=False)["input_ids"] == ours
    assert built(texts, add_special_tokens=False)["input_ids"] == ours
    pair = fast("hello world", "the end")
    assert pair["input_ids"][0] == 101 and pair["input_ids"].count(102) == 2
    assert pair["token_type_ids"] == [0] * 4 + [1] * 3
