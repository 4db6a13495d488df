"""Compressed trace buffers: one front for the three formats of a COMPRESSED_MODE file.

The format is in the low 16 bits of State (offset 0x2C) of the file's first buffer. The payload of a buffer with flag
0x40 is compressed, and its Offset field (0x30), less the header, is the size after decompression. Buffers are
independent, so that a damaged one costs nothing but itself, and so that other processes can take a share.
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

from ....errors import FormatError
from .codecs import decompress_huffman, decompress_lznt1, decompress_xpress
from .xpress_encoder import compress

__all__ = ["DECODERS", "LZNT1", "XPRESS", "XPRESS_HUFF", "compress", "decompress", "decompress_many", "stop"]


LZNT1, XPRESS, XPRESS_HUFF = 2, 3, 4  # COMPRESSION_FORMAT_*, ntifs.h

DECODERS: dict[int, Callable[[bytes | memoryview, int], bytes]] = {
    LZNT1: decompress_lznt1,
    XPRESS: decompress_xpress,
    XPRESS_HUFF: decompress_huffman,
}

# A worker needs 50 ms to start, the time in which a core decodes about this many compressed bytes.
WORTH_A_WORKER = 1 << 18


def decompress(block: bytes | memoryview, size: int, *, format: int = XPRESS) -> bytes:
    """The ``size`` bytes that ``block`` stands for.

    Raises FormatError for a damaged block, with the offset of the damage within the block, and for an unknown format.
    """
    return _decoder(format)(block, size)


def decompress_many(
    blocks: Sequence[bytes | memoryview], sizes: Sequence[int], *, format: int = XPRESS, workers: int = 1
) -> list[bytes | FormatError]:
    """Decompress independent blocks; a damaged one has its FormatError in its place, and only that one.

    ``workers`` is how many processes decode, this one included. The others are started when there is enough to do,
    stay for later calls and end with this process; what cannot be had of them is done here.
    """
    decoder = _decoder(format)
    if len(blocks) != len(sizes):
        raise ValueError(f"{len(blocks)} blocks but {len(sizes)} sizes")
    total = sum(len(block) for block in blocks)
    workers = min(workers, total // WORTH_A_WORKER, len(blocks))
    if workers > 1:
        from lastbranch.formats.etl.container import compression as pool

        return pool.decompress_shared(blocks, sizes, format, _shares(blocks, total, workers))
    return decode_all(decoder, blocks, sizes)


def decode_all(
    decoder: Callable[[bytes | memoryview, int], bytes], blocks: Sequence[bytes | memoryview], sizes: Sequence[int]
) -> list[bytes | FormatError]:
    results: list[bytes | FormatError] = []
    for block, size in zip(blocks, sizes, strict=True):
        try:
            results.append(decoder(block, size))
        except FormatError as error:
            results.append(error)
    return results


def _decoder(format: int) -> Callable[[bytes | memoryview, int], bytes]:
    try:
        return DECODERS[format]
    except KeyError:
        raise FormatError("unknown compression format", field="State", value=format) from None


def _shares(blocks: Sequence[bytes | memoryview], total: int, workers: int) -> list[slice]:
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


_START = "import sys; sys.path[:] = {path!r}; from lastbranch.formats.etl.container.compression import serve; serve()"

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

    def ask(self, format: int, blocks: Sequence[bytes | memoryview], sizes: Sequence[int]) -> None:
        # The worker reads a request to its end before it answers, so that the two cannot wait for each other.
        assert self.process.stdin is not None
        pickle.dump((format, [bytes(block) for block in blocks], list(sizes)), self.process.stdin, protocol=5)
        self.process.stdin.flush()

    def answer(self) -> list[bytes | FormatError]:
        assert self.process.stdout is not None
        results: list[bytes | FormatError] = pickle.load(self.process.stdout)
        return results

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.terminate()
        self.process.wait()


def decompress_shared(
    blocks: Sequence[bytes | memoryview], sizes: Sequence[int], format: int, shares: Sequence[slice]
) -> list[bytes | FormatError]:
    """Decode ``shares`` of the blocks, the last one here and each other in a worker."""

    def here(share: slice) -> list[bytes | FormatError]:
        return decode_all(DECODERS[format], blocks[share], sizes[share])

    if _losses >= MOST_LOSSES or not _lock.acquire(blocking=False):  # or another thread has the workers
        return here(slice(None))
    try:
        asked = [_ask(index, format, blocks[share], sizes[share]) for index, share in enumerate(shares[:-1])]
        own = here(shares[-1])
        answers = [_answer(worker) for worker in asked]
        if None in answers:
            _lost()
    except BaseException:
        _stop()  # an interrupted exchange would leave old answers in the pipes
        raise
    finally:
        _lock.release()
    parts = [here(share) if part is None else part for share, part in zip(shares[:-1], answers, strict=True)]
    return [result for part in [*parts, own] for result in part]


def _ask(index: int, format: int, blocks: Sequence[bytes | memoryview], sizes: Sequence[int]) -> _Worker | None:
    try:
        if index == len(_running):
            _running.append(_Worker())
        worker = _running[index]
        worker.ask(format, blocks, sizes)
    except (OSError, IndexError):  # IndexError: one before it could not be started
        return None
    return worker


def _answer(worker: _Worker | None) -> list[bytes | FormatError] | None:
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


def _lost() -> None:
    global _losses
    _losses += 1
    _stop()


def _forked() -> None:
    """In a forked child: the workers are the parent's, and so are whatever thread held the lock and its exchange."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def serve() -> None:
    """The worker's side: answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end is ours

    requests: IO[bytes] = os.fdopen(os.dup(0), "rb")
    answers: IO[bytes] = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write between the answers
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            format, blocks, sizes = pickle.load(requests)
            pickle.dump(decode_all(DECODERS[format], blocks, sizes), answers, protocol=5)
            answers.flush()
