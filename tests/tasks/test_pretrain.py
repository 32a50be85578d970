"""The pretraining task on small prepared corpora: its losses, masks, figures and refusals."""

from __future__ import annotations

import math
import pathlib

import flax.linen as nn
import jax
import numpy as np
import pytest

from bertjax import config as configs
from bertjax.data import builder
from bertjax.errors import UserError
from bertjax.parallel.mesh import make_mesh, to_global
from bertjax.tasks import corpus as corpora
from bertjax.tasks import make_task, prepare_data, pretrain
from bertjax.tasks.task import Rows
from bertjax.train.evaluation import Evaluator
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import abstract_params, create_state, make_train_step

WORDS = [
    *("river", "stone", "cloud", "iron", "bread", "light", "horse", "wheel", "paper", "garden"),
    *("winter", "summer", "green", "silver", "quiet", "heavy", "sudden", "gentle", "broken"),
    *("golden", "walks", "turns", "falls", "holds", "keeps", "finds", "loses", "opens"),
]


def text(documents: int, sentences: int, seed: int = 0) -> str:
    """Documents of random sentences, divided by blank lines; no two sentences are equal."""
    rng = np.random.default_rng(seed)
    return "\n\n".join(
        "\n".join(" ".join(rng.choice(WORDS, 6)) + "." for _ in range(sentences))
        for _ in range(documents)
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text(text(60, 6))
    out = folder / "prepared"
    builder.prepare(str(folder / "text.txt"), "train:200", out, held_out=0.2)
    return out


def config_of(corpus: pathlib.Path | str, **values):
    settings = {
        "data.source": str(corpus), "data.seq_length": 32, "data.batch_size": 16,
        "model.num_layers": 2, "model.hidden_size": 32, "model.num_heads": 2,
        "model.max_position_embeddings": 32, "train.steps": 10,
    }  # fmt: skip
    return configs.resolve(configs.update(configs.default_config(), settings | values))


def task_of(corpus, **values):
    return make_task(config_of(corpus, **values), workdir="unused")


def params_of(task, seed=0):
    return nn.meta.unbox(jax.jit(task.init_params)(jax.random.key(seed)))


def means(task, params, batch, train):
    def run(params, batch):
        return task.losses(params, task.inputs(batch, train=train), dropout_key=None)

    return {k: float(s / w) for k, (s, w) in jax.jit(run)(params, batch).items()}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data.vocab": "train:300"}, "config.data.vocab=train:300 .* has a vocabulary of its own"),
        ({"data.vocab": "VOCAB"}, "has a vocabulary of its own"),
        ({"data.lower_case": False}, "lower_case=False .* was prepared with True"),
        ({"data.language": "zh"}, "language=zh .* was prepared with en"),
        ({"data.held_out": 0.3}, "held_out=0.3 .* has its held-out documents"),
    ],
)
def test_what_a_prepared_corpus_has_decided_cannot_be_asked_for_otherwise(
    corpus, tmp_path, values, words
):
    other = tmp_path / "vocab.txt"
    other.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    values = {key: str(other) if value == "VOCAB" else value for key, value in values.items()}
    with pytest.raises(UserError, match=words):
        corpora.check_asked(config_of(corpus, **values), frozenset(values))
    corpora.check_asked(config_of(corpus, **values), frozenset())  # a config file's are defaults
    same = {"data.vocab": f"{corpus}/vocab.txt", "data.lower_case": True, "data.language": "en"}
    corpora.check_asked(config_of(corpus, **same), frozenset(same))
    corpora.check_asked(config_of(corpus, **{"data.vocab": ""}), frozenset(["data.vocab"]))


def test_a_fresh_model_knows_nothing(corpus):
    task = task_of(corpus)
    batch = next(task.train_batches(0, Rows()))
    found = means(task, params_of(task), batch, train=True)
    assert found["mlm_loss"] == pytest.approx(math.log(task.tokenizer.vocab_size), abs=0.2)
    assert found["nsp_loss"] == pytest.approx(math.log(2), abs=0.1)
    assert 0 <= found["mlm_accuracy"] <= 0.1


