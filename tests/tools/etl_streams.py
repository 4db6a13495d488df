"""Data with repetitions, and compressed streams of it: small, slow, nothing of lastbranch and nothing to install."""

import random

from xpress_tokens import Tokens


def mixed(seed, size):
    """Data with repetitions at all distances, some overlapping."""
    rng, out = random.Random(seed), bytearray()
    while len(out) < size:
        kind = rng.random()
        if kind < 0.4 or not out:
            out += rng.randbytes(rng.randrange(1, 30))
        elif kind < 0.5:
            out += bytes([rng.randrange(256)]) * rng.choice([5, 20, 300, 5000])
        else:
            at = rng.randrange(len(out))
            out += out[at : at + rng.choice([3, 5, 12, 40, 400])]
    return bytes(out[:size])


def xpress_tokens(seed, size):
    """A plain LZXPRESS stream of all kinds of tokens, and its data."""
    rng, made, data = random.Random(seed), Tokens(), bytearray()
    while len(data) < size:
        if not data or rng.random() < 0.5:
            made.literal(byte := rng.randrange(256))
            data.append(byte)
        else:
            distance = rng.randrange(1, min(len(data), 8192) + 1)
            made.match(distance, length := rng.choice([3, 9, 10, 24, 25, 30, 279, 280, 300, 5000]))
            data += (data[-distance:] * (length // distance + 1))[:length]
    return made.finish(), bytes(data)


def xpress_compress(data):
    """Plain LZXPRESS, the nearest match of 8 bytes and more."""
    made, at = Tokens(), 0
    while at < len(data):
        piece = data[at : at + 8]
        source = data.rfind(piece, max(0, at - 8192), at + 7) if len(piece) == 8 else -1
        if source < 0:
            made.literal(data[at])
            at += 1
            continue
        length = 8
        while at + length < len(data) and length < 0xFFFF and data[source + length] == data[at + length]:
            length += 1
        made.match(at - source, length)
        at += length
    return made.finish()


def lznt1_chunk(data):
    """A compressed chunk, the longest match found by brute force."""
    body, at = bytearray(), 0
    while at < len(data):
        flags_at = len(body)
        body.append(0)
        for bit in range(8):
            if at == len(data):
                break
            length_bits = 16 - max(4, (at - 1).bit_length()) if at else 12
            most = min((1 << length_bits) + 2, len(data) - at)
            piece = data[at : at + 3]
            source = data.rfind(piece, 0, at + 2) if at and len(piece) == 3 else -1
            if source < 0:
                body.append(data[at])
                at += 1
                continue
            length = 3
            while length < most and data[source + length] == data[at + length]:
                length += 1
            body[flags_at] |= 1 << bit
            body += (at - source - 1 << length_bits | length - 3).to_bytes(2, "little")
            at += length
    return body


def lznt1_compress(data):
    out = bytearray()
    for at in range(0, len(data), 4096):
        piece = data[at : at + 4096]
        body = lznt1_chunk(piece)
        if len(body) < len(piece):
            out += (0xB000 | len(body) - 1).to_bytes(2, "little") + body
        else:
            out += (0x3000 | len(piece) - 1).to_bytes(2, "little") + piece
    return bytes(out)


def lengths_table(lengths):
    table = bytearray(256)
    for symbol, length in lengths.items():
        table[symbol // 2] |= length << 4 * (symbol % 2)
    return bytes(table)


FLAT = dict.fromkeys(range(512), 9)


class HuffmanWriter:
    """Writes bits into words, and plain bytes between the words. A word is reserved at the moment when the reader reads
    it."""

    def __init__(self, lengths):
        self.lengths, self.codes, code = lengths, {}, 0
        for length in range(1, 16):
            code <<= 1
            for symbol in sorted(s for s, n in lengths.items() if n == length):
                self.codes[symbol] = code
                code += 1
        self.out = bytearray(lengths_table(lengths) + bytes(4))
        self.words, self.value, self.count = [256, 258], 0, 0

    def bits(self, value, count):
        self.value, self.count = self.value << count | value, self.count + count
        while self.count > 16:  # the reader refills when fewer than 16 of its bits are left
            self.count -= 16
            self._word(self.value >> self.count)
            self.value &= (1 << self.count) - 1
            self.words.append(len(self.out))
            self.out += bytes(2)

    def _word(self, word):
        at = self.words.pop(0)
        self.out[at : at + 2] = word.to_bytes(2, "little")

    def symbol(self, symbol):
        self.bits(self.codes[symbol], self.lengths[symbol])

    def match(self, distance, length):
        extra, rest = distance.bit_length() - 1, length - 3
        self.symbol(256 + 16 * extra + min(rest, 15))
        if rest >= 15:
            self.out.append(min(rest - 15, 255))
            if rest >= 270:
                self.out += rest.to_bytes(2, "little")
        self.bits(distance - (1 << extra), extra)

    def finish(self):
        self._word(self.value << 16 - self.count)
        return bytes(self.out)


def huffman_blocks(data):
    """Literals and a few matches, each 65,536 bytes with a table of their own."""
    out = b""
    for at in range(0, len(data), 65536):
        writer, piece, pos = HuffmanWriter(FLAT), data[at : at + 65536], 0
        while pos < len(piece):
            source = data.rfind(piece[pos : pos + 8], 0, at + pos) if pos + 8 <= len(piece) else -1
            if source < 0 or at + pos - source > 65535:
                writer.symbol(piece[pos])
                pos += 1
            else:
                writer.match(at + pos - source, 8)
                pos += 8
        out += writer.finish()
    return out
