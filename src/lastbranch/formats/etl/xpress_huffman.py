"""LZXPRESS with Huffman codes ("LZ77+Huffman"), which an ETW session may choose (no file with it has been seen).

Source: [MS-XCA] 2.1 and 2.2. Each 65,536 bytes of output have a block of their own: 256 bytes with the code lengths of
512 symbols (4 bits each, the even symbol in the low half; canonical codes, shorter first, then by symbol), then a bit
stream in 16-bit little-endian words, highest bit first, mixed with plain bytes where the reader then is. Symbols to
255 are literals, 256 + 16 * b + n is a match of n + 3 bytes whose distance is 1 << b plus the next b bits. n = 15 goes
on in a plain byte, 255 there in a plain u16 that replaces the sum so far, 0 there in a u32. The reader is 16 to 32
bits ahead.

Decoding ends when the output is complete. Symbol 256 at the end of the input is an end mark, but it also is the match
of length 3 and distance 1, and the reader, being ahead, cannot tell which; knowing the size it need not. What writers
leave behind the end differs (the mark, read-ahead, after a multiple of 65,536 a whole further block), so that it
cannot be checked.
"""

from __future__ import annotations

from lastbranch.errors import FormatError

__all__ = ["decompress"]

BLOCK = 1 << 16
TABLE = 256  # bytes of the code lengths
LONGEST = 15  # bits of a code


def decompress(block: bytes | memoryview, size: int) -> bytes:
    """The ``size`` bytes that ``block`` stands for; FormatError (offset: within the block) if it is not that."""
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
        raise FormatError("XPRESS-Huffman data is cut off", offset=len(block), field="code lengths")
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
        raise FormatError("XPRESS-Huffman code lengths make no code", offset=pos, field="code lengths")
    return codes


def _block(block: bytes, pos: int, codes: list[int], out: bytearray, stop: int, size: int) -> int:
    """Decode one block until ``out`` holds ``stop`` bytes; returns where the reader then stands."""
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
            length = bits.long_length()
        distance = (1 << extra) + bits.peek(extra)
        bits.skip(extra)
        length += 3
        if distance > len(out):
            raise FormatError(
                "XPRESS-Huffman match before the start of the data", offset=start, field="distance", value=distance
            )
        if len(out) + length > size:
            raise FormatError(f"XPRESS-Huffman data decodes to more than {size} bytes", offset=start)
        out += (out[-distance:] * (length // distance + 1))[:length]
    return bits.pos


class _Bits:
    """The bit stream. Behind the end of the input it reads zeros, and refuses to let any of them be used."""

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
            raise FormatError("XPRESS-Huffman data is cut off", offset=len(self.block))
        if self.count < 16:
            self._fill()

    def long_length(self) -> int:
        """What stands for a length field of 15, from plain bytes."""
        start = self.pos
        value = self._plain(1)
        if value != 255:
            return value + 15
        value = self._plain(2) or self._plain(4)
        if value < 15:
            raise FormatError(
                "XPRESS-Huffman match length in the wrong form", offset=start, field="length", value=value
            )
        return value

    def _plain(self, count: int) -> int:
        start, self.pos = self.pos, self.pos + count
        if self.pos > len(self.block):
            raise FormatError("XPRESS-Huffman data is cut off", offset=start)
        return int.from_bytes(self.block[start : self.pos], "little")

    def _fill(self) -> None:
        word = self.block[self.pos : self.pos + 2]
        if len(word) < 2:  # of a lone byte the bits that come first are the missing ones
            self.padding += 16
        self.value = self.value << 16 | int.from_bytes(word.ljust(2, b"\0"), "little")
        self.pos += len(word)
        self.count += 16
