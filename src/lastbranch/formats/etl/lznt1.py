"""LZNT1, the compression of NTFS, which an ETW session may choose too (no file with it has been seen).

Source: [MS-XCA] 2.5. The data is cut into chunks of 4,096 bytes, each with a u16 header: bits 0-11 length of the whole
chunk minus 3, bits 12-14 the signature 3, bit 15 compressed. A header of 0, or the end of the input, ends the data. A
compressed chunk is groups of one flag byte (lowest bit first) and eight tokens: 0 a literal, 1 a u16 whose high bits
are distance - 1 and low bits length - 3. The more of the chunk is there, the more bits the distance has: 4 up to 16
bytes, 5 up to 32 ... 12 from 2,049 on. Distances end at the start of the chunk.
"""

from __future__ import annotations

from lastbranch.errors import FormatError

__all__ = ["decompress"]

CHUNK = 4096
SIGNATURE = 3


def decompress(block: bytes | memoryview, size: int) -> bytes:
    """The ``size`` bytes that ``block`` stands for; FormatError (offset: within the block) if it is not that."""
    block = bytes(block)
    out = bytearray()
    pos = 0
    while pos < len(block):
        header = int.from_bytes(_take(block, pos, 2), "little")
        if not header:
            break
        if header >> 12 & 7 != SIGNATURE:
            raise FormatError("LZNT1 chunk header without its signature", offset=pos, field="header", value=header)
        if len(out) % CHUNK:
            # Only the last chunk may be short. What Windows would fill the gap with is not specified.
            raise FormatError(f"LZNT1 chunk of {len(out) % CHUNK} bytes before the last", offset=pos)
        body = _take(block, pos + 2, (header & 0xFFF) + 1)
        chunk = _chunk(body, pos + 2) if header & 0x8000 else body
        if len(out) + len(chunk) > size:
            raise FormatError(f"LZNT1 data decodes to more than {size} bytes", offset=pos)
        out += chunk
        pos += 2 + len(body)
    if len(out) != size:
        raise FormatError(f"LZNT1 data ends after {len(out)} of {size} bytes", offset=pos)
    return bytes(out)


def _chunk(body: bytes, base: int) -> bytearray:
    """One compressed chunk without its header; ``base`` is where it stands in the block, for messages."""
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
                out.append(body[pos])
                pos += 1
            else:
                if pos + 2 > end:
                    raise FormatError("LZNT1 data is cut off", offset=start)
                word = int.from_bytes(body[pos : pos + 2], "little")
                pos += 2
                length_bits = 16 - max(4, (len(out) - 1).bit_length())
                distance, length = (word >> length_bits) + 1, (word & (1 << length_bits) - 1) + 3
                if distance > len(out):
                    raise FormatError("LZNT1 match before its chunk", offset=start, field="distance", value=distance)
                out += (out[-distance:] * (length // distance + 1))[:length]
            if len(out) > CHUNK:
                raise FormatError(f"LZNT1 chunk decodes to more than {CHUNK} bytes", offset=start)
    return out


def _take(block: bytes, pos: int, count: int) -> bytes:
    if pos + count > len(block):
        raise FormatError("LZNT1 data is cut off", offset=pos)
    return block[pos : pos + count]
