"""A capture for the viewer's benchmark: samples in each of 100,000 functions, and in one of 2,000 basic blocks.

The program is assembled and never run. `wide` is a chain of blocks, each with a branch that was always taken; the other
functions only return. Samples are windows of 32 entries of one walk, as in generate.py.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from generate import _PAGE, _START_NS, _build_id, _segment
from perfdata import DEPTH, SAMPLE_BYTES, Writer

__all__ = ["BLOCKS", "FUNCTIONS", "Many", "generate_many"]

FUNCTIONS, BLOCKS = 100_000, 2_000
_MODULE = "/opt/lbrbench/many"
_PID, _BASE = 4201, 0x55D0_C0DE_0000
_SIZE = 16
"""Bytes of a function, and of a block."""
_RETURN, _JUMP = 5, 3
"""The offset of the branch in a function, and in a block."""
_WALK = 1_000_000
_AT_ONCE = 4096


@dataclass(frozen=True)
class Many:
    """A capture: its path and its contents."""

    perf_data: str
    symfs: str
    samples: int


def generate_many(directory: Path, size: int) -> Many:
    """The capture of about `size` bytes in `directory`: made now, or found there from before."""
    symfs = directory / "symfs"
    binary = symfs / _MODULE.lstrip("/")
    path = directory / f"{size}-many.perf.data"
    samples = max(1, size // SAMPLE_BYTES)
    if not binary.exists():
        _build(directory, binary)
        path.unlink(missing_ok=True)
    if not path.exists():
        part = path.with_suffix(".part")
        _write(part, binary, samples)
        part.replace(path)
    return Many(str(path), str(symfs), samples)


def _build(directory: Path, binary: Path) -> None:
    lines = [".text", ".p2align 12", ".type wide, @function", "wide:"]
    for block in range(BLOCKS):
        lines += [
            f".Lb{block}: cmp $1, %edi",
            f"je .Lb{block + 1}",
            "add $2, %eax",
            f".p2align {_SIZE.bit_length() - 1}",
        ]
    lines += [f".Lb{BLOCKS}: ret", ".size wide, .-wide", f".p2align {_SIZE.bit_length() - 1}"]
    for number in range(FUNCTIONS):
        name = f"function_{number:06d}"
        lines += [
            f".type {name}, @function",
            f"{name}: add $1, %eax",
            "xor %ecx, %ecx",
            "ret",
            f".size {name}, .-{name}",
        ]
        lines += [f".p2align {_SIZE.bit_length() - 1}"]
    binary.parent.mkdir(parents=True, exist_ok=True)
    source = directory / "many.s"
    source.write_text("\n".join([*lines, ".globl wide", ""]))
    options = ["-nostdlib", "-shared", "-Wl,--build-id=sha1", "-Wl,-z,separate-code"]
    subprocess.run(["gcc", *options, "-o", str(binary), str(source)], check=True)


def _walk(wide: int, first: int) -> NDArray[np.uint64]:
    """(from, to, flags) of taken branches, oldest first: now through functions at random, now all through `wide`."""
    rng = np.random.default_rng(1)
    function = rng.permutation(np.concatenate([np.arange(FUNCTIONS), rng.zipf(1.3, _WALK // 2) % FUNCTIONS]))
    blocks = wide + _SIZE * np.arange(BLOCKS)
    through = _WALK // BLOCKS // 4
    pieces, each = [], len(function) // through
    for number in range(through):
        starts = first + _SIZE * function[number * each : (number + 1) * each]
        pieces += [np.stack([starts, starts + _RETURN], 1), np.stack([blocks, blocks + _JUMP], 1)]
    at = np.concatenate(pieces)  # (where a range begins, where the branch that ends it is)
    entries = np.empty((len(at) - 1, 3), np.uint64)
    entries[:, 0], entries[:, 1] = at[:-1, 1] + _BASE, at[1:, 0] + _BASE
    wrong = rng.random(len(entries)) < 0.04
    entries[:, 2] = np.where(wrong, 1, 2) | rng.integers(1, 40, len(entries)) << 4
    return entries


def _write(path: Path, binary: Path, samples: int) -> None:
    rng = np.random.default_rng(samples)
    offset, vaddr, length = _segment(binary)
    symbols = subprocess.run(["nm", str(binary)], check=True, capture_output=True, text=True).stdout
    address = {name: int(at, 16) for at, _, name in map(str.split, symbols.splitlines()) if name in _NAMED}
    walk = _walk(*(address[name] for name in _NAMED))[::-1].copy()
    windows = np.lib.stride_tricks.sliding_window_view(walk.reshape(-1), 3 * (DEPTH + 1))[::3]
    writer, now = Writer(path), _START_NS
    writer.comm(_PID, "many", now + 1)
    size = (vaddr % _PAGE + length + _PAGE - 1) & -_PAGE
    writer.mmap2(_PID, _BASE + (vaddr & -_PAGE), size, offset & -_PAGE, _MODULE, now + 2)
    for done in range(0, samples, _AT_ONCE):
        count = min(_AT_ONCE, samples - done)
        times = now + np.cumsum(rng.integers(1_000, 200_000, count))
        rows = windows[rng.integers(0, len(windows), count)]
        writer.samples(rows[:, 0], np.full(count, _PID, np.uint64), times.astype(np.uint64), rows[:, 3:])
        writer.finished_round()
        now = int(times[-1])
    writer.close(_build_id(binary), _MODULE)


_NAMED = ("wide", "function_000000")