def test_batch_spec_is_what_comes(corpus):
    for values in ({}, {"data.whole_word": True}, {"data.packing": True}, {"data.nsp": False}):
        task = task_of(corpus, **values)
        batch = next(task.train_batches(0, Rows()))
        spec = task.batch_spec()
        assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
            k: (v.shape, np.dtype(v.dtype)) for k, v in spec.items()
        }, values


def test_evaluation_counts_every_example_once_whatever_the_batch(corpus):
    results = []
    for size in (1, 3, 16, 64):
        task = task_of(corpus, **{"data.eval_batch_size": size})
        mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
        evaluator = Evaluator(task, mesh, Rows(), print)
        results.append(evaluator.run(params_of(task), "validation"))
        weights = [b["weight"].sum() for b in task.eval_batches("validation", Rows())]
        assert sum(weights) == task._loaders["validation"].examples_per_epoch
    for result in results[1:]:
        assert result.keys() == results[0].keys()
        for name, value in result.items():
            assert value == pytest.approx(results[0][name], rel=1e-5), name


def test_a_run_says_what_it_trains_on_and_what_looks_wrong(tmp_path):
    documents = [
        "这是一个句子。那是另一个。\n他们来了。",
        "我们走了。\n天气很好。",
        "你好。\n再见。",
    ]
    (tmp_path / "text.txt").write_text("\n\n".join(documents * 9))
    out = builder.prepare(str(tmp_path / "text.txt"), "train:100", tmp_path / "out", language="zh")
    words = "whole-word masking of Chinese would mask single characters"
    for whole_word in (True, False):
        said = "\n".join(task_of(out, **{"data.whole_word": whole_word}).notes())
        assert "tokens to train on (train 18 documents, validation 9 documents)" in said
        assert "warning: 89 % of the documents repeat another one" in said
        assert (words in said) == whole_word


def test_a_held_out_set_without_pairs_is_evaluated_without_them(tmp_path):
    (tmp_path / "text.txt").write_text(text(60, 6))
    (tmp_path / "one.txt").write_text(text(1, 40, seed=1))
    held_out = builder.HeldOut(0.2, {"one": str(tmp_path / "one.txt")})
    out = builder.prepare(
        str(tmp_path / "text.txt"), "train:200", tmp_path / "out", held_out=held_out
    )
    task = task_of(out)
    assert [note for note in task.notes() if "split 'one': the corpus has one document" in note]
    evaluator = Evaluator(task, make_mesh(1, 1, 1, devices=jax.devices()[:1]), Rows(), print)
    params = params_of(task)
    both, alone = (evaluator.run(params, split) for split in ("validation", "one"))
    assert both.keys() - alone.keys() == {"nsp_loss", "nsp_accuracy"}
    assert alone["loss"] == alone["mlm_loss"] == pytest.approx(both["mlm_loss"], abs=0.3)
    results = {"validation": both, "one": alone}
    assert [
        line for line in task.finish("unused", params, results).split("\n") if "one: MLM" in line
    ]


def test_worse_than_counting_is_said_so():
    figures = {"mlm_loss": 5.5, "perplexity": 244.7, "unigram_loss": 5.0, "mlm_accuracy": 0.1}
    assert "0.500 ABOVE the unigram loss" in pretrain._summary("validation", figures)
    figures["mlm_loss"] = 4.5
    assert "0.500 below the unigram loss" in pretrain._summary("validation", figures)


def test_more_evaluation_examples_than_the_text_gives_are_cut_anew(corpus):
    few = task_of(corpus)._loaders["validation"].examples_per_epoch
    task = task_of(corpus, **{"data.eval_examples": 3 * few + 1})
    batches = list(task.eval_batches("validation", Rows()))
    kept = np.concatenate([b["example"][b["weight"] > 0] for b in batches])
    assert len({tuple(row) for row in kept}) == len(kept) == 3 * few + 1
    rows = np.concatenate([b["input_ids"][b["weight"] > 0] for b in batches])
    assert len({row.tobytes() for row in rows}) > 2 * few


