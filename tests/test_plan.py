"""The plan: topologies, what is read off compiled programs, its answers, and real compiles."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax import config as configs
from bertjax import interop
from bertjax.errors import UserError
from bertjax.parallel.mesh import make_mesh
from bertjax.plan import estimate, hardware, hlo, program
from bertjax.tasks import pretrain

sys.path.insert(0, str(pathlib.Path(__file__).parent / "interop"))
from interop_models import CONFIG, published

ROOT = pathlib.Path(__file__).parents[1]
KEYS = {
    "topology", "devices", "mesh", "parameter_bytes_per_device", "optimizer_bytes_per_device",
    "peak_bytes_per_device", "memory_bytes_per_device", "fits", "model_flops_per_step",
    "collectives", "compile_seconds", "estimated_step_seconds", "estimated_tokens_per_second",
    "estimated_hours",
}  # fmt: skip
TINY = {
    "model.num_layers": 3, "model.hidden_size": 64, "model.num_heads": 2, "model.vocab_size": 500,
    "data.batch_size": 16, "data.seq_length": 32, "train.steps": 3600,
}  # fmt: skip


def tiny_config(**overrides):
    values = TINY | {key.replace("__", "."): value for key, value in overrides.items()}
    return configs.resolve(configs.update(configs.default_config(), values))


@pytest.mark.parametrize("text", ["v9:2x2", "v5e", "v5e:4", "v5p:2x2", "h100:8", "v5e:0x2", ""])
def test_unknown_topologies_name_the_known(text):
    with pytest.raises(UserError, match="v5e:2x4"):
        hardware.parse(text)


def test_known_topologies():
    assert hardware.parse("v5e:2x4") == ("v5e", (2, 4))
    assert hardware.parse("H100:2x8") == ("h100", (2, 8))


# What a program moves ---------------------------------------------------------------------------


def compiled_text(function, mesh, in_specs, out_spec, *shapes) -> str:
    place = lambda spec: NamedSharding(mesh, spec)  # noqa: E731
    given = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place(spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    return jax.jit(function, out_shardings=place(out_spec)).lower(*given).compile().as_text()


def test_collectives_in_a_loop_count_as_often_as_it_runs():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))
    split, whole = PartitionSpec("a", None), PartitionSpec()

    def five_sums(x):
        def body(carry, _):
            return carry + jnp.sum(x * carry[0], axis=0), None

        return jax.lax.scan(body, jnp.ones(64), None, length=5)[0]

    text = compiled_text(five_sums, mesh, [split], whole, (32, 64))
    found = hlo.Program(text).collectives([0, 0, 0, 0, 1, 1, 1, 1])
    sums = [c for c in found if c.kind == "all-reduce" and c.count >= 5]
    assert [(c.group_size, c.count, c.bytes) for c in sums] == [(4, 5, 5 * 64 * 4)]
    # A ring sends 2 (n - 1) / n of the array; groups of axis a reach from host to host.
    assert sums[0].link_bytes == 5 * 64 * 4 * 2 * 3 // 4 and sums[0].crosses_hosts


def test_gathers_count_the_whole_array():
    mesh = Mesh(np.array(jax.devices()[:4]), ("a",))
    text = compiled_text(lambda x: x * 2, mesh, [PartitionSpec("a")], PartitionSpec(), (64, 16))
    (gather,) = hlo.Program(text).collectives([0] * 4)
    assert (gather.kind, gather.count, gather.bytes) == ("all-gather", 1, 64 * 16 * 4)
    assert gather.link_bytes == 64 * 16 * 4 * 3 // 4 and not gather.crosses_hosts


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, x=1", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[4], x=1", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), x=1", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x=1", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x=1", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(1)2}, x=1", [[0, 2], [1, 3]]),
        ("replica_groups={}, x=1", [[0, 1, 2, 3]]),
    ],
)
def test_groups_of_every_notation(text, groups):
    instruction = hlo.Instruction("x", "f32[]", "all-reduce", (), text, False)
    assert hlo._groups(instruction, 4) == groups


def test_memory_traffic_counts_loops_and_cuts():
    def loop(stack, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x + w), None), x, stack)[0]

    sizes = [(16, 4096), (4096,)]
    given = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]
    moved = hlo.Program(jax.jit(loop).lower(*given).compile().as_text()).memory_bytes()
    row = 4096 * 4
    # Each of 16 turns reads one row of the stack and x, and writes x; never the whole stack.
    assert 16 * 3 * row <= moved <= 16 * 8 * row


# Answers ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cpu_plan():
    """A plan made with this machine's virtual CPU devices and the figures of v5e."""
    config = tiny_config()
    task = pretrain.without_data(config)
    mesh = make_mesh(4, 2, 1)
    compiled = program.compile_step(task, mesh)
    plan = estimate.summarise("cpu", task, hardware.KINDS["v5e"], compiled)
    return config, task, compiled, plan


