"""The loop: exact resume, stopping by signals, bad runs, one compile."""

import fcntl
import io
import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from helpers_loop import PER_EPOCH, TinyTask, tiny_config
from jax.experimental.compilation_cache import compilation_cache

from bertjax.errors import UserError
from bertjax.parallel.mesh import make_mesh
from bertjax.train import loop
from bertjax.train.checkpoint import committed_steps, load_arrays, load_params, root
from bertjax.train.evaluation import evaluate
from bertjax.train.manifest import Manifest
from bertjax.train.metrics import f1
from bertjax.train.profile import parse
from bertjax.train.workdir import compare_configs, lock

HERE = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True)
def _signals_as_before():
    """However a run ends, Ctrl-C means to a notebook what it meant before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


class Interrupted(TinyTask):
    """Sends this process a signal when the batch of a step is asked for, or in an evaluation."""

    def __init__(
        self, config: Any, *, at_step: int = -1, at_evaluation: int = -1, number: int = 15
    ):
        super().__init__(config)
        self.at_step, self.at_evaluation, self.number = at_step, at_evaluation, number
        self.evaluations = 0

    def train_batches(self, start_step, rows):
        for step, batch in enumerate(super().train_batches(start_step, rows), start_step + 1):
            if step == self.at_step:
                os.kill(os.getpid(), self.number)
                os.kill(os.getpid(), self.number)  # a second one does no harm
            yield batch

    def eval_batches(self, split, rows):
        self.evaluations += 1
        for index, batch in enumerate(super().eval_batches(split, rows)):
            if self.evaluations == self.at_evaluation and index == 1:
                os.kill(os.getpid(), self.number)
            yield batch


def mesh(devices: int = 1):
    return make_mesh(-1, 1, 1, jax.devices()[:devices])


def run(workdir, task: TinyTask, devices: int = 1) -> tuple[dict[str, float] | int, str]:
    """Results or the exit code, and what was said."""
    stream = io.StringIO()
    try:
        result = loop.train(task.config, task, str(workdir), mesh=mesh(devices), stream=stream)
    except SystemExit as stopped:
        result = stopped.code
    return result, stream.getvalue()


def metrics(workdir) -> list[dict[str, Any]]:
    """metrics.jsonl without the wall clock's figures."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    clock = ("tokens_per_second", "flops_share")
    return [{k: v for k, v in json.loads(line).items() if k not in clock} for line in lines]


