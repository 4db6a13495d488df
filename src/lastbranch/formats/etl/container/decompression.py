"""Decompression of trace buffers: LZXPRESS, LZXPRESS with Huffman codes, LZNT1.

The format is in the low 16 bits of State (offset 0x2C) of the file's first buffer. The payload of a buffer with flag
0x40 is compressed; its Offset field (0x30), less the header, is the size after decompression. Buffers are independent:
a damaged one costs only itself.

The compiled library decodes (``native/decompress.c``). The decoders here work without the library, in several
processes, and for data that the library finds damaged: they name the fault and its place.

No NumPy here: a worker process imports this module alone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO

from .... import native
from ....errors import FormatError

__all__ = ["DECODERS", "LZNT1", "XPRESS", "XPRESS_HUFF", "decompress", "decompress_into", "decompress_many", "stop"]


# -- What the three formats share

MIN_MATCH = 3


def _take(name: str, block: bytes, pos: int, count: int) -> bytes:
    if pos + count > len(block):
        raise FormatError(f"{name} data is cut off", offset=pos)
    return block[pos : pos + count]


def _long_length(name: str, block: bytes, pos: int, base: int) -> tuple[int, int]:
    """A match length that does not fit in its field, from ``pos`` on, and the position after it.

    A byte on top of ``base``; 255 there goes on in a u16 that replaces the sum, 0 there in a u32.
    """
    value, start = _take(name, block, pos, 1)[0], pos
    pos += 1
    if value != 255:
        return base + value, pos
    for width in (2, 4):
        value = int.from_bytes(_take(name, block, pos, width), "little")
        pos += width
        if value:
            break
    if value < base:
        raise FormatError(f"{name} match length in the wrong form", offset=start, field="length", value=value)
    return value, pos


def _copy(name: str, out: bytearray, distance: int, length: int, size: int, offset: int, whole: str = "data") -> None:
    """Append ``length`` bytes from ``distance`` back, up to ``size`` in all. A match may overlap its own output."""
    if distance > len(out):
        reason = f"{name} match before the start of the {whole}"
        raise FormatError(reason, offset=offset, field="distance", value=distance)
    if len(out) + length > size:
        raise FormatError(f"{name} {whole} decodes to more than {size} bytes", offset=offset)
    if length < distance:
        out += out[-distance : length - distance]
    else:
        out += (out[-distance:] * (length // distance + 1))[:length]


# -- Plain LZXPRESS ("plain LZ77"), the format of nearly all logs
#
# Sources: [MS-XCA] 2.3 (compression) and 2.4 (decompression). A stream is a row of groups: a 32-bit little-endian flag
# word, then 32 tokens, the first described by the word's highest bit. 0: one literal byte. 1: a match, u16
# ``(distance - 1) << 3 | length - 3``. A length field of 7 goes on in a half byte (the low half of a new byte, or the
# high half of the byte that the long match before it opened), 15 there as in `_long_length`. The stream ends with the
# input; unused bits of the last flag word are 1.
#
# Decoding goes in two gears. `_run` takes whole groups at full speed and checks only what cannot be seen afterwards. If
# anything about a group is irregular (the input ends inside, too much output, a wrong or four-byte length), the decoder
# goes back to the group's start. From there `_walk` takes one token at a time, checks everything and reports what is
# wrong where.
#
# Measured: keeping slice objects by match word and literal runs by flag byte saves 15 %. Tables of the input's 16-bit
# words made with NumPy save nothing. A NumPy lockstep over buffers was not built: its array calls alone took as long as
# this loop for 360 buffers, and longer for fewer.


WINDOW = 1 << 13  # distances are 13 bits

# Slices of the output by match word, for matches of fewer than 10 bytes that do not overlap themselves; filled on
# first use, because filling all of it costs as much as decoding a megabyte.
_slices: list[slice | None] = [None] * 0x10000


class _Slices(dict[int, "slice | None"]):
    """The same for one block, as long as its window is not full."""

    def __missing__(self, word: int) -> None:
        return None


_Known = list["slice | None"] | _Slices


def _literal_runs(byte: int) -> tuple[tuple[int, ...], int]:
    """The number of literals before each match of eight flags, and the number after the last one."""
    *before, tail = (len(zeros) for zeros in f"{byte:08b}".split("1"))
    return tuple(before), tail


_RUNS = [_literal_runs(byte) for byte in range(256)]


class _Irregular(Exception):
    """Something in a group that only `_walk` can judge."""


def decompress_xpress(block: bytes | memoryview, size: int) -> bytes:
    """The ``size`` bytes that ``block`` holds; FormatError (offset: within the block) if it is damaged."""
    block = bytes(block)
    out = bytearray()
    pos, half = _run(block, size, out, 0, 0, _Slices(), WINDOW)
    if len(out) >= WINDOW:
        pos, half = _run(block, size, out, pos, half, _slices, size + 1)
    _walk(block, size, out, pos, half)
    if len(out) != size:
        raise FormatError(f"XPRESS data ends after {len(out)} of {size} bytes", offset=len(block))
    return bytes(out)


def _walk(block: bytes, size: int, out: bytearray, pos: int, half: int) -> None:
    """Decode from ``pos`` to the end of the input.

    ``half`` is 10 plus the half byte that waits for the next long match, or 0 if none does.
    """
    end = len(block)
    while pos < end:
        flags = int.from_bytes(_take("XPRESS", block, pos, 4), "little")
        pos += 4
        for bit in range(31, -1, -1):
            if pos == end:
                break
            start = pos
            if not flags >> bit & 1:
                if len(out) == size:
                    raise FormatError(f"XPRESS data decodes to more than {size} bytes", offset=start)
                out.append(block[pos])
                pos += 1
                continue
            word = int.from_bytes(_take("XPRESS", block, pos, 2), "little")
            pos += 2
            length, distance = (word & 7) + MIN_MATCH, (word >> 3) + 1
            if length == 10:
                if half:
                    length, half = half, 0
                else:
                    byte = _take("XPRESS", block, pos, 1)[0]
                    length, half = 10 + (byte & 15), 10 + (byte >> 4)
                    pos += 1
                if length == 25:
                    length, pos = _long_length("XPRESS", block, pos, 22)
                    length += MIN_MATCH
            _copy("XPRESS", out, distance, length, size, start)


def _run(block: bytes, size: int, out: bytearray, pos: int, half: int, known: _Known, stop: int) -> tuple[int, int]:
    """Decode whole groups until ``out`` holds ``stop`` bytes or a group is not plain; returns the state before it."""
    # A slice is stored in `known` only after its distance was checked, and `out` only grows: the slice stays good for
    # the rest of the block, and for every block once the window is full.
    runs_of, last = _RUNS, len(block) - 4
    group, produced, half_before = pos, len(out), half
    try:
        while pos <= last and produced < stop:
            pos += 4
            for flags in block[group:pos][::-1]:
                before, tail = runs_of[flags]
                for run in before:
                    if run:
                        end = pos + run
                        out += block[pos:end]
                        pos = end
                    word = block[pos] | block[pos + 1] << 8
                    pos += 2
                    piece = known[word]
                    if piece is not None:
                        out += out[piece]
                        continue
                    length = word & 7
                    distance = (word >> 3) + 1
                    if distance > len(out):
                        raise _Irregular
                    if length != 7:
                        length += 3
                        if length < distance:
                            known[word] = slice(-distance, length - distance)
                    else:
                        if half:
                            length, half = half, 0
                        else:
                            byte = block[pos]
                            length, half = 10 + (byte & 15), 10 + (byte >> 4)
                            pos += 1
                        if length == 25:
                            length = 25 + block[pos]
                            pos += 1
                            if length == 280:
                                length = (block[pos] | block[pos + 1] << 8) + 3
                                pos += 2
                                if length < 25 or len(out) + length > size:
                                    raise _Irregular
                    if length < distance:
                        out += out[-distance : length - distance]
                    else:
                        out += (out[-distance:] * (length // distance + 1))[:length]
                if tail:
                    end = pos + tail
                    out += block[pos:end]
                    pos = end
            if pos > last + 4 or len(out) > size:
                raise _Irregular
            group, produced, half_before = pos, len(out), half
    except (_Irregular, IndexError):
        del out[produced:]
    return group, half_before


# -- LZXPRESS with Huffman codes ("LZ77+Huffman"), which an ETW session may choose (no file with it has been seen)
#
# Source: [MS-XCA] 2.1 and 2.2. Each 65,536 bytes of output have a block of their own: 256 bytes with the code lengths
# of 512 symbols (4 bits each, the even symbol in the low half; canonical codes, shorter first, then by symbol), then a
# bit stream in 16-bit little-endian words, highest bit first, mixed with plain bytes where the reader then is. Symbols
# to 255 are literals, 256 + 16 * b + n is a match of n + 3 bytes whose distance is 1 << b plus the next b bits. n = 15
# goes on in a plain byte, 255 there in a plain u16 that replaces the sum so far, 0 there in a u32. The reader is 16 to
# 32 bits ahead.
#
# Decoding ends when the output is complete. Symbol 256 at the end of the input is an end mark, and also the match of
# length 3 and distance 1. The reader, being ahead, cannot tell the two apart; the known size makes that needless.
# Writers leave different bytes after the end (the mark, read-ahead, after a multiple of 65,536 a whole further block),
# so the bytes after the end cannot be checked.


_HUFFMAN = "XPRESS-Huffman"
BLOCK = 1 << 16
TABLE = 256  # bytes of the code lengths
LONGEST = 15  # bits of a code


def decompress_huffman(block: bytes | memoryview, size: int) -> bytes:
    """The ``size`` bytes that ``block`` holds; FormatError (offset: within the block) if it is damaged."""
    block = bytes(block)
    out = bytearray()
    pos = 0
    while len(out) < size:
        codes = _codes(block, pos)
        # Matches may run over the end of a block; the next one begins where the output then is.
        pos = _block(block, pos + TABLE, codes, out, min(len(out) + BLOCK, size), size)
    return bytes(out)


def _codes(block: bytes, pos: int) -> list[int]:
    """``symbol << 4 | length`` by the next 15 bits of the stream ([MS-XCA] 2.2.4)."""
    if pos + TABLE > len(block):
        raise FormatError(f"{_HUFFMAN} data is cut off", offset=len(block), field="code lengths")
    by_length: list[list[int]] = [[] for _ in range(LONGEST + 1)]
    for index, byte in enumerate(block[pos : pos + TABLE]):
        by_length[byte & 15].append(2 * index)
        by_length[byte >> 4].append(2 * index + 1)
    codes: list[int] = []
    for length in range(1, LONGEST + 1):
        for symbol in by_length[length]:
            codes += [symbol << 4 | length] * (1 << LONGEST - length)
            if len(codes) > 1 << LONGEST:
                break
    if len(codes) != 1 << LONGEST:
        raise FormatError(f"{_HUFFMAN} code lengths make no code", offset=pos, field="code lengths")
    return codes


def _block(block: bytes, pos: int, codes: list[int], out: bytearray, stop: int, size: int) -> int:
    """Decode one block until ``out`` holds ``stop`` bytes; returns the position of the reader."""
    bits = _Bits(block, pos)
    while len(out) < stop:
        start = bits.pos
        entry = codes[bits.peek(LONGEST)]
        bits.skip(entry & 15)
        symbol = entry >> 4
        if symbol < 256:
            out.append(symbol)
            continue
        extra, length = symbol - 256 >> 4, symbol & 15
        if length == 15:
            length, bits.pos = _long_length(_HUFFMAN, block, bits.pos, 15)
        distance = (1 << extra) + bits.peek(extra)
        bits.skip(extra)
        _copy(_HUFFMAN, out, distance, length + MIN_MATCH, size, start)
    return bits.pos


class _Bits:
    """The bit stream. After the end of the input the reader delivers zeros, and raises once a zero is used."""

    def __init__(self, block: bytes, pos: int) -> None:
        self.block, self.pos = block, pos
        self.value, self.count, self.padding = 0, 0, 0
        self._fill()
        self._fill()

    def peek(self, count: int) -> int:
        return self.value >> self.count - count

    def skip(self, count: int) -> None:
        self.count -= count
        self.value &= (1 << self.count) - 1
        if self.count < self.padding:
            raise FormatError(f"{_HUFFMAN} data is cut off", offset=len(self.block))
        if self.count < 16:
            self._fill()

    def _fill(self) -> None:
        word = self.block[self.pos : self.pos + 2]
        if len(word) < 2:  # the bits that come first in a lone byte are missing
            self.padding += 16
        self.value = self.value << 16 | int.from_bytes(word.ljust(2, b"\0"), "little")
        self.pos += len(word)
        self.count += 16


# -- LZNT1, the compression of NTFS, which an ETW session may choose too (no file with it has been seen)
#
# Source: [MS-XCA] 2.5. The data is cut into chunks of 4,096 bytes, each with a u16 header: bits 0-11 length of the
# whole chunk minus 3, bits 12-14 the signature 3, bit 15 compressed. A header of 0, or the end of the input, ends the
# data. A compressed chunk is groups of one flag byte (lowest bit first) and eight tokens: 0 a literal, 1 a u16 whose
# high bits are distance - 1 and low bits length - 3. The longer the chunk already is, the more bits the distance has: 4
# up to 16 bytes, 5 up to 32 ... 12 from 2,049 on. Distances end at the start of the chunk.


CHUNK = 4096
SIGNATURE = 3


def decompress_lznt1(block: bytes | memoryview, size: int) -> bytes:
    """The ``size`` bytes that ``block`` holds; FormatError (offset: within the block) if it is damaged."""
    block = bytes(block)
    out = bytearray()
    pos = 0
    while pos < len(block):
        header = int.from_bytes(_take("LZNT1", block, pos, 2), "little")
        if not header:
            break
        if header >> 12 & 7 != SIGNATURE:
            raise FormatError("LZNT1 chunk header without its signature", offset=pos, field="header", value=header)
        if len(out) % CHUNK:
            # Only the last chunk may be short. It is not specified how Windows fills the gap.
            raise FormatError(f"LZNT1 chunk of {len(out) % CHUNK} bytes before the last", offset=pos)
        body = _take("LZNT1", block, pos + 2, (header & 0xFFF) + 1)
        chunk = _chunk(body, pos + 2) if header & 0x8000 else body
        if len(out) + len(chunk) > size:
            raise FormatError(f"LZNT1 data decodes to more than {size} bytes", offset=pos)
        out += chunk
        pos += 2 + len(body)
    if len(out) != size:
        raise FormatError(f"LZNT1 data ends after {len(out)} of {size} bytes", offset=pos)
    return bytes(out)


def _chunk(body: bytes, base: int) -> bytearray:
    """One compressed chunk without its header; ``base`` is its position in the block, for messages."""
    out = bytearray()
    pos, end = 0, len(body)
    while pos < end:
        flags = body[pos]
        pos += 1
        for bit in range(8):
            if pos == end:
                break
            start = base + pos
            if not flags >> bit & 1:
                if len(out) == CHUNK:
                    raise FormatError(f"LZNT1 chunk decodes to more than {CHUNK} bytes", offset=start)
                out.append(body[pos])
                pos += 1
                continue
            if pos + 2 > end:
                raise FormatError("LZNT1 data is cut off", offset=start)
            word = int.from_bytes(body[pos : pos + 2], "little")
            pos += 2
            length_bits = 16 - max(4, (len(out) - 1).bit_length())
            length = (word & (1 << length_bits) - 1) + MIN_MATCH
            _copy("LZNT1", out, (word >> length_bits) + 1, length, CHUNK, start, "chunk")
    return out


# -- The formats by number

LZNT1, XPRESS, XPRESS_HUFF = 2, 3, 4  # COMPRESSION_FORMAT_*, ntifs.h

Block = bytes | memoryview
Blocks = Sequence[Block]
Results = list[bytes | FormatError]
DECODERS: dict[int, Callable[[Block, int], bytes]] = {
    LZNT1: decompress_lznt1,
    XPRESS: decompress_xpress,
    XPRESS_HUFF: decompress_huffman,
}

# A worker needs 50 ms to start, the time in which a core decodes about this many compressed bytes.
WORTH_A_WORKER = 1 << 18

# The library gets memory for the whole output beforehand. For a larger output than that of any buffer, memory grows as
# the data comes out: the size may be wrong.
MOST_COMPILED = 1 << 24


def decompress(block: bytes | memoryview, size: int, *, format: int = XPRESS) -> bytes:
    """The ``size`` bytes that ``block`` holds.

    Raises FormatError for a damaged block, with the offset of the damage within the block, and for an unknown format.
    """
    (result,) = _decode_all(format, [block], [size])
    if isinstance(result, FormatError):
        raise result
    return result


def decompress_many(blocks: Blocks, sizes: Sequence[int], *, format: int = XPRESS, workers: int = 1) -> Results:
    """Decompress independent blocks; each damaged block is replaced by its FormatError.

    ``workers`` is how many processes decode without the library, this one included. The others start when there is
    enough to do, stay for later calls and end with this process. This process decodes what they fail to deliver.
    """
    _decoder(format)
    if len(blocks) != len(sizes):
        raise ValueError(f"{len(blocks)} blocks but {len(sizes)} sizes")
    total = sum(len(block) for block in blocks)
    workers = min(workers, total // WORTH_A_WORKER, len(blocks))
    if workers > 1 and native.library() is None:
        return _decompress_shared(blocks, sizes, format, _shares(blocks, total, workers))
    return _decode_all(format, blocks, sizes)


def _decode_all(format: int, blocks: Blocks, sizes: Sequence[int]) -> Results:
    decoder, results = _decoder(format), Results()
    for block, size in zip(blocks, sizes, strict=True):
        try:
            results.append(_decompress_natively(format, block, size) or decoder(block, size))
        except FormatError as error:
            results.append(error)
    return results


def decompress_into(block: memoryview, into: memoryview, *, format: int = XPRESS) -> bool:
    """Whether the library decoded ``block``, filling ``into``; both are writable.

    If not, for lack of the library or for damage, the contents of ``into`` are undefined.
    """
    library = native.library()
    if library is None or not len(block) or not len(into):
        return False
    import ctypes  # which the library is loaded by

    given, taken = (ctypes.byref(ctypes.c_char.from_buffer(part)) for part in (block, into))
    done: int = library.lb_decompress(format, given, len(block), taken, len(into))
    return not done


def _decompress_natively(format: int, block: Block, size: int) -> bytes | None:
    """The ``size`` bytes of ``block``, ``None`` if the library does not decode the block."""
    if native.library() is None or not 0 < size <= MOST_COMPILED:
        return None
    into = bytearray(size)
    decoded = decompress_into(memoryview(bytearray(block)), memoryview(into), format=format)
    return bytes(into) if decoded else None


def _decoder(format: int) -> Callable[[Block, int], bytes]:
    try:
        return DECODERS[format]
    except KeyError:
        raise FormatError("unknown compression format", field="State", value=format) from None


def _shares(blocks: Blocks, total: int, workers: int) -> list[slice]:
    """Runs of blocks with about the same number of compressed bytes, which decides the time, one for each worker."""
    cuts, done = [0], 0
    for index, block in enumerate(blocks):
        done += len(block)
        if done * workers >= total * len(cuts) and len(cuts) < workers:
            cuts.append(index + 1)
    return [slice(start, stop) for start, stop in zip(cuts, [*cuts[1:], len(blocks)], strict=True)]


# -- Processes that decompress a share of the buffers
#
# Not threads: the decoders are Python code and hold the interpreter lock. Not `multiprocessing`: forking a process with
# threads (a reader has them) can hang, and its other start methods run the caller's main module again. A worker is a
# plain interpreter that imports the decoders only, reads requests from its standard input and ends when that is closed,
# which the operating system does if this process dies. Pickle is safe here: each end reads only what the other wrote,
# and the other was started by us.


_START = "import sys; sys.path[:] = {path!r}; from lastbranch.formats.etl.container.decompression import serve; serve()"

_lock = threading.Lock()
_running: list[_Worker] = []
_losses = 0
MOST_LOSSES = 3  # after which none is started again: something here forbids it, and each try costs 50 ms


class _Worker:
    def __init__(self) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, format: int, blocks: Blocks, sizes: Sequence[int]) -> None:
        # The worker reads a request to its end before it answers, so that the two cannot wait for each other.
        assert self.process.stdin is not None
        pickle.dump((format, [bytes(block) for block in blocks], list(sizes)), self.process.stdin, protocol=5)
        self.process.stdin.flush()

    def answer(self) -> Results:
        assert self.process.stdout is not None
        results: Results = pickle.load(self.process.stdout)
        return results

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.terminate()
        self.process.wait()


def _decompress_shared(blocks: Blocks, sizes: Sequence[int], format: int, shares: Sequence[slice]) -> Results:
    """Decode ``shares`` of the blocks, the last one here and each other in a worker."""

    def here(share: slice) -> Results:
        return _decode_all(format, blocks[share], sizes[share])

    if _losses >= MOST_LOSSES or not _lock.acquire(blocking=False):  # or another thread has the workers
        return here(slice(None))
    try:
        asked = [_ask(index, format, blocks[share], sizes[share]) for index, share in enumerate(shares[:-1])]
        own = here(shares[-1])
        answers = [_answer(worker) for worker in asked]
        if None in answers:
            _stop_workers()
    except BaseException:
        _stop()  # an interrupted exchange would leave old answers in the pipes
        raise
    finally:
        _lock.release()
    parts = [here(share) if part is None else part for share, part in zip(shares[:-1], answers, strict=True)]
    return [result for part in [*parts, own] for result in part]


def _ask(index: int, format: int, blocks: Blocks, sizes: Sequence[int]) -> _Worker | None:
    try:
        if index == len(_running):
            _running.append(_Worker())
        worker = _running[index]
        worker.ask(format, blocks, sizes)
    except (OSError, IndexError):  # IndexError: an earlier process could not be started
        return None
    return worker


def _answer(worker: _Worker | None) -> Results | None:
    if worker is None:
        return None
    try:
        return worker.answer()
    except (OSError, EOFError, pickle.UnpicklingError):  # it was killed
        return None


def stop() -> None:
    """End the workers; the next call that needs some starts new ones."""
    with _lock:
        _stop()


def _stop() -> None:
    for worker in _running:
        worker.end()
    _running.clear()


def _stop_workers() -> None:
    global _losses
    _losses += 1
    _stop()


def _forget_workers() -> None:
    """In a forked child: the workers are the parent's, and so are whatever thread held the lock and its exchange."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def serve() -> None:
    """The worker's side: answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end is ours

    requests: IO[bytes] = os.fdopen(os.dup(0), "rb")
    answers: IO[bytes] = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write between the answers
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            format, blocks, sizes = pickle.load(requests)
            pickle.dump(_decode_all(format, blocks, sizes), answers, protocol=5)
            answers.flush()
