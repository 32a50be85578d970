"""What a compiled program moves: bytes through memory and collectives, read off its HLO text.

XLA's own cost analysis counts the body of a loop once; here it counts as often as it runs.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip
_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8,
}  # fmt: skip
_ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")
_OP = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations|called_computations)=\{?(%[^,}]*"
                     r"(?:, %[^,}]*)*)")  # fmt: skip
# These move nothing by themselves.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional",
    "call", "after-all", "partition-id", "replica-id", "opt-barrier", "iota",
}  # fmt: skip
# Custom calls of the TPU compiler that only name memory.
_NO_WORK = re.compile(r'custom_call_target="(AllocateBuffer|ConcatBitcast|.*Sharding)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    op: str
    operands: tuple[str, ...]
    attributes: str
    root: bool


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of collective among groups of one size; counts and bytes are of a whole step.

    bytes: of the whole arrays on one device, the larger of input and output; link_bytes: what one
    device has to send for it, by the bandwidth-optimal ring.
    """

    kind: str
    group_size: int
    crosses_hosts: bool
    count: int
    bytes: int
    link_bytes: int


class Program:
    """The computations of a compiled module (`jax.stages.Compiled.as_text()`)."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if line.startswith(("%", "ENTRY")) and line.endswith("{"):
                name = _NAME.search(line).group(1)
                current = self.computations[name] = {}
                if line.startswith("ENTRY"):
                    self.entry = name
            elif match := _INSTRUCTION.match(line):
                instruction = _instruction(line, match)
                current[instruction.name] = instruction

    def executed(self, fusions: bool = False) -> Iterator[tuple[str, Instruction, int]]:
        """(computation, instruction, how often it runs in one step), `fusions` opened or not."""
        yield from self._executed(self.entry, 1, fusions)

    def _executed(
        self, name: str, times: int, fusions: bool
    ) -> Iterator[tuple[str, Instruction, int]]:
        for instruction in self.computations[name].values():
            yield name, instruction, times
            inner = times * (self.trips(instruction) if instruction.op == "while" else 1)
            if instruction.op in ("while", "call", "conditional", "async-start") or (
                fusions and instruction.op == "fusion"
            ):
                for called in _called(instruction):
                    yield from self._executed(called, inner, fusions)

    def trips(self, loop: Instruction) -> int:
        """How often a counting loop runs: its known count, or the bound in its condition; or 1."""
        if known := re.search(r"known_trip_count[^0-9]*(\d+)", loop.attributes):
            return int(known.group(1))
        condition = re.search(r"condition=%([\w.\-]+)", loop.attributes).group(1)
        bounds = [
            int(instruction.attributes)
            for instruction in self.computations[condition].values()
            if instruction.op == "constant" and instruction.attributes.isdecimal()
        ]
        return bounds[0] if len(bounds) == 1 else 1

    def memory_bytes(self) -> int:
        """Bytes that one step reads from and writes to the device's memory, values kept on the
        chip apart. An estimate: what each kernel takes in and gives out."""
        total = 0.0
        for name, instruction, times in self.executed():
            if instruction.op not in _FREE and not instruction.op.endswith("-done"):
                total += times * self._traffic(self.computations[name], instruction)
        return int(total)

    def _traffic(self, scope: dict[str, Instruction], instruction: Instruction) -> float:
        operands = [scope[name] for name in instruction.operands if name in scope]
        sizes = [_size(operand.shape) for operand in operands]
        result = _size(instruction.shape)
        if instruction.op == "dynamic-slice":
            return 2 * result
        if instruction.op == "dynamic-update-slice":
            return 2 * sizes[1]
        if instruction.op == "copy-start":  # its result names both sides
            return result
        if instruction.op == "slice-start":  # (whole, cut, ...)
            return _size(list(_ARRAY.finditer(instruction.shape))[1].group(), True)
        if instruction.op == "custom-call" and _NO_WORK.search(instruction.attributes):
            return 0.0
        if instruction.op == "fusion":
            inside = _called(instruction)[0]
            reads = [min(size, self._read(inside, i)) for i, size in enumerate(sizes)]
            return sum(reads) + min(result, self._written(inside))
        return sum(sizes) + result

    def _read(self, fused: str, index: int) -> float:
        """Bytes that a fused computation reads of its parameter `index`: of an array that it only
        cuts, the cuts; of one that it only writes into, nothing."""
        inside = self.computations[fused].values()
        parameter = next(i for i in inside if i.op == "parameter" and int(i.attributes) == index)
        return self._read_of(fused, parameter)

    def _read_of(self, fused: str, value: Instruction) -> float:
        total = 0.0
        for use in self.computations[fused].values():
            for place, operand in enumerate(use.operands):
                if operand != value.name:
                    continue
                if use.op == "dynamic-slice" and place == 0:
                    total += _size(use.shape, True)
                elif use.op == "bitcast":
                    total += self._read_of(fused, use)
                elif use.op == "fusion":
                    total += self._read(_called(use)[0], place)
                elif use.op != "dynamic-update-slice" or place:
                    return math.inf  # the whole
        return total

    def _written(self, fused: str) -> float:
        """Bytes that a fused computation writes: of an array that it updates, the update."""
        inside = self.computations[fused]
        root = next(instruction for instruction in inside.values() if instruction.root)
        parts = [inside[name] for name in root.operands] if root.op == "tuple" else [root]
        total = 0.0
        for part in parts:
            while part.op == "bitcast":
                part = inside[part.operands[0]]
            if part.op == "fusion":
                total += min(_size(part.shape), self._written(_called(part)[0]))
            elif part.op == "dynamic-update-slice":
                total += _size(inside[part.operands[1]].shape, True)
            else:
                total += _size(part.shape, True)
        return total

    def collectives(self, hosts: Sequence[int]) -> list[Collective]:
        """What the devices exchange; hosts: the host of each device, in the order of the mesh."""
        sums: dict[tuple[str, int, bool], list[int]] = collections.defaultdict(lambda: [0, 0, 0])
        for name, instruction, times in self.executed(fusions=True):
            kind = instruction.op.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            groups = _groups(instruction, len(hosts))
            size = max(map(len, groups))
            if size < 2:
                continue
            scope = self.computations[name]
            given = sum(_size(scope[o].shape, True) for o in instruction.operands if o in scope)
            whole = given * (size if kind == "all-gather" else 1)
            crosses = any(len({hosts[device] for device in group}) > 1 for group in groups)
            entry = sums[kind, size, crosses]
            entry[0] += times
            entry[1] += int(times * whole)
            entry[2] += int(times * whole * _sent(kind, size))
        return [
            Collective(*key, *values)
            for key, values in sorted(sums.items(), key=lambda item: -item[1][2])
        ]


def _sent(kind: str, size: int) -> float:
    """The share of the whole array that each of `size` devices sends."""
    if kind == "all-reduce":
        return 2 * (size - 1) / size
    return 1.0 if kind.startswith("collective") else (size - 1) / size


def _instruction(line: str, match: re.Match[str]) -> Instruction:
    rest = line[match.end() :]
    shape_end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    op = _OP.match(rest, shape_end)
    end = op.end() - 1 + _closing(rest[op.end() - 1 :])
    inner, attributes = rest[op.end() : end - 1], rest[end:]
    if op.group(1) in ("parameter", "constant"):
        attributes = inner
    return Instruction(
        match.group(2),
        rest[:shape_end],
        op.group(1),
        tuple(_NAME.findall(inner)),
        attributes,
        bool(match.group(1)),
    )


def _closing(text: str) -> int:
    """The index after the bracket that closes the one at the start of `text`."""
    depth = 0
    for index, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return index + 1
    raise ValueError(f"no closing bracket in {text[:80]}")


def _called(instruction: Instruction) -> list[str]:
    return [
        name
        for match in _CALLED.finditer(instruction.attributes)
        for name in _NAME.findall(match.group(1))
    ]


@functools.cache
def _size(shape: str, on_chip: bool = False) -> float:
    """Bytes of an array or of all arrays of a tuple; those kept on the chip only if asked for."""
    total = 0.0
    for dtype, sizes, layout in _ARRAY.findall(shape):
        space = re.search(r"S\((\d+)\)", layout)
        if dtype in _BYTES and (on_chip or not space or space.group(1) == "0"):
            total += _BYTES[dtype] * math.prod(int(size) for size in sizes.split(",") if size)
    return total


def _groups(instruction: Instruction, devices: int) -> list[list[int]]:
    """The groups of device numbers among which a collective runs."""
    text = instruction.attributes
    if instruction.op.startswith("collective-permute"):
        pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", text)
        numbers = list(map(int, re.findall(r"\d+", pairs.group(1))))
        return [list(pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    if match := re.search(r"replica_groups=\{(\{[\d,{} ]*\})\}", text):
        return [list(map(int, g.split(","))) for g in re.findall(r"\{([\d, ]+)\}", match.group(1))]
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        count, size = map(int, match.group(1).split(","))
        order = _transposed(match.group(2), match.group(3))
        return [order[i * size : (i + 1) * size] for i in range(count)]
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}", text):
        return _mesh_groups(*match.groups())
    return [list(range(devices))]


def _transposed(shape: str, order: str | None) -> list[int]:
    sizes = [int(size) for size in shape.split(",")]
    axes = [int(axis) for axis in order.split(",")] if order else list(range(len(sizes)))
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    places = itertools.product(*(range(sizes[axis]) for axis in axes))
    return [sum(p * strides[a] for p, a in zip(place, axes, strict=True)) for place in places]


def _mesh_groups(mesh: str, devices: str, chosen: str) -> list[list[int]]:
    """Groups along some axes of a mesh: mesh['a'=2,'b'=4] {'a'}, or parts of axes, 'b':(1)2."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    parts: dict[str, list[int]] = {}  # axis -> the factors that it is cut into
    used: set[tuple[str, int]] = set()
    for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen):
        first, length = (int(before), int(size)) if size else (1, sizes[name])
        parts[name] = [first, length, sizes[name] // (first * length)]
        used.add((name, 1))
    factors = [
        (name, index, factor)
        for name, size in sizes.items()
        for index, factor in enumerate(parts.get(name, [size]))
    ]
    order = re.search(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?", devices)
    total = math.prod(sizes.values())
    ids = _transposed(order.group(1), order.group(2)) if order else list(range(total))
    groups = collections.defaultdict(list)
    for place, device in zip(
        itertools.product(*(range(f) for _, _, f in factors)), ids, strict=True
    ):
        key = tuple(
            p for p, (name, index, _) in zip(place, factors, strict=True)
            if (name, index) not in used
        )  # fmt: skip
        groups[key].append(device)
    return list(groups.values())