def test_evaluation_masks_are_fixed_whatever_training_does(corpus):
    first = task_of(corpus)
    other = task_of(corpus, **{"seed": 5, "data.mask_rate": 0.4, "data.replace_mask": 0.5})
    batch = next(iter(first.eval_batches("validation", Rows())))
    again = next(iter(other.eval_batches("validation", Rows())))
    masked, repeated = first.inputs(batch, train=False), other.inputs(again, train=False)
    for name in masked:
        np.testing.assert_array_equal(masked[name], repeated[name])
    tokens = batch["attention_mask"].sum()
    assert 0.12 < masked["masked_weights"].sum() / tokens < 0.18
    shown = masked["input_ids"] == first.tokenizer.mask_id
    assert shown.sum() > 0.7 * masked["masked_weights"].sum()
    trained = other.inputs(next(other.train_batches(0, Rows())), train=True)
    assert trained["masked_weights"].sum() > 0.3 * trained["attention_mask"].sum()


def test_training_masks_change_with_the_epoch_alone(corpus):
    task = task_of(corpus)
    batch = next(task.train_batches(0, Rows()))
    once = task.inputs(batch, train=True)
    np.testing.assert_array_equal(
        once["masked_positions"], task.inputs(batch, train=True)["masked_positions"]
    )
    half = {name: value[8:] for name, value in batch.items()}  # another batch size, another place
    np.testing.assert_array_equal(
        once["masked_positions"][8:], task.inputs(half, train=True)["masked_positions"]
    )
    later = batch | {"example": batch["example"] + np.array([1, 0], np.uint32)}
    moved = task.inputs(later, train=True)["masked_positions"]
    assert np.mean(np.any(moved != once["masked_positions"], axis=1)) > 0.95


def test_the_unigram_loss_is_that_of_the_same_tokens(corpus):
    task = task_of(corpus)
    counts = np.ones(task.tokenizer.vocab_size)
    train = task._corpora["train"]
    for record in train.read(range(len(train))):
        for token in record["ids"]:
            counts[token] += 1
    batch = next(iter(task.eval_batches("validation", Rows())))
    inputs = task.inputs(batch, train=False)
    scored = np.asarray(inputs["masked_weights"]) > 0
    labels = np.asarray(inputs["masked_labels"])[scored]
    expected = -np.log(counts / counts.sum())[labels].mean()
    found = means(task, params_of(task), batch, train=False)
    assert found["unigram_loss"] == pytest.approx(expected, rel=1e-5)


def test_nsp_counts_both_labels(corpus):
    task = task_of(corpus)
    params = params_of(task)
    batch = dict(next(task.train_batches(0, Rows())))
    assert set(batch["nsp_labels"].ravel()) == {0, 1}
    follows = batch | {"nsp_labels": np.zeros_like(batch["nsp_labels"])}
    none = batch | {"nsp_labels": np.full_like(batch["nsp_labels"], -100)}
    assert means(task, params, follows, train=True)["nsp_loss"] > 0.3

    def nsp(batch):
        return task.losses(params, task.inputs(batch, train=True), dropout_key=None)["nsp_loss"]

    assert float(nsp(follows)[1]) == 16 and float(nsp(none)[1]) == 0 and float(nsp(none)[0]) == 0


def test_without_nsp_there_is_no_such_head(corpus):
    task = task_of(corpus, **{"data.nsp": False})
    assert "nsp" not in params_of(task) and set(task.loss_weights) == {"mlm_loss"}


