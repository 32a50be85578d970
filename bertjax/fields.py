"""Every config key with its default and meaning, and the tables of values that go together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Field:
    """One config key. `default` fixes the type; `choices` lists the allowed values."""

    key: str
    default: Any
    line: str
    choices: tuple[str, ...] = ()


FIELDS: tuple[Field, ...] = (
    Field("task", "pretrain", "what to train", ("pretrain", "classify", "tag", "answer")),
    Field("seed", 0, "seed of initialisation, data order, masks and dropout"),
    Field("init_from", "", "start from: a workdir, an Orbax step, a Hugging Face folder or hub "
          "name, a Google TF1 checkpoint"),
    Field("new_head", False, "with init_from: replace a head whose size differs by a fresh one"),
    Field("encoder_only", False, "with init_from: take the encoder alone, heads start afresh"),
    Field("smoke", False, "set by ':smoke': missing data is replaced by the embedded text"),
    # --- model
    Field("model.num_layers", 12, "L, transformer layers"),
    Field("model.hidden_size", 768, "H, width of the model"),
    Field("model.num_heads", 12, "A, attention heads; divides H"),
    Field("model.intermediate_size", 0, "F, width inside the feed-forward layers; 0 = 4H"),
    Field("model.vocab_size", 0, "V, real tokens of the vocabulary; 0 = the vocabulary's own"),
    Field("model.max_position_embeddings", 512, "rows of the position table: the longest input"),
    Field("model.type_vocab_size", 2, "segments"),
    Field("model.hidden_act", "gelu", "activation: gelu (exact, erf), gelu_tanh, relu, silu, tanh",
          ("gelu", "gelu_tanh", "relu", "silu", "tanh")),
    Field("model.hidden_dropout", 0.1, "dropout after embeddings and sublayers"),
    Field("model.attention_dropout", 0.1, "dropout of the attention weights"),
    Field("model.layer_norm_eps", 1e-12, "epsilon of every LayerNorm"),
    Field("model.initializer_range", 0.02, "standard deviation of the truncated normal"),
    Field("model.dtype", "float32", "dtype of the computation; parameters stay float32",
          ("float32", "bfloat16", "float16")),
    Field("model.attention", "auto", "einsum, fused (needs attention_dropout 0), or auto",
          ("auto", "einsum", "fused")),
    Field("model.remat", "none", "what the backward pass recomputes", ("none", "dots", "full")),
    # --- data
    Field("data.source", "", "pretraining corpus: a prepared folder, or any source that "
          "bertjax.prepare reads (python_docs, files, tfds:..., hub:...)"),
    Field("data.vocab", "", "a vocabulary (file or folder), or train:SIZE; '' = the corpus's own"),
    Field("data.lower_case", True, "lower-case and strip accents, for a vocabulary that is learnt; "
          "a given one decides by its settings or tokens, and False turns it off"),
    Field("data.language", "en", "language, for sentence ends and for how answers are scored (zh: "
          "as CMRC 2018)"),
    Field("data.held_out", 0.05, "share of documents held out when a raw source is prepared"),
    Field("data.seq_length", 128, "S, tokens a row"),
    Field("data.batch_size", 256, "rows a training step over all devices (global)"),
    Field("data.eval_batch_size", 0, "rows an evaluation step; 0 = data.batch_size"),
    Field("data.eval_examples", 0, "held-out examples to evaluate, where there are fewer cut "
          "anew from the same text; 0 = each once"),
    Field("data.mask_rate", 0.15, "share of tokens to predict in training; evaluation uses 0.15"),
    Field("data.max_predictions", 0, "most predictions a row; 0 = no limit beyond the rate"),
    Field("data.replace_mask", 0.8, "share of the chosen tokens shown as [MASK]"),
    Field("data.replace_random", 0.1, "share shown as a random token; the rest stays itself"),
    Field("data.whole_word", False, "mask whole words only"),
    Field("data.nsp", True, "sentence pairs with next-sentence prediction; else full sentences"),
    Field("data.packing", False, "several sequences a row, attention kept apart"),
    Field("data.workers", 0, "processes that assemble batches; 0 = a thread"),
    # --- data of fine-tuning
    Field("data.train", "", "fine-tuning: a labelled file (.tsv .csv .jsonl, CoNLL, SQuAD .json), "
          "tfds:NAME:SPLIT or hub:NAME:SPLIT"),
    Field("data.validation", "", "as data.train; further sets as SOURCE,NAME=SOURCE"),
    Field("data.test", "", "as data.validation; without labels it gets predictions only"),
    Field("data.header", "auto", "whether the first line of a .tsv or .csv names the columns",
          ("auto", "yes", "no")),
    Field("data.text_column", "text", "column of the text (tag: of the words), by name or number "
          "from 0; A|B = the first that is there"),
    Field("data.pair_column", "", "column of the second text; '' = none"),
    Field("data.label_column", "label", "column of the label; -1 = the last; of several labels "
          "A,B,... are columns of 0 and 1"),
    Field("data.problem_type", "single_label", "classify: one label, several at once, or a score",
          ("single_label", "multi_label", "regression")),
    Field("data.glue", "", "the GLUE task whose label names and submission files are meant"),
    Field("data.limit", 0, "training examples to draw by the seed; 0 = all"),
    Field("data.long_text", "head", "classify: what is read of a text that is too long; windows = "
          "all of it, scores averaged", ("head", "tail", "head_tail", "windows")),
    Field("data.window_overlap", 32, "tokens that neighbouring windows of a long text share"),
    Field("data.document_context", False, "tag: the sentences around one fill its row, unscored"),
    Field("data.length_buckets", True, "batches of like length, padded to their own longest row"),
    Field("data.max_question_tokens", 64, "answer: longer questions are cut, and counted"),
    Field("data.max_answer_tokens", 30, "answer: longest answer to look for"),
    Field("data.n_best", 20, "answer: candidates of each question that are kept"),
    Field("data.unanswerable", "auto", "answer: whether there may be no answer; auto = where some "
          "training questions have none", ("auto", "yes", "no")),
    Field("data.null_threshold", 0.0, "answer: no answer where its score leads by more than this"),
    # --- mesh
    Field("mesh.data", -1, "devices along the axis that splits the batch; -1 = what is left"),
    Field("mesh.fsdp", 1, "devices along the axis that splits batch, parameters and moments"),
    Field("mesh.tensor", 1, "devices along the axis that splits heads, feed-forward, vocabulary"),
    # --- optimizer
    Field("optimizer.name", "adam_google", "adam_google (no bias correction, as published), adamw "
          "(corrected), lamb", ("adam_google", "adamw", "lamb")),
    Field("optimizer.learning_rate", 1e-4, "peak learning rate"),
    Field("optimizer.warmup_steps", 0, "steps of linear warm-up"),
    Field("optimizer.warmup_ratio", 0.0, "warm-up as a share of all steps, instead of steps"),
    Field("optimizer.schedule", "google", "linear warm-up and decay to 0: google decays over all "
          "steps, so the peak is never reached; the other after the warm-up",
          ("google", "linear_after_warmup")),
    Field("optimizer.weight_decay", 0.01, "decoupled decay; never on biases and LayerNorms"),
    Field("optimizer.beta1", 0.9, "decay of the first moment"),
    Field("optimizer.beta2", 0.999, "decay of the second moment"),
    Field("optimizer.epsilon", 1e-6, "added to the root of the second moment"),
    Field("optimizer.grad_clip", 1.0, "largest global gradient norm; 0 = no clipping"),
    Field("optimizer.layer_decay", 1.0, "learning-rate factor from each layer to the one below"),
    # --- losses
    Field("loss.mlm", 1.0, "weight of the masked-language-model loss"),
    Field("loss.nsp", 1.0, "weight of the next-sentence loss"),
    # --- train
    Field("train.steps", 0, "training steps; 0 = by train.epochs"),
    Field("train.epochs", 0.0, "passes over the training data, where train.steps is 0"),
    Field("train.accumulate", 1, "microbatches a step; the result equals one large batch"),
    Field("train.log_every", 100, "steps between lines of metrics"),
    Field("train.eval_every", 0, "steps between evaluations; 0 = at the end only"),
    Field("train.on_nonfinite", "skip", "a step whose loss or gradient is not finite is skipped "
          "and counted (100 in a row end the run), or the run stops", ("skip", "stop")),
    Field("train.frozen_layers", 0, "fine-tuning: the embeddings and this many layers stay as they "
          "are"),
    Field("train.reinit_layers", 0, "fine-tuning: this many top layers, and the pooler, start "
          "afresh"),
    Field("train.class_weights", "", "classify: weights of the classes in the loss; balanced, or "
          "LABEL=WEIGHT,..."),
    Field("train.metric", "", "fine-tuning: the validation figure that the best checkpoint is "
          "chosen by; '' = the task's own"),
    Field("train.patience", 0, "fine-tuning: stop after this many evaluations without a better "
          "figure; 0 = never. Evaluates each epoch where train.eval_every is 0"),
    Field("train.seeds", 1, "fine-tuning: runs with seeds seed, seed + 1, ...; median and spread"),
    Field("train.deterministic", False, "GPUs: reproducible kernels, at some cost"),
    Field("train.profile", "", "steps to profile, as FIRST:LAST; the trace goes to the workdir"),
    Field("train.compile_cache", "", "folder of the persistent compilation cache; '' = "
          "~/.cache/bertjax, none = no cache"),
    # --- checkpoint
    Field("checkpoint.every", 1000, "steps between checkpoints; 0 = at the end only"),
    Field("checkpoint.every_seconds", 0.0, "seconds between checkpoints, too; 0 = by steps alone"),
    Field("checkpoint.keep", 3, "newest checkpoints to keep (the best is kept apart)"),
    Field("checkpoint.keep_every", 0, "keep every checkpoint at multiples of this many steps"),
    # --- ablations (docs/ablations.md); no run of its own reads them
    Field("ablate.variants", "", "settings to compare, as 'L=2,H=128,A=2; NAME: L=4,H=256,A=4'"),
    Field("ablate.grid", "", "values to combine, as 'optimizer.learning_rate=1e-4,3e-4; seed=0,1'"),
    Field("ablate.impossible", "refuse", "a cell that makes no model", ("refuse", "skip")),
    Field("ablate.budget", "steps", "what all cells get equally", ("steps", "tokens", "flops")),
    Field("ablate.amount", 0.0, "tokens or training FLOPs a cell; 0 = those of the first cell"),
    Field("ablate.finetune", "", "tasks, as 'mrpc; sst2' (glue = all nine), 'NAME: KEY=VALUE,...'"),
    Field("ablate.finetune_grid", "", "as ablate.grid, of each fine-tuning after a pretraining"),
)  # fmt: skip
# Flags by which the processes of one run find each other; found by themselves under Slurm, GKE and
# on TPU VMs.
PROCESSES = (
    Field("coordinator", "", "several processes: HOST:PORT of process 0"),
    Field("num_processes", 0, "several processes: how many"),
    Field("process_id", -1, "several processes: which one this is, from 0"),
    Field("init_timeout", 300.0, "seconds to wait until all processes are there"),
)
BY_KEY: Mapping[str, Field] = {field.key: field for field in FIELDS}

# L, H, A of the published sizes (Devlin et al. 2019; Turc et al. 2019 for the small ones).
SIZES: Mapping[str, Mapping[str, int]] = {
    name: {"num_layers": layers, "hidden_size": hidden, "num_heads": heads}
    for name, layers, hidden, heads in (
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    )
}
# Fields of the model that a checkpoint decides; the others may differ from it.
SIZE_KEYS = (
    "num_layers", "hidden_size", "num_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps",
)  # fmt: skip
# What ':smoke' sets: any config in about a minute on a laptop's CPU.
SMOKE: Mapping[str, Any] = {
    "smoke": True,
    "model.num_layers": 2, "model.hidden_size": 64, "model.num_heads": 2,
    "model.intermediate_size": 128, "model.vocab_size": 0, "model.max_position_embeddings": 64,
    "data.seq_length": 64, "data.batch_size": 16, "data.eval_batch_size": 16,
    "data.eval_examples": 64, "data.max_predictions": 0,
    "data.window_overlap": 8, "data.max_question_tokens": 16, "data.length_buckets": False,
    "mesh.data": -1, "mesh.fsdp": 1, "mesh.tensor": 1,
    "train.steps": 20, "train.accumulate": 1, "train.log_every": 5, "train.eval_every": 10,
    "train.seeds": 1, "optimizer.warmup_steps": 2, "optimizer.warmup_ratio": 0.0,
    "checkpoint.every": 10,
}  # fmt: skip
# What every fine-tuning recipe begins with (Devlin et al. 2019, A.3; Mosbach et al. 2021 for the
# bias-corrected Adam).
FINETUNE: Mapping[str, Any] = {
    "data.batch_size": 32, "data.eval_batch_size": 64,
    "optimizer.name": "adamw", "optimizer.learning_rate": 5e-5, "optimizer.warmup_ratio": 0.1,
    "optimizer.schedule": "linear_after_warmup",
    "train.epochs": 3.0, "train.log_every": 50, "checkpoint.every": 0, "checkpoint.keep": 1,
}  # fmt: skip
MODES = ("train", "evaluate", "summary")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as dotted keys."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result
