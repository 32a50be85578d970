"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, vectorised with NumPy.

A CRC register is linear over GF(2): the register after A followed by B is the register after A,
pushed through len(B) zero bytes, xor the register after B alone. So a long buffer is cut into
lanes that advance together, and the lanes are joined in pairs at the end.
"""

from __future__ import annotations

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
_MAX_LANES = 1 << 14
_MIN_LANE_BYTES = 256


def _advance_table(bits: int) -> np.ndarray:
    """Register after `bits` more bits of data, for each value of its `bits` low bits."""
    table = np.arange(1 << bits, dtype=np.uint32)
    for _ in range(bits):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_BYTE = [int(value) for value in _advance_table(8)]
_WORD = _advance_table(16)


def _apply(matrix: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """A GF(2) matrix, given by its 32 columns, times each register."""
    result = np.zeros_like(registers)
    for bit, column in enumerate(matrix):
        result ^= np.where((registers >> np.uint32(bit)) & 1, column, np.uint32(0))
    return result


def _zero_bytes(count: int) -> np.ndarray:
    """The columns of the matrix that pushes a register through `count` zero bytes."""
    unit = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = _advance_table(8)[unit & 0xFF] ^ (unit >> 8)
    result = unit
    while count:
        if count & 1:
            result = _apply(power, result)
        power = _apply(power, power)
        count >>= 1
    return result


def crc32c(data: bytes | memoryview | np.ndarray) -> int:
    """CRC-32C of `data`, as RFC 3720 defines it: crc32c(b'123456789') = 0xE3069283."""
    data = memoryview(data).cast("B")
    register, done = 0xFFFFFFFF, 0
    if len(data) >= 2 * _MIN_LANE_BYTES:
        lanes = min(_MAX_LANES, 1 << (len(data) // _MIN_LANE_BYTES).bit_length() - 1)
        words = len(data) // (2 * lanes)
        done = 2 * lanes * words
        columns = np.frombuffer(data[:done], "<u2").reshape(lanes, words).T
        registers = np.zeros(lanes, np.uint32)
        registers[0] = register
        for column in np.ascontiguousarray(columns):
            registers = _WORD[(registers ^ column) & 0xFFFF] ^ (registers >> 16)
        shift = _zero_bytes(2 * words)
        while len(registers) > 1:
            registers = _apply(shift, registers[::2]) ^ registers[1::2]
            shift = _apply(shift, shift)
        register = int(registers[0])
    for byte in data[done:]:
        register = _BYTE[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview | np.ndarray) -> int:
    """CRC-32C as TensorFlow and LevelDB store it: rotated by 15 bits and moved by a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