def test_it_learns_sixty_four_pairs_by_heart(corpus):
    """One batch of 64 pairs again and again: MLM loss below 0.5 and NSP accuracy above 0.95."""
    task = task_of(
        corpus,
        **{"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0, "data.batch_size": 64,
           "model.hidden_size": 64, "optimizer.learning_rate": 3e-3, "train.steps": 250,
           "optimizer.warmup_steps": 25},
    )  # fmt: skip
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    schedule = make_schedule(task.config.optimizer, task.train_steps)
    optimizer = make_optimizer(task.config.optimizer, schedule, abstract_params(task, mesh))
    state = create_state(task, optimizer, mesh, jax.random.key(0))
    step = make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
    batch = to_global(mesh, next(task.train_batches(0, Rows())))
    for _ in range(task.train_steps):
        state, metrics = step(state, batch)
    assert float(metrics["mlm_loss"]) < 0.5, metrics
    assert float(metrics["nsp_accuracy"]) > 0.95, metrics


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data.source": "nowhere/at/all"}, ["nowhere/at/all", "bertjax.prepare", "--vocab"]),
        ({"data.source": ""}, ["data.source", "bertjax.prepare"]),
        ({"data.source": "http://host/corpus"}, ["http://host/corpus cannot be reached"]),
        ({"model.vocab_size": 30522}, ["30522", "tokens"]),
        ({"train.steps": 0}, ["train.steps=0", "train.epochs"]),
    ],
)
def test_refusals(corpus, values, words):
    with pytest.raises(UserError) as error:
        task_of(corpus, **values)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_a_raw_source_is_prepared_once_in_the_workdir(tmp_path):
    (tmp_path / "text.txt").write_text(text(30, 6))
    workdir = tmp_path / "run"
    values = {"data.vocab": "train:150", "data.held_out": 0.2}
    config = config_of(tmp_path / "text.txt", **values)
    prepare_data(config, str(workdir))
    task = make_task(config, str(workdir))
    assert config.model.vocab_size == task.tokenizer.vocab_size <= 150
    stamp = (workdir / "corpus" / "fingerprint.json").stat().st_mtime_ns
    prepare_data(config, str(workdir))
    assert (workdir / "corpus" / "fingerprint.json").stat().st_mtime_ns == stamp
    # Another vocabulary is another corpus.
    prepare_data(config_of(tmp_path / "text.txt", **values | {"data.vocab": "train:100"}),
                 str(workdir))  # fmt: skip
    assert (workdir / "corpus" / "fingerprint.json").stat().st_mtime_ns != stamp
    with pytest.raises(UserError, match="train:SIZE"):
        prepare_data(config_of(tmp_path / "text.txt"), str(tmp_path / "other"))


def test_what_was_prepared_in_a_workdir_needs_no_source_any_more(tmp_path):
    (tmp_path / "text.txt").write_text(text(9, 4))
    config = config_of(tmp_path / "text.txt", **{"data.vocab": "train:100"})
    workdir = str(tmp_path / "run")
    prepare_data(config, workdir)
    (tmp_path / "text.txt").unlink()
    prepare_data(config, workdir)
    assert str(corpora.corpus_folder(config, workdir)) == f"{workdir}/corpus"
    with pytest.raises(UserError, match="no source"):
        corpora.corpus_folder(config_of(tmp_path / "other.txt"), workdir)


def test_the_corpus_of_a_run_with_checkpoints_is_not_replaced(tmp_path):
    (tmp_path / "text.txt").write_text(text(30, 6))
    workdir, vocab = tmp_path / "run", {"data.vocab": "train:150"}
    prepare_data(config_of(tmp_path / "text.txt", **vocab), str(workdir))
    stamp = (workdir / "corpus" / "fingerprint.json").stat().st_mtime_ns
    (workdir / "checkpoints" / "5").mkdir(parents=True)
    (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    prepare_data(config_of(tmp_path / "moved.txt", **vocab), str(workdir))
    (tmp_path / "other.txt").write_text(text(31, 6))
    with pytest.raises(UserError, match="another corpus than the one"):
        prepare_data(config_of(tmp_path / "other.txt", **vocab), str(workdir))
    assert (workdir / "corpus" / "fingerprint.json").stat().st_mtime_ns == stamp
    assert not (workdir / "corpus.new").exists()


def test_a_smoke_run_replaces_data_that_is_not_there(tmp_path, capsys):
    config = config_of("nowhere/at/all", **{"smoke": True, "model.vocab_size": 0})
    prepare_data(config, str(tmp_path))
    task = make_task(config, str(tmp_path))
    assert "embedded text" in capsys.readouterr().err
    assert next(task.train_batches(0, Rows()))["input_ids"].shape == (16, 32)


def test_a_smoke_run_does_not_replace_what_is_there_and_no_text(tmp_path):
    (tmp_path / "table.csv").write_text("a,b")
    with pytest.raises(UserError, match=r"table\.csv is no text: write its texts[^;]*$"):
        prepare_data(config_of(tmp_path / "table.csv", smoke=True), str(tmp_path / "run"))


def test_an_unfinished_corpus_is_not_replaced(tmp_path):
    (tmp_path / "UNFINISHED").touch()
    for smoke in (True, False):
        with pytest.raises(UserError, match="was not finished"):
            prepare_data(config_of(tmp_path, smoke=smoke), str(tmp_path / "run"))
