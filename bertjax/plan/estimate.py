"""From a compiled step to an answer: does it fit, how fast can it be, what to change."""

from __future__ import annotations

from typing import Any

from ml_collections import config_dict

from bertjax.config import bert_config
from bertjax.model import flops
from bertjax.parallel.mesh import row_shards
from bertjax.plan.hardware import GIB, Hardware
from bertjax.plan.program import StepProgram
from bertjax.tasks.task import Task


def recomputed_flops(config: config_dict.ConfigDict, rows: int, length: int) -> int:
    """FLOPs that model.remat adds to a step over `rows` rows of `length` tokens: the layers once
    more, or their attention alone."""
    bert = bert_config(config)
    layer = {
        "none": 0,
        "dots": 4 * length**2 * bert.hidden_size,
        "full": flops.layer_flops(bert, length),
    }[bert.remat]
    return rows * (bert.num_layers - bert.frozen_layers) * layer


def summarise(
    topology: str, task: Task, hardware: Hardware, program: StepProgram
) -> dict[str, Any]:
    """The plan as JSON values. Times are null where the program was refused."""
    config, batch = task.config, task.batch_spec()
    rows, length = batch["input_ids"].shape  # of a fine-tuning those of its longest batch
    devices, useful = program.mesh.size, task.step_flops(batch)
    fits = not program.refused and program.peak_bytes <= hardware.memory_bytes
    times: dict[str, float] = {}
    if not program.refused:
        rate = hardware.bfloat16_flops
        if config.model.dtype == "float32":
            rate = hardware.float32_flops
        within = [c for c in program.collectives if not c.crosses_hosts]
        across = [c for c in program.collectives if c.crosses_hosts]
        times = {
            "compute": (useful + recomputed_flops(config, rows, length)) / devices / rate,
            "memory": program.memory_traffic / hardware.memory_bandwidth,
            "links": sum(c.link_bytes for c in within) / hardware.link_bandwidth
            + sum(c.link_bytes for c in across) / hardware.network_bandwidth,
        }
    step = max(times.values(), default=None)
    hours = None if step is None or not task.train_steps else step * task.train_steps / 3600
    return {
        "topology": topology,
        "hardware": hardware.name,
        "devices": devices,
        "hosts": program.hosts,
        "mesh": dict(program.mesh.shape),
        "parameter_bytes_per_device": program.parameter_bytes,
        "optimizer_bytes_per_device": program.optimizer_bytes,
        "peak_bytes_per_device": program.peak_bytes,
        "memory_bytes_per_device": hardware.memory_bytes,
        "fits": fits,
        "advice": [] if fits else advice(config, program, hardware),
        "model_flops_per_step": useful,
        "memory_traffic_bytes_per_device": program.memory_traffic,
        "collectives": [vars(collective) for collective in program.collectives],
        "compile_seconds": round(program.compile_seconds, 2),
        "roofline_seconds": times,
        "estimated_step_seconds": step,
        "estimated_tokens_per_second": None if step is None else rows * length / step,
        "estimated_steps": task.train_steps or None,
        "estimated_hours": hours,
        "source": hardware.source,
    }


def advice(config: config_dict.ConfigDict, program: StepProgram, hardware: Hardware) -> list[str]:
    """What to change so that a step that does not fit may fit, the cheapest first."""
    rows = config.data.batch_size // row_shards(program.mesh) // config.train.accumulate
    state = program.parameter_bytes + program.optimizer_bytes
    found = []
    if config.model.dtype == "float32":
        found.append("--config.model.dtype=bfloat16 halves the activations")
    if config.model.remat == "none":
        found.append("--config.model.remat=dots keeps the matrix products alone")
    if rows > 1:
        factor = next(f for f in range(2, rows + 1) if rows % f == 0)
        found.append(
            f"--config.train.accumulate={config.train.accumulate * factor} runs "
            f"{rows // factor} rows a device at a time instead of {rows}, with the same result"
        )
    if config.model.remat != "full":
        found.append("--config.model.remat=full recomputes every layer, for a third more work")
    if config.mesh.fsdp == 1 and program.mesh.size > 1 and state > hardware.memory_bytes / 10:
        found.append(
            f"--config.mesh.fsdp={program.mesh.size} --config.mesh.data=1 splits parameters and "
            f"moments, {state / GIB:.2f} GiB a device, over the devices"
        )
    found.append("a larger topology, where each device has fewer rows")
    return found


def text(plan: dict[str, Any]) -> str:
    """The plan for a person."""
    gib = lambda value: f"{value / GIB:.2f} GiB"  # noqa: E731
    mesh = ", ".join(f"{name} {size}" for name, size in plan["mesh"].items())
    spare = plan["memory_bytes_per_device"] - plan["peak_bytes_per_device"]
    rows = [
        ("topology", f"{plan['topology']}: {plan['devices']} x {plan['hardware']} on "
                     f"{plan['hosts']} hosts"),
        ("mesh", mesh),
        ("parameters", f"{gib(plan['parameter_bytes_per_device'])} a device"),
        ("optimizer", f"{gib(plan['optimizer_bytes_per_device'])} a device"),
        ("peak memory", f"{gib(plan['peak_bytes_per_device'])} a device of "
                        f"{gib(plan['memory_bytes_per_device'])}"),
        ("fits", f"yes, {gib(spare)} to spare" if plan["fits"] else f"NO, {gib(-spare)} too much"),
        *(("" if i else "what to change", line) for i, line in enumerate(plan["advice"])),
        ("compiled in", f"{plan['compile_seconds']:.1f} s"),
        ("model work", f"{plan['model_flops_per_step'] / 1e12:.3g} TFLOP a step"),
    ]  # fmt: skip
    for c in plan["collectives"]:
        where = "across hosts" if c["crosses_hosts"] else "within a host"
        rows.append(
            (c["kind"], f"{c['count']} a step, {c['bytes'] / 1e6:,.1f} MB, among {c['group_size']} "
                        f"devices, {where}")
        )  # fmt: skip
    if plan["estimated_step_seconds"] is not None:
        rows += _estimate_rows(plan)
    return "\n".join(f"{name:16}{value}" for name, value in rows)


def _estimate_rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    times = ", ".join(f"{k} {v * 1e3:.3g} ms" for k, v in plan["roofline_seconds"].items())
    step, hours = plan["estimated_step_seconds"], plan["estimated_hours"]
    run = "the number of steps is not known: set train.steps"
    if hours is not None:
        run = f"{plan['estimated_steps']:,} steps: {hours:.1f} hours"
    return [
        ("rooflines", times),
        ("estimate", f"at best {step * 1e3:.3g} ms a step, "
                     f"{plan['estimated_tokens_per_second']:,.0f} tokens/s; {run}"),
        ("", "the largest of the rooflines: no measurement, and a real step is slower"),
        ("peak figures", plan["source"]),
    ]  # fmt: skip