def stored(workdir) -> dict[str, bytes]:
    """The bits of all arrays of the last checkpoint."""
    folder = root(workdir) / "checkpoints"
    arrays, _ = load_arrays(folder / str(committed_steps(folder)[-1]))
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.fixture(scope="module", autouse=True)
def compile_once(tmp_path_factory):
    """The same few programs are compiled by every run here: keep them."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("cache")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is settings:
            yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """20 steps without a stop: workdir, task, results, text."""
    workdir = tmp_path_factory.mktemp("straight")
    task = TinyTask(tiny_config())
    results, text = run(workdir, task)
    return workdir, task, results, text


def test_a_run_writes_what_a_workdir_holds(straight):
    workdir, _, results, text = straight
    config = json.loads((workdir / "config.json").read_text())
    assert config["config"]["train"]["steps"] == 20 and config["artifacts"] == {
        "labels": [0, 1, 2, 3]
    }
    assert set(results) == {
        f"validation/{name}" for name in ("loss", "class_loss", "accuracy", "rows", "row_accuracy")
    }
    assert results["validation/rows"] == 20.0  # the rows that fill up the last batch are left out
    assert results["validation/row_accuracy"] == pytest.approx(results["validation/accuracy"])
    train = [line for line in metrics(workdir) if line["split"] == "train"]
    assert [line["step"] for line in train] == list(range(1, 21))
    evaluations = [line["step"] for line in metrics(workdir) if line["split"] == "validation"]
    assert evaluations == [6, 12, 18, 20]
    assert {"loss", "class_loss", "accuracy", "learning_rate", "grad_norm"} <= set(train[0])
    assert "compiled the training step in" in text and "left" in text
    assert "accuracy" in text.splitlines()[-2] + text.splitlines()[-1]


@pytest.mark.parametrize(
    "stops, code",
    [
        ([{"at_step": 9}], 143),
        ([{"at_step": 9, "number": signal.SIGINT}], 130),
        ([{"at_step": 1}, {"at_step": 13}], 143),  # two resumes, and one before anything is saved
        ([{"at_evaluation": 2}], 143),  # after step 12
        ([{"at_evaluation": 4}], 143),  # the last one
    ],
)
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path, straight, stops, code):
    """8 rows a step and 48 an epoch: the stops lie on both sides of an epoch's end."""
    assert PER_EPOCH // 8 == 6
    reference, whole, results, _ = straight
    seen: list[list[int]] = []
    for stop in stops:
        task = Interrupted(tiny_config(), **stop)
        result, text = run(tmp_path, task)
        assert result == code
        step = int(text.split("stopped at step ")[1].split()[0])
        assert committed_steps(root(tmp_path) / "checkpoints")[-1:] == ([step] if step else [])
        seen = seen[:step] + task.seen[: step - len(seen)]
    task = TinyTask(tiny_config())
    result, text = run(tmp_path, task)
    assert f"going on from the checkpoint of step {step}" in text
    assert result == results
    assert seen + task.seen == whole.seen
    assert metrics(tmp_path) == metrics(reference)
    assert stored(tmp_path) == stored(reference)
    assert committed_steps(root(tmp_path) / "checkpoints") == committed_steps(
        root(reference) / "checkpoints"
    )


def test_a_finished_run_says_so(straight):
    workdir, _, results, _ = straight
    before = metrics(workdir)
    task = TinyTask(tiny_config())
    result, text = run(workdir, task)
    assert result == results and not task.seen and metrics(workdir) == before
    assert "is finished: step 20 of 20" in text and "accuracy" in text


def test_a_run_that_patience_has_stopped_goes_on_with_more_of_it(tmp_path):
    """At a learning rate of 0 no evaluation beats the first one, at step 6."""

    def train(patience: int) -> str:
        config = tiny_config(optimizer__learning_rate=0.0, train__patience=patience)
        return run(tmp_path, TinyTask(config))[1]

    assert "finished: step 12 of 20" in train(1)
    end = json.loads((tmp_path / "finished.json").read_text())
    assert end["stopped"] == {"patience": 1, "eval_every": 6}
    assert "is finished: step 12 of 20" in train(1)
    text = train(2)
    assert "going on from the checkpoint of step 12" in text and "finished: step 18 of 20" in text
    text = train(0)
    assert "going on from the checkpoint of step 18" in text and "finished: step 20 of 20" in text
    assert json.loads((tmp_path / "finished.json").read_text())["stopped"] is None


def test_fewer_steps_change_nothing_of_a_finished_run(tmp_path):
    run(tmp_path, TinyTask(tiny_config(train__steps=6)))
    before = (tmp_path / "config.json").read_text()
    _, text = run(tmp_path, TinyTask(tiny_config(train__steps=4)))
    assert "is finished: step 6 of 4, which asks for no more" in text
    assert (tmp_path / "config.json").read_text() == before


def test_a_warm_up_that_never_ends_is_told(tmp_path):
    for steps, told in ((4, True), (5, False)):
        config = tiny_config(train__steps=steps, optimizer__warmup_steps=4)
        assert ("warm-up of 4 steps" in run(tmp_path / str(steps), TinyTask(config))[1]) == told


