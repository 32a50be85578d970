"""Several seeds: the summary, and what is fresh, frozen, stopped early or chosen."""

import json
import os
import pathlib
import signal

import jax
import numpy as np
import pytest

from bertjax import main, seeds
from bertjax.errors import UserError
from bertjax.start import _reinitialised
from bertjax.train import loop
from bertjax.train.signals import StopSignals

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "classify.py"


def test_summary_of_seeds():
    runs = [
        {"test/accuracy": a, "test/predicted_classes": c, "test/examples": 9.0}
        for a, c in ((0.5, 1.0), (0.9, 2.0), (0.8, 2.0))
    ]
    table = seeds.summary(runs)
    assert table["test/accuracy"] == {
        "median": 0.8, "least": 0.5, "largest": 0.9, "deviation": pytest.approx(0.2082, abs=1e-4)
    }  # fmt: skip
    assert table["test/degenerate"] == {"count": 1}
    assert "1 of 3 runs predict one class only" in seeds.summary_text(table, 3)


def test_seeds_without_anything_to_evaluate(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "good\tpos\nbad\tneg\n" * 8)
    arguments = [
        f"--config={CONFIG}:smoke", f"--workdir={tmp_path}/run", "--config.train.seeds=2",
        f"--config.data.train={tmp_path}/a.tsv", "--config.data.vocab=train:100",
        "--config.train.steps=1", "--config.model.num_layers=1", "--config.data.seq_length=16",
    ]  # fmt: skip
    for _ in range(2):
        assert main.main(arguments) == 0
        assert "2 seeds, and no figures" in capsys.readouterr().out
    content = json.loads((tmp_path / "run/seeds.json").read_text())
    assert content == {"seeds": [0, 1], "figures": [{}, {}], "summary": {}}


def seeds_of(tmp_path, monkeypatch, spoilt: int, factor: float, *flags: str) -> None:
    """Train seeds; every loss of one of them is multiplied."""
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "good\tpos\nbad\tneg\n" * 8)
    train = loop.train

    def spoil_one(config, task, workdir, **options):
        if config.seed == spoilt:
            losses = task.losses
            task.losses = lambda *args, **kw: {
                name: (total * factor, weight)
                for name, (total, weight) in losses(*args, **kw).items()
            }
        return train(config, task, workdir, **options)

    monkeypatch.setattr(loop, "train", spoil_one)
    main.main([
        f"--config={CONFIG}:smoke", f"--workdir={tmp_path}/run",
        f"--config.data.train={tmp_path}/a.tsv", "--config.data.vocab=train:100",
        "--config.model.num_layers=1", "--config.data.seq_length=16", *flags,
    ])  # fmt: skip


def test_a_seed_that_diverges_does_not_keep_the_others_from_training(tmp_path, capsys, monkeypatch):
    flags = ("--config.train.seeds=3", f"--config.data.validation={tmp_path}/a.tsv",
             "--config.train.steps=2")  # fmt: skip
    with pytest.raises(  # the evaluation of its weights is not finite
        UserError, match=r"1 of 3 seeds diverged \(1\).*the loss of validation is nan"
    ):
        seeds_of(tmp_path, monkeypatch, 1, np.nan, *flags)
    assert "of 2 seeds" in capsys.readouterr().out
    content = json.loads((tmp_path / "run/seeds.json").read_text())
    assert content["seeds"] == [0, 2] and len(content["figures"]) == 2


def test_a_seed_that_stops_at_a_step_that_is_not_finite_does_not_keep_others(tmp_path, monkeypatch):
    flags = ("--config.train.seeds=2", "--config.train.on_nonfinite=stop", "--config.train.steps=3")
    with pytest.raises(UserError, match=r"1 of 2 seeds diverged \(0\).*step 1 is not finite"):
        seeds_of(tmp_path, monkeypatch, 0, np.inf, *flags)
    assert json.loads((tmp_path / "run/seeds.json").read_text())["seeds"] == [1]


