"""Checkpoints: any device count, damage of every kind, what is kept, errors that name the path."""

import json
import os
import pathlib
import random
import shutil
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bertjax.errors import UserError
from bertjax.train.checkpoint import Checkpoints, find, load_params
from bertjax.train.manifest import Damaged, Manifest


@flax.struct.dataclass
class State:
    step: Any
    params: Any
    opt_state: Any


def place(tree: Any, devices: int) -> Any:
    """Matrices split over `devices` devices, all else copied."""
    mesh = jax.make_mesh(
        (devices,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )

    def sharding(x: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec("x") if x.ndim == 2 else PartitionSpec())

    return jax.tree.map(lambda x: jax.device_put(x, sharding(x)), tree)


def make_state(step: int = 7, devices: int = 8) -> State:
    params = {"bert": {"w": jnp.arange(32.0).reshape(8, 4) + step - 7, "b": jnp.ones(3)}}
    optimizer = optax.adamw(1e-3)
    opt_state = optimizer.init(params)
    _, opt_state = optimizer.update(jax.tree.map(jnp.sin, params), opt_state, params)
    return place(State(jnp.int32(step), params, opt_state), devices)


def abstract(state: Any) -> Any:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def save(folder: pathlib.Path, steps: dict[int, dict[str, float]], **options: Any) -> Checkpoints:
    checkpoints = Checkpoints(folder, **options)
    for step, metrics in steps.items():
        checkpoints.save(step, make_state(step), metrics, wait=False)
    checkpoints.close()
    return checkpoints


def kept(folder: pathlib.Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_eight_devices_open_on_any_number(tmp_path, devices):
    saved = make_state(7, devices=8)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, saved, {}, wait=True)
    target = abstract(make_state(0, devices))
    state, manifest = Checkpoints(tmp_path).restore(target, print)
    assert manifest.step == int(state.step) == 7
    assert float(state.params["bert"]["w"].sum()) == 496.0
    assert isinstance(state.opt_state[0], optax.ScaleByAdamState)
    assert bits(state) == bits(saved)
    assert state.params["bert"]["w"].sharding == target.params["bert"]["w"].sharding


def test_a_save_keeps_the_state_of_its_moment(tmp_path):
    """The step after a save donates the state's memory while the save is under way."""
    rows = jnp.arange(4 * 250_000, dtype=jnp.float32).reshape(4, -1)
    state = place({"params": {"w": rows}}, 2)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, {}, wait=False)
    scramble = jax.jit(lambda s: jax.tree.map(lambda x: -x - 1, s), donate_argnums=0)
    for _ in range(20):
        state = scramble(state)
    checkpoints.wait()
    np.testing.assert_array_equal(load_params(tmp_path)[0]["w"], rows)


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert Checkpoints(tmp_path).restore(abstract(make_state()), print) is None
    with pytest.raises(UserError, match="holds no checkpoint"):
        load_params(tmp_path)


def damages(folder: pathlib.Path, seed: int) -> list[tuple[str, Any]]:
    """30 ways to hurt a checkpoint: 18 flipped bits, 6 truncations, 6 missing files."""
    rng = random.Random(seed)
    arrays = sorted(p for p in folder.rglob("*") if p.is_file() and p.parent.name == "d")
    others = sorted(p for p in folder.rglob("*") if p.is_file() and p.parent.name != "d")
    # A file that is made by the commit itself: nothing reads it here.
    others = [p for p in others if p.name != "commit_success.txt"]
    flipped = [p for p in others if p.name != "_CHECKPOINT_METADATA"]

    def flip(path: pathlib.Path) -> None:
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

    def cut(path: pathlib.Path) -> None:
        os.truncate(path, rng.randrange(path.stat().st_size))

    plan = [(flip, rng.choice(arrays)) for _ in range(16)]
    plan += [(flip, rng.choice(flipped)) for _ in range(2)]
    plan += [(cut, rng.choice(arrays + others)) for _ in range(6)]
    plan += [(pathlib.Path.unlink, rng.choice(arrays + others)) for _ in range(6)]
    return plan


def test_thirty_damages_to_the_newest_checkpoint(tmp_path):
    good = tmp_path / "good"
    save(good, {1: {}, 2: {}})
    target = abstract(make_state(0, 1))
    names = damages(good / "checkpoints" / "2", seed=20)
    for number, (damage, path) in enumerate(names):
        workdir = tmp_path / str(number)
        shutil.copytree(good, workdir)
        damage(workdir / path.relative_to(good))
        with pytest.raises(Damaged, match=r"checkpoints/2 is damaged"):
            load_params(workdir)
        said: list[str] = []
        state, manifest = Checkpoints(workdir).restore(target, said.append)
        assert manifest.step == 1 and bits(state) == bits(make_state(1))
        assert len(said) == 1 and "damaged" in said[0] and "step 1" in said[0]
        assert (workdir / "checkpoints" / "2.damaged").is_dir()
        shutil.rmtree(workdir)


def test_metrics_flipped_in_a_manifest_are_damage(tmp_path):
    save(tmp_path, {1: {"validation/accuracy": 0.5}})
    path = tmp_path / "checkpoints" / "1" / "manifest.json"
    path.write_text(path.read_text().replace("0.5", "0.7"))
    with pytest.raises(Damaged, match="digest"):
        load_params(tmp_path)