def test_plan_has_the_promised_keys_and_is_json(cpu_plan):
    plan = cpu_plan[-1]
    assert set(plan) >= KEYS
    assert json.loads(json.dumps(plan)) == plan


def test_bytes_of_parameters_and_moments(cpu_plan):
    _, task, _, plan = cpu_plan
    boxed = jax.eval_shape(task.init_params, jax.random.key(0))
    total = sum(x.size * 4 for x in jax.tree.leaves(boxed))
    matrices = sum(x.size * 4 for x in jax.tree.leaves(boxed) if x.ndim > 1)
    assert total / 2 <= plan["parameter_bytes_per_device"] <= total - matrices / 4
    assert plan["optimizer_bytes_per_device"] == 2 * plan["parameter_bytes_per_device"]
    state = 3 * plan["parameter_bytes_per_device"]
    assert plan["peak_bytes_per_device"] > state and plan["fits"]


def test_estimate_is_the_largest_roofline(cpu_plan):
    config, _, _, plan = cpu_plan
    step = plan["estimated_step_seconds"]
    assert step == max(plan["roofline_seconds"].values()) > 0
    assert plan["estimated_hours"] == pytest.approx(step)  # 3600 steps
    tokens = config.data.batch_size * config.data.seq_length
    assert plan["estimated_tokens_per_second"] == pytest.approx(tokens / step)
    text = estimate.text(plan)
    assert "all-reduce" in text and "no measurement" in text and plan["source"] in text


def test_too_little_memory_is_an_answer(cpu_plan):
    _, task, compiled, _ = cpu_plan
    small = dataclasses.replace(hardware.KINDS["v5e"], memory_bytes=compiled.peak_bytes - 2**20)
    plan = estimate.summarise("cpu", task, small, compiled)
    assert not plan["fits"]
    advice = " ".join(plan["advice"])
    assert "remat" in advice and "accumulate=2" in advice and "bfloat16" in advice
    assert "NO, 0.00 GiB too much" in estimate.text(plan)


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 31.25G of 15.75G hbm.",
         31.25 * 2**30),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
         "temporaries (234.38G) exceeds available HBM (15.75G).", 234.38 * 2**30),
    ],
)  # fmt: skip
def test_bytes_of_a_refused_program(message, wanted):
    assert program._wanted_bytes(message) == int(wanted)


def test_a_mesh_that_does_not_fit_the_config_is_refused():
    with pytest.raises(UserError, match="batch"):
        program.mesh_of(tiny_config(data__batch_size=12), jax.devices())


# Fine-tuning ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fine_tuning(tmp_path_factory):
    """Flags of a fine-tuning on short rows, from a checkpoint of 2 layers with 2 heads."""
    root = tmp_path_factory.mktemp("fine_tuning")
    interop.write_huggingface(root / "model", published(("mlm", "nsp")))
    rows = [{"text": "the fox is " + w, "label": w} for w in ("good", "bad") * 16]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "train.jsonl").write_text(text, encoding="utf-8")
    return [
        "--config=configs/classify.py", f"--config.init_from={root}/model",
        f"--config.data.train={root}/train.jsonl", "--config.data.seq_length=24",
        "--config.model.remat=full",
    ]  # fmt: skip


