"""A plain LZXPRESS stream, token by token: for tests that choose the tokens."""

MIN_MATCH = 3


class Tokens:
    """The stream under construction: tokens are appended, flag words filled in behind."""

    def __init__(self):
        self.out = bytearray(4)
        self.word_at = 0
        self.flags = 0
        self.count = 0
        self.half_at = None  # a length byte whose high half is still free

    def literal(self, byte):
        self.out.append(byte)
        self._flag(0)

    def match(self, distance, length):
        rest = length - MIN_MATCH
        self.out += ((distance - 1) << 3 | min(rest, 7)).to_bytes(2, "little")
        if rest >= 7:
            self._half(min(rest - 7, 15))
            if rest >= 22:
                self.out.append(min(rest - 22, 255))
                if rest >= 22 + 255:
                    self.out += rest.to_bytes(2, "little")
        self._flag(1)

    def finish(self):
        left = 32 - self.count
        self._store(self.flags << left | (1 << left) - 1)
        return bytes(self.out)

    def _half(self, value):
        if self.half_at is None:
            self.half_at = len(self.out)
            self.out.append(value)
        else:
            self.out[self.half_at] |= value << 4
            self.half_at = None

    def _flag(self, bit):
        self.flags = self.flags << 1 | bit
        self.count += 1
        if self.count == 32:
            self._store(self.flags)
            self.word_at, self.flags, self.count = len(self.out), 0, 0
            self.out += bytes(4)

    def _store(self, flags):
        self.out[self.word_at : self.word_at + 4] = flags.to_bytes(4, "little")