def test_one_run_and_several_seeds_share_no_workdir(tmp_path):
    for folder in ("seeds/seed-1", "one"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds runs of several seeds"):
        seeds.check(f"{tmp_path}/seeds", 1)
    with pytest.raises(UserError, match="holds one run, but"):
        seeds.check(f"{tmp_path}/one", 3)
    seeds.check(f"{tmp_path}/seeds", 5)
    seeds.check(f"{tmp_path}/one", 1)
    seeds.check(f"{tmp_path}/new", 5)


def test_a_signal_at_the_end_of_one_run_is_not_lost_to_the_next():
    with StopSignals() as outer:
        with StopSignals() as inner:
            assert not inner.due() and not outer.pending
            os.kill(os.getpid(), signal.SIGINT)  # nobody asks `inner` any more
        assert outer.pending and outer.exit_code == 130


def test_top_layers_and_pooler_start_afresh():
    def tree(value: float) -> dict:
        layer = {"kernel": np.full((4, 2), value)}
        return {"bert": {"encoder": layer, "pooler": {"kernel": np.full(2, value)}}}

    found = _reinitialised(tree(1.0), tree(2.0), 1)["bert"]
    assert found["encoder"]["kernel"][:, 0].tolist() == [1, 1, 1, 2]
    assert found["pooler"]["kernel"].tolist() == [2, 2]


@pytest.mark.long
def test_two_seeds_stop_early_and_finish_with_their_best(tmp_path, capsys):
    arguments = [
        f"--config={CONFIG}:smoke", f"--workdir={tmp_path}", "--config.train.seeds=2",
        "--config.train.eval_every=2", "--config.train.patience=2", "--config.train.log_every=2",
        "--config.model.num_layers=1", "--config.data.seq_length=16",
        "--config.train.metric=loss", "--config.optimizer.learning_rate=0.3",
    ]  # fmt: skip
    assert main.main(arguments) == 0
    out = capsys.readouterr().out
    for seed in (0, 1):
        folder = tmp_path / f"seed-{seed}"
        finished = json.loads((folder / "finished.json").read_text())
        lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
        losses = {x["step"]: x["loss"] for x in lines if x["split"] == "validation"}
        best = min(losses, key=lambda step: (losses[step], step))
        # A learning rate of 0.3 destroys the model, so the first evaluations are the best ones.
        assert finished["step"] == best + 4 < 20, losses
        assert "stopped early" in finished["summary"]
        assert finished["results"]["validation"]["loss"] == pytest.approx(losses[best], rel=1e-5)
        rows = (folder / "predictions/validation.jsonl").read_text().splitlines()
        sure = [json.loads(row) for row in rows]
        loss = -np.mean([np.log(row["probabilities"][row["label"]]) for row in sure])
        assert loss == pytest.approx(losses[best], rel=1e-4)
    assert "of 2 seeds" in out and (tmp_path / "seeds.json").exists()
    assert main.main(arguments) == 0  # finished runs are not repeated
    assert capsys.readouterr().out.count("is finished: step") == 2


def test_frozen_layers_and_embeddings_have_no_moments(tmp_path):
    from helpers_finetune import make, write

    from bertjax.parallel.mesh import make_mesh
    from bertjax.train.optimizer import make_optimizer
    from bertjax.train.step import abstract_state

    path = write(tmp_path, "a.tsv", "good\tpos\nbad\tneg\n")
    task = make(
        "classify", tmp_path, data__train=path, data__text_column="0", data__label_column="1",
        data__header="no", model__num_layers=4, train__frozen_layers=3,
    )  # fmt: skip
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    boxed = jax.eval_shape(task.init_params, jax.random.key(0))
    import flax.linen as nn

    params = nn.meta.unbox(boxed)
    optimizer = make_optimizer(task.config.optimizer, lambda step: 1e-3, params)
    state = abstract_state(task, optimizer, mesh)

    def numbers(tree) -> int:
        return sum(x.size for x in jax.tree.leaves(tree) if x.ndim)

    bert = params["bert"]
    frozen = numbers(bert["embeddings"]) + numbers(bert["frozen_encoder"])
    assert bert["frozen_encoder"]["mlp"]["output"]["kernel"].shape[0] == 3
    assert numbers(state.opt_state) == 2 * (numbers(params) - frozen)
