"""Stateless randomness on the host: hashes and permutations of (seed, epoch, ...) in numpy.

A generator object per example would cost more than assembling the example; a stored
permutation of every epoch would cost memory in every process. The hash is the finaliser of
SplitMix64 (Steele, Lea, Flood 2014); the permutation is a Feistel network with cycle walking
(Black, Rogaway 2002).
"""

from __future__ import annotations

import numpy as np

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 4  # with a strong round function indistinguishable from random (Luby, Rackoff 1988)


def mix(*values: int) -> int:
    """A 64-bit hash of integers, in order."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + _GOLDEN & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def uniform(*values: int) -> float:
    """A number in [0, 1) from the hash of integers."""
    return (mix(*values) >> 11) / (1 << 53)


def mix_array(key: int, values: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each value of a uint64 array, under a key."""
    with np.errstate(over="ignore"):
        state = (values + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)


def uniforms(key: int, shape: tuple[int, ...]) -> np.ndarray:
    """float64 in [0, 1) of this shape, from a key."""
    counters = np.arange(np.prod(shape), dtype=np.uint64)
    return ((mix_array(key, counters) >> np.uint64(11)) / (1 << 53)).reshape(shape)


def permute(indices: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a random permutation of 0..size-1 sends these indices; int64, no memory kept.

    The permutation of the smallest square domain 2^(2b) >= size is applied until every value
    lies below `size`: at most 4 times on average.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << half) - 1)
    keys = [mix(key, turn) for turn in range(_ROUNDS)]

    def feistel(values: np.ndarray) -> np.ndarray:
        left, right = values >> np.uint64(half), values & low
        for turn_key in keys:
            left, right = right, left ^ (mix_array(turn_key, right) >> np.uint64(16)) & low
        return left << np.uint64(half) | right

    result = feistel(np.asarray(indices, np.uint64))
    outside = np.flatnonzero(result >= size)
    while len(outside):
        result[outside] = feistel(result[outside])
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)