def test_a_fine_tuning_is_planned_with_the_sizes_of_its_checkpoint(fine_tuning, tmp_path, cpu_plan):
    command = configs.load([*fine_tuning, "--config.mesh.fsdp=2", "--config.mesh.data=2"])
    config, tokenizer = program.settle(command)
    assert (config.model.num_layers, config.model.num_heads) == (2, 2)
    assert program.mesh_of(config, jax.devices()[:4]).size == 4  # this machine has more
    task = program.make_task(config, tokenizer, str(tmp_path))
    assert task.model.config.vocab_size == CONFIG["vocab_size"]
    # Of a compiled program this takes memory and collectives alone; any serves.
    plan = estimate.summarise("cpu", task, hardware.KINDS["v5e"], cpu_plan[2])
    assert plan["estimated_steps"] == 3 and plan["model_flops_per_step"] > 0
    # Rows of [CLS] the fox is good [SEP]: 6 tokens, filled up to a length of batches, not to 24.
    length = task.batch_spec()["input_ids"].shape[1]
    assert length < 24
    step = plan["estimated_step_seconds"]
    assert plan["estimated_tokens_per_second"] == pytest.approx(32 * length / step)
    # A layer has a third of its training step's work in the forward pass: remat does it again.
    work = estimate.recomputed_flops(task.config, 32, length)
    assert 0.6 * plan["model_flops_per_step"] / 3 < work < plan["model_flops_per_step"] / 3


def test_other_sizes_than_the_checkpoint_has_are_refused(fine_tuning):
    with pytest.raises(UserError, match=r"num_layers=3 was asked for.* has 2"):
        program.settle(configs.load([*fine_tuning, "--config.model.num_layers=3"]))


def test_a_fine_tuning_without_training_data_has_no_plan(fine_tuning, tmp_path):
    flags = [f for f in fine_tuning if "data.train" not in f]
    data = fine_tuning[2].partition("=")[2]
    config, tokenizer = program.settle(configs.load([*flags, f"--config.data.test={data}"]))
    with pytest.raises(UserError, match="no training step"):
        program.make_task(config, tokenizer, str(tmp_path))


# The front door ---------------------------------------------------------------------------------


def plan_command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bertjax.plan", *arguments],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | {"XLA_FLAGS": ""},
    )  # fmt: skip


def test_front_door_refuses_in_one_sentence():
    done = plan_command("--config=configs/tiny.py", "--topology=v7:2x2")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "v5e:2x4" in done.stderr
    done = plan_command("--config=configs/tiny.py")
    assert done.returncode == 2 and "--topology" in done.stderr


def test_the_devices_of_this_machine_are_not_taken():
    """Of `main` itself, since JAX has read its environment by then."""
    code = """
import jax
from bertjax.errors import UserError
from bertjax.plan.__main__ import main
try:
    main(["--config=configs/tiny.py"])
except UserError:
    print(jax.config.jax_platforms)
"""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.stdout == "cpu\n", done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is here")
def test_without_the_compiler_it_names_the_extra():
    done = plan_command("--config=configs/tiny.py", "--topology=v5e:2x2")
    assert done.returncode == 2 and "bertjax[plan]" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("topology", "package", "devices"),
    [("v5e:2x2", "libtpu", 4), ("v4:2x2x1", "libtpu", 4), ("h100:1x8", "jax_cuda13_plugin", 8)],
)
def test_real_compile(topology, package, devices):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}, of the extra 'plan'")
    done = plan_command("--config=configs/tiny.py:smoke", f"--topology={topology}", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert set(plan) >= KEYS and plan["fits"] and plan["devices"] == devices
    assert any(c["kind"] == "all-reduce" for c in plan["collectives"])


@pytest.mark.long
def test_real_compile_of_a_fine_tuning_on_a_mesh_that_this_machine_has_not(fine_tuning):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu, of the extra 'plan'")
    done = plan_command(
        *fine_tuning, "--topology=v5e:2x4", "--config.mesh.fsdp=8", "--config.mesh.data=1", "--json"
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["fits"] and plan["mesh"]["fsdp"] == 8
    assert plan["parameter_bytes_per_device"] < 30_000 and plan["model_flops_per_step"] > 0


@pytest.mark.long
def test_out_of_memory_is_an_answer():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu, of the extra 'plan'")
    done = plan_command(
        "--config=configs/base.py:num_layers=4,preset=phase2", "--topology=v5e:2x2", "--json",
        "--config.data.batch_size=2048", "--config.mesh.fsdp=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert not plan["fits"] and plan["advice"] and plan["estimated_hours"] is None
    assert plan["peak_bytes_per_device"] > plan["memory_bytes_per_device"]