def test_a_run_that_goes_on_is_not_finished(tmp_path):
    """Else an ablation or a report would take the stopped run for a finished one."""
    run(tmp_path, TinyTask(tiny_config(train__steps=4)))
    assert (tmp_path / "finished.json").exists()
    longer = tiny_config(train__steps=8)
    assert run(tmp_path, Interrupted(longer, at_step=6))[0] == 143
    assert not (tmp_path / "finished.json").exists()
    assert "finished: step 8 of 8" in run(tmp_path, TinyTask(longer))[1]


def test_text_that_says_stopped_early_stops_nothing(tmp_path):
    class Quoting(TinyTask):
        def finish(self, workdir, params, results):
            return "the train stopped early"

    run(tmp_path, Quoting(tiny_config(train__steps=4)))
    _, text = run(tmp_path, Quoting(tiny_config(train__steps=6)))
    assert "finished: step 6 of 6" in text and "is finished" not in text


def test_two_runs_are_equal_bit_for_bit(tmp_path, straight):
    run(tmp_path, TinyTask(tiny_config()))
    assert stored(tmp_path) == stored(straight[0])


def test_the_last_good_step_is_used_after_a_kill(tmp_path, straight):
    """A half line, a half checkpoint and later lines: what SIGKILL leaves behind."""
    run(tmp_path, Interrupted(tiny_config(), at_step=11))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 12, "split": "train"}\n{"step": 13, "sp')
    (tmp_path / "checkpoints" / "12.orbax-checkpoint-tmp").mkdir()
    _, text = run(tmp_path, TinyTask(tiny_config()))
    assert "its saving was interrupted" in text and "step 11" in text
    assert metrics(tmp_path) == metrics(straight[0])
    assert stored(tmp_path) == stored(straight[0])


def test_other_device_counts_follow(tmp_path, straight):
    """8, then 4, then 1 device: the same examples, losses within 1e-5 relative."""
    config = tiny_config(optimizer__learning_rate=5e-4)
    one = TinyTask(config)
    run(tmp_path / "one", one)
    seen: list[list[int]] = []
    for devices, stop in ((8, 7), (4, 14), (1, -1)):
        task = Interrupted(config, at_step=stop)
        _, text = run(tmp_path / "many", task, devices)
        done = int(text.split("stopped at step ")[1].split()[0]) if stop > 0 else 20
        seen += task.seen[: done - len(seen)]
    assert seen == one.seen
    for a, b in zip(metrics(tmp_path / "one"), metrics(tmp_path / "many"), strict=True):
        assert a["step"] == b["step"] and a["split"] == b["split"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)


def test_one_compile_of_each_step(tmp_path, caplog):
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        run(tmp_path, TinyTask(tiny_config()))
    finished = [r.getMessage() for r in caplog.records if "Finished XLA compilation" in r.msg]
    assert sum("train_step" in text for text in finished) == 1
    assert sum("eval_step" in text for text in finished) == 1


def test_skipped_steps_are_counted_and_named(tmp_path, straight):
    task = TinyTask(tiny_config())
    task.bad_steps = (5, 12)
    _, text = run(tmp_path, task)
    assert "warning: step 5 is not finite" in text and "at batch 4" in text
    assert "examples (epoch, index) are [[0, 32], [0, 33]" in text
    assert "step 12" in text and "skipped, 2 so far" in text
    lines = [line for line in metrics(tmp_path) if line["split"] == "train"]
    assert [line["skipped_steps"] for line in lines][3:13] == [0, 1, 1, 1, 1, 1, 1, 1, 2, 2]
    assert lines[4]["loss"] is None
    # The steps before are those of the healthy run; a skipped one changes nothing.
    assert lines[:4] == [m for m in metrics(straight[0]) if m["split"] == "train"][:4]
    params, manifest = load_params(tmp_path)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    assert manifest.step == 20


def test_a_hundred_skipped_steps_in_a_row_end_the_run(tmp_path):
    task = TinyTask(tiny_config(train__steps=200, checkpoint__every=0, train__eval_every=0))
    task.bad_steps = (*range(2, 101), *range(102, 300))  # step 101 is a good one
    with pytest.raises(UserError, match=r"step 201 .*the 100th in a row"):
        task.train_steps = 300
        run(tmp_path, task)


def test_stop_on_a_step_that_is_not_finite(tmp_path):
    task = TinyTask(tiny_config(train__on_nonfinite="stop"))
    task.bad_steps = (8,)  # a checkpoint is due at this very step
    with pytest.raises(UserError, match=r"step 8 .* batch 7.*newest good checkpoint: step 6"):
        run(tmp_path, task)
    assert committed_steps(root(tmp_path) / "checkpoints") == [4, 6]
    Manifest.read(root(tmp_path) / "checkpoints" / "6")


def test_resume_order_and_init_from(tmp_path, straight):
    initial, _ = load_params(straight[0])
    asked: list[Any] = []

    def load_initial(abstract):
        asked.append(abstract)
        return initial

    config = tiny_config(train__steps=2, optimizer__learning_rate=0.0)
    for _ in range(2):
        loop.train(config, TinyTask(config), str(tmp_path), mesh=mesh(), load_initial=load_initial,
                   stream=io.StringIO())  # fmt: skip
        config = tiny_config(train__steps=4, optimizer__learning_rate=0.0)
    assert len(asked) == 1  # the second time the workdir's own checkpoint came first
    assert asked[0]["embedding"].sharding.mesh == mesh()
    np.testing.assert_array_equal(load_params(tmp_path)[0]["kernel"], initial["kernel"])


def test_evaluate_takes_the_best_checkpoint(straight):
    workdir, task, _, _ = straight
    best = max((m for m in metrics(workdir) if m["split"] == "validation"),
               key=lambda m: (m["accuracy"], -m["step"]))  # fmt: skip
    stream = io.StringIO()
    results = evaluate(task.config, task, str(workdir), mesh=mesh(2), stream=stream)
    assert f"checkpoint of step {best['step']}" in stream.getvalue()
    assert results["validation/accuracy"] == pytest.approx(best["accuracy"])
    assert results["validation/loss"] == pytest.approx(best["loss"], rel=1e-5)
    last = evaluate(task.config, task, str(workdir), mesh=mesh(), step=20, stream=stream)
    assert last == straight[2]


def test_held_out_data_of_a_finished_run_that_change_are_refused(tmp_path):
    class Known(TinyTask):
        digest = "1"

        def artifacts(self):
            return {"held_out": {"validation": self.digest}}

    task = Known(tiny_config(train__steps=2, train__eval_every=0))
    run(tmp_path, task)
    assert "is finished" in run(tmp_path, Known(task.config))[1]
    changed = Known(task.config)
    changed.digest = "2"
    with pytest.raises(UserError, match=r"the validation data are others.*or --mode=evaluate"):
        run(tmp_path, changed)
    places: list[str] = []
    for known in (Known(task.config), changed):
        known.finish = lambda workdir, params, results: places.append(workdir) or ""
        evaluate(task.config, known, str(tmp_path), mesh=mesh(), stream=io.StringIO())
    assert places[0] == str(tmp_path)
    assert re.fullmatch(r"evaluate-step-2-[0-9a-f]{6}", pathlib.Path(places[1]).name)
    about = json.loads((pathlib.Path(places[1]) / "evaluation.json").read_text())
    assert about["step"] == 2 and about["changed"] == {"held_out": {"validation": "2"}}
    assert about["figures"]["validation"]
    for other, alike in (({"model__dtype": "bfloat16"}, False), ({"data__workers": 3}, True),
                         ({"train__metric": "loss"}, False)):  # fmt: skip
        task = Known(tiny_config(train__steps=2, train__eval_every=0, **other))
        task.finish = known.finish
        evaluate(task.config, task, str(tmp_path), mesh=mesh(), stream=io.StringIO())
        assert (places[-1] == places[0]) is alike and places[-1] != places[1]


def test_labelled_files_may_move_but_not_change(tmp_path):
    class Known(TinyTask):
        made_of: ClassVar = {"data": "1", "held_out": {"validation": "2"}}

        def artifacts(self):
            return self.made_of

    settings = {"train__steps": 2, "train__eval_every": 0}
    run(tmp_path, Known(tiny_config(data__train="a.tsv", data__validation="b.tsv", **settings)))
    moved = Known(tiny_config(data__train="x/a.tsv", data__validation="x/b.tsv", **settings))
    _, text = run(tmp_path, moved)
    assert 'data.train: "a.tsv" -> "x/a.tsv"' in text and "is finished" in text
    moved.made_of = {"data": "1", "held_out": {"validation": "2", "test": "3"}}  # a set more
    with pytest.raises(UserError, match=r"data\.train"):
        run(tmp_path, moved)
    moved.made_of = {"data": "9", "held_out": {"validation": "2"}}
    with pytest.raises(UserError, match="the training data are others"):
        run(tmp_path, moved)


def test_fewer_steps_than_are_done_are_evaluated_nevertheless(tmp_path):
    run(tmp_path, Interrupted(tiny_config(train__eval_every=0), at_step=8))
    run(tmp_path, TinyTask(tiny_config(train__steps=6, train__eval_every=0)))
    finished = json.loads((tmp_path / "finished.json").read_text())
    assert finished["step"] >= 7 and finished["results"]["validation"]["loss"] > 0


def test_a_finished_run_whose_last_checkpoint_is_damaged_makes_it_anew(tmp_path):
    task = TinyTask(tiny_config(train__steps=6, checkpoint__every=4))
    run(tmp_path, task)
    before = (tmp_path / "finished.json").read_text()
    path = max(
        (tmp_path / "checkpoints/6").rglob("*"), key=lambda p: p.is_file() * p.stat().st_size
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    _, text = run(tmp_path, TinyTask(task.config))
    assert "is damaged" in text and "goes on from an earlier one" in text
    assert (tmp_path / "finished.json").read_text() == before
    assert "is finished" in run(tmp_path, TinyTask(task.config))[1]


def test_another_step_than_the_best_leaves_its_predictions_alone(straight):
    workdir, task, _, _ = straight
    places: list[str] = []
    task = TinyTask(task.config)
    task.finish = lambda workdir, params, results: places.append(workdir) or ""
    (best,) = {
        m["step"]
        for m in metrics(workdir)
        if m["split"] == "validation"
        and m["accuracy"]
        == max(x["accuracy"] for x in metrics(workdir) if x["split"] == "validation")
    } - {20}
    for step in (best, 20):
        evaluate(task.config, task, str(workdir), mesh=mesh(), step=step, stream=io.StringIO())
    assert places == [str(workdir), f"{workdir}/evaluate-step-20"]


def test_a_run_that_diverges_does_not_finish(tmp_path):
    class Diverged(TinyTask):
        def metrics(self, split, means, outputs):
            return super().metrics(split, means, outputs) | {"loss": float("nan")}

    task = Diverged(tiny_config(train__steps=3, train__eval_every=0))
    task.bad_steps = (2, 3)
    with pytest.raises(
        UserError, match=r"diverged: the loss of validation is nan at step 3, and 2 "
    ):
        run(tmp_path, task)
    assert not (tmp_path / "finished.json").exists()


def test_skipped_steps_are_said_at_the_end(tmp_path):
    task = TinyTask(tiny_config(train__steps=3, train__eval_every=0))
    task.bad_steps = (2,)
    assert "warning: 1 of 3 steps were skipped" in run(tmp_path, task)[1].splitlines()[-1]


def test_warnings_of_figures_are_said_with_their_split(straight):
    class Constant(TinyTask):
        def metrics(self, split, means, outputs):
            return means | {"f1": f1(np.array([1, 0]), np.array([0, 0]))}

    stream = io.StringIO()
    task = Constant(straight[1].config)
    evaluate(task.config, task, str(straight[0]), mesh=mesh(2), stream=stream)
    assert "warning: validation: f1: all 2 predictions are 0" in stream.getvalue()


def test_batches_that_the_devices_cannot_share(tmp_path, straight):
    """Evaluation asks for its own batch alone."""
    config = tiny_config(data__eval_batch_size=7)
    with pytest.raises(UserError, match=r"data\.eval_batch_size: .*7 rows.* = 2"):
        run(tmp_path, TinyTask(config), devices=2)
    with pytest.raises(UserError, match=r"data\.eval_batch_size: .*7 rows.* = 2"):
        evaluate(config, TinyTask(config), str(straight[0]), mesh=mesh(2))
    config = tiny_config(data__eval_batch_size=6)
    results = evaluate(
        config, TinyTask(config), str(straight[0]), mesh=mesh(3), stream=io.StringIO()
    )
    assert results["validation/rows"] == 20


def test_changed_configs(tmp_path):
    config = tiny_config(train__steps=4)
    run(tmp_path, TinyTask(config))
    longer = tiny_config(train__steps=6, checkpoint__keep=5)
    _, text = run(tmp_path, TinyTask(longer))
    assert "checkpoint.keep: 3 -> 5, train.steps: 4 -> 6" in text
    for key, value in (("seed", 1), ("optimizer__beta1", 0.8), ("data__batch_size", 16)):
        with pytest.raises(UserError, match=rf"{key.replace('__', '.')}: .* -> {value}"):
            run(tmp_path, TinyTask(tiny_config(**{key: value})))
    assert json.loads((tmp_path / "config.json").read_text())["config"]["seed"] == 0


def test_compare_configs():
    saved = {"model": {"num_layers": 12, "remat": "none"}, "train": {"steps": 5}, "old": 1}
    new = {"model": {"num_layers": 16, "remat": "full"}, "train": {"steps": 9}, "new": 2}
    refused, said = compare_configs(saved, new)
    assert refused == {"model.num_layers": (12, 16)}
    assert said == {"model.remat": ("none", "full"), "train.steps": (5, 9)}
    saved = {"train": {"metric": "", "class_weights": "", "epochs": 1}, "data": {"limit": 1}}
    new = {"train": {"metric": "f1", "class_weights": "balanced", "epochs": 2}, "data": {}}
    refused, said = compare_configs(saved, new)
    assert set(refused) == {"train.metric", "train.class_weights"} and set(said) == {"train.epochs"}
    assert compare_configs(
        {"artifacts": {"fingerprint": "a"}}, {"artifacts": {"fingerprint": "b"}}
    )[0] == {"artifacts.fingerprint": ("a", "b")}
    assert compare_configs({"a": (1, 2)}, {"a": [1, 2]})[0] == {"a": ((1, 2), [1, 2])}


def test_a_second_run_is_refused_until_the_first_is_gone(tmp_path):
    code = (
        "import sys, time; from bertjax.train.workdir import lock\n"
        "file = lock(sys.argv[1]); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {holder.pid} on"):
            run(tmp_path, TinyTask(tiny_config()))
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with lock(str(tmp_path)) as file:  # SIGKILL has left no lock behind
        assert file.fileno() > 0
    assert fcntl.LOCK_EX


def test_a_workdir_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write in the workdir .*file/run"):
        run(tmp_path / "file" / "run", TinyTask(tiny_config()))


def test_data_that_vanishes(tmp_path):
    class Vanishing(TinyTask):
        def train_batches(self, start_step, rows):
            for _, batch in zip(range(5), super().train_batches(start_step, rows), strict=False):
                yield batch
            pathlib.Path("/nowhere/shard-5").read_bytes()

    with pytest.raises(UserError, match=r"step 6 .*/nowhere/shard-5"):
        run(tmp_path, Vanishing(tiny_config()))
    assert committed_steps(root(tmp_path) / "checkpoints") == [4]


def test_saves_by_the_clock(tmp_path):
    config = tiny_config(
        train__steps=5, train__eval_every=0, checkpoint__every=0, checkpoint__every_seconds=1e-9
    )
    config.checkpoint.keep = 9
    run(tmp_path / "always", TinyTask(config))
    assert committed_steps(root(tmp_path / "always") / "checkpoints") == [1, 2, 3, 4, 5]
    config.checkpoint.every_seconds = 1e9
    run(tmp_path / "never", TinyTask(config))
    assert committed_steps(root(tmp_path / "never") / "checkpoints") == [5]


def test_profile(tmp_path):
    run(tmp_path, TinyTask(tiny_config(train__steps=4, train__profile="2:3")))
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
    _, text = run(tmp_path / "short", TinyTask(tiny_config(train__steps=4, train__profile="3:50")))
    assert list((tmp_path / "short/profile").rglob("*.xplane.pb"))
    assert "train.profile=3:50: the trace ends with step 4" in text
    _, text = run(tmp_path / "none", TinyTask(tiny_config(train__steps=4, train__profile="20:25")))
    assert "train.profile=20:25: no trace" in text and "the last was 4" in text
    run(tmp_path / "on", Interrupted(tiny_config(train__steps=6), at_step=4))
    # Resumed between FIRST and LAST.
    run(tmp_path / "on", TinyTask(tiny_config(train__steps=6, train__profile="2:5")))
    assert list((tmp_path / "on/profile").rglob("*.xplane.pb"))
    run(tmp_path / "again", TinyTask(tiny_config(train__steps=2, train__profile="1:1")))
    assert parse("") == (0, 0) and parse("10:12") == (10, 12)
    for bad in ("3", "5:2", "0:1", "a:b"):
        with pytest.raises(UserError, match="FIRST:LAST"):
            parse(bad)


def start(workdir, *arguments: str, prefix: str = "") -> subprocess.Popen:
    command = [sys.executable, str(HERE / "helpers_loop.py"), str(workdir), *arguments]
    if prefix:
        command = ["bash", "-c", f"{prefix} exec " + " ".join(command)]
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    env["PYTHONPATH"] = str(HERE.parent.parent)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_full_disk_ends_the_run_with_the_path(tmp_path):
    """Files may not grow beyond 16 KiB: the figures of a long run do not fit."""
    process = start(
        tmp_path, "--config.train.steps=2000", "--config.train.eval_every=0", prefix="ulimit -f 16;"
    )
    text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 2, text
    assert f"error: writing figures to {tmp_path}/metrics.jsonl failed" in text
    assert "Traceback" not in text


@pytest.mark.long
def test_sigkill_at_any_time(tmp_path, straight):
    """Killed again and again until it is done; every restart goes on, the end is bit for bit."""
    kills = 0
    for delay in np.random.default_rng(7).uniform(3.0, 9.0, 6):
        process = start(tmp_path, "--sleep=0.15")
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.wait()
    process = start(tmp_path)
    text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 0, text
    assert kills and metrics(tmp_path) == metrics(straight[0])
    assert stored(tmp_path) == stored(straight[0])


@pytest.mark.long
def test_sigterm_saves_within_thirty_seconds(tmp_path):
    process = start(tmp_path, "--sleep=0.05", "--config.train.steps=5000", "--config.seed=1")
    path = tmp_path / "metrics.jsonl"
    while not path.exists() or path.read_text().count("\n") < 30:
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    began = time.monotonic()
    text = process.communicate(timeout=30)[0].decode()
    assert process.returncode == 143 and time.monotonic() - began < 30
    steps = [line["step"] for line in metrics(tmp_path) if line["split"] == "train"]
    assert committed_steps(root(tmp_path) / "checkpoints")[-1] == steps[-1]
    assert f"stopped at step {steps[-1]} of 5000" in text