def test_no_good_checkpoint_left_is_an_error_and_removes_nothing(tmp_path):
    save(tmp_path, {1: {}, 2: {}})
    for step in (1, 2):
        (tmp_path / "checkpoints" / str(step) / "_METADATA").unlink()
    with pytest.raises(UserError, match="no good checkpoint is left"):
        Checkpoints(tmp_path).restore(abstract(make_state()), print)
    assert kept(tmp_path) == [1, 2]


def test_unfinished_saves_are_removed_and_said(tmp_path):
    save(tmp_path, {1: {}})
    unfinished = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    unfinished.mkdir()
    said: list[str] = []
    _, manifest = Checkpoints(tmp_path).restore(abstract(make_state()), said.append)
    assert manifest.step == 1 and not unfinished.exists()
    assert len(said) == 1 and "interrupted" in said[0]


def test_copies_under_names_of_their_own_stay(tmp_path):
    save(tmp_path, {1: {}})
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "1", folder / "1.bak")
    (folder / "2.txt").write_text("the best so far\n")
    _, manifest = Checkpoints(tmp_path).restore(abstract(make_state()), print)
    assert manifest.step == 1
    assert {path.name for path in folder.iterdir()} == {"1", "1.bak", "2.txt"}


def test_what_is_kept(tmp_path):
    scores = {10: 0.1, 20: 0.9, 30: 0.3, 40: 0.4, 50: 0.9, 60: 0.2}
    metrics = {step: {"validation/accuracy": score} for step, score in scores.items()}
    best = ("validation/accuracy", True)
    checkpoints = save(tmp_path / "a", metrics, keep=1, best=best)
    assert kept(tmp_path / "a") == [20, 60] and checkpoints.best_step() == 20
    assert find(tmp_path / "a", None, best).endswith("/20")
    assert find(tmp_path / "a", None, None).endswith("/60")
    save(tmp_path / "b", metrics, keep=2, keep_every=30, best=("validation/accuracy", False))
    assert kept(tmp_path / "b") == [10, 30, 50, 60]
    save(tmp_path / "c", {1: {}}, keep=1)
    assert kept(tmp_path / "c") == [1]
    with pytest.raises(UserError, match=r"checkpoint.keep is 0"):
        Checkpoints(tmp_path, keep=0)


def test_the_best_is_remembered_over_a_restart(tmp_path):
    best = ("validation/accuracy", True)
    save(tmp_path, {1: {best[0]: 0.9}, 2: {best[0]: 0.1}}, keep=1, best=best)
    checkpoints = Checkpoints(tmp_path, keep=1, best=best)
    checkpoints.restore(abstract(make_state()), print)
    assert not checkpoints.improves({best[0]: 0.8}) and checkpoints.improves({best[0]: 0.95})
    assert not checkpoints.improves({best[0]: float("nan")})
    checkpoints.save(3, make_state(3), {best[0]: 0.2}, wait=True)
    checkpoints.add_metrics(3, {best[0]: 0.97})
    checkpoints.close()
    assert kept(tmp_path) == [3]
    assert load_params(tmp_path, best=best)[1].metrics == {best[0]: 0.97}


def test_another_model_is_refused_by_name(tmp_path):
    save(tmp_path, {1: {}})
    state = make_state(0)
    more = state.replace(params={**state.params, "pooler": {"kernel": jnp.ones((2, 2))}})
    with pytest.raises(UserError, match="has no params/pooler/kernel"):
        Checkpoints(tmp_path).restore(abstract(place(more, 1)), print)
    larger = state.replace(params={"bert": {"w": jnp.ones((16, 4)), "b": jnp.ones(3)}})
    message = r"params/bert/w is \[8, 4\] there and \[16, 4\] here"
    with pytest.raises(UserError, match=message):
        Checkpoints(tmp_path).restore(abstract(place(larger, 1)), print)
    with pytest.raises(UserError, match=message):
        load_params(tmp_path, abstract=abstract(place(larger, 1)).params)


def test_parameters_alone(tmp_path):
    """Without the optimizer, and any part of them, from a workdir or one step's folder."""
    save(tmp_path, {1: {}, 2: {}})
    whole, manifest = load_params(tmp_path)
    assert manifest.step == 2 and bits(whole) == bits(make_state(2).params)
    part = {"bert": {"b": jax.ShapeDtypeStruct((3,), jnp.float32)}}
    params, _ = load_params(tmp_path / "checkpoints" / "1", abstract=part)
    assert jax.tree.structure(params) == jax.tree.structure(part)
    np.testing.assert_array_equal(params["bert"]["b"], np.ones(3))
    assert load_params(tmp_path, step=1)[1].step == 1
    with pytest.raises(UserError, match="has no step 5; it has 1, 2"):
        load_params(tmp_path, step=5)


def test_a_failing_save_names_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/run/checkpoints"):
        Checkpoints(tmp_path / "file" / "run").save(1, make_state(), {}, wait=True)


def test_the_manifest_lists_every_file(tmp_path):
    save(tmp_path, {1: {}})
    folder = tmp_path / "checkpoints" / "1"
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    listed = set(json.loads((folder / "manifest.json").read_text())["files"])
    assert files - listed == {"manifest.json", "commit_success.txt"}
    arrays = Manifest.read(folder).arrays
    assert arrays["params/bert/w"] == ("float32", (8, 4)) and arrays["step"] == ("int32", ())
