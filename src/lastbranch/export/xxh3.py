"""XXH3, the hash of 64 bits that LLVM's profiles are keyed by (xxhash specification, 0.2: XXH3 algorithm overview).

With the default secret and no seed.
"""

from __future__ import annotations

from struct import unpack, unpack_from

__all__ = ["xxh3"]

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a"
    "51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8f"
    "f8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_WORD = (1 << 64) - 1
_STRIPE = 64
_STRIPES = (len(_SECRET) - _STRIPE) // 8
"""Stripes of a block: each takes its part of the secret 8 bytes further."""


def xxh3(data: bytes) -> int:
    """The hash of ``data``."""
    size = len(data)
    if size <= 16:
        return _short(data)
    if size <= 128:
        sum_ = size * _P64[0]
        for i in reversed(range((size - 1) // 32 + 1)):
            sum_ += _mixed(data, 16 * i, 32 * i) + _mixed(data, size - 16 * (i + 1), 32 * i + 16)
        return _avalanche(sum_)
    if size <= 240:
        sum_ = size * _P64[0] + sum(_mixed(data, 16 * i, 16 * i) for i in range(8))
        sum_ = _avalanche(sum_) + sum(_mixed(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, size // 16))
        return _avalanche(sum_ + _mixed(data, size - 16, 136 - 17))
    return _long(data)


def _short(data: bytes) -> int:
    """Of 16 bytes at most."""
    size = len(data)
    if size > 8:
        a, b, c, d = unpack_from("<4Q", _SECRET, 24)
        low = (a ^ b) ^ unpack_from("<Q", data)[0]
        high = (c ^ d) ^ unpack_from("<Q", data, size - 8)[0]
        return _avalanche(size + int.from_bytes(low.to_bytes(8, "little"), "big") + high + _folded(low, high))
    if size >= 4:
        first, last = unpack_from("<I", data)[0], unpack_from("<I", data, size - 4)[0]
        a, b = unpack_from("<2Q", _SECRET, 8)
        value: int = (last + (first << 32)) ^ a ^ b
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * 0x9FB21C651E98DF25 & _WORD
        value ^= (value >> 35) + size
        value = value * 0x9FB21C651E98DF25 & _WORD
        return value ^ value >> 28
    a, b = unpack_from("<2I", _SECRET)
    if size:
        word = data[0] << 16 | data[size >> 1] << 24 | data[size - 1] | size << 8
        return _avalanche64(word ^ a ^ b)
    a, b = unpack_from("<2Q", _SECRET, 56)
    return _avalanche64(a ^ b)


def _long(data: bytes) -> int:
    """Of more than 240 bytes."""
    sums = [_P32[2], _P64[0], _P64[1], _P64[2], _P64[3], _P32[1], _P64[4], _P32[0]]
    last = (len(data) - 1) // _STRIPE
    for stripe in range(last):
        _accumulate(sums, data, stripe * _STRIPE, stripe % _STRIPES * 8)
        if stripe % _STRIPES == _STRIPES - 1:
            for i, key in enumerate(unpack_from("<8Q", _SECRET, len(_SECRET) - _STRIPE)):
                sums[i] = (sums[i] ^ sums[i] >> 47 ^ key) * _P32[0] & _WORD
    _accumulate(sums, data, len(data) - _STRIPE, len(_SECRET) - _STRIPE - 7)
    keys = unpack_from("<8Q", _SECRET, 11)
    total = len(data) * _P64[0]
    return _avalanche(total + sum(_folded(sums[i] ^ keys[i], sums[i + 1] ^ keys[i + 1]) for i in range(0, 8, 2)))


def _accumulate(sums: list[int], data: bytes, at: int, secret: int) -> None:
    words, keys = unpack_from("<8Q", data, at), unpack_from("<8Q", _SECRET, secret)
    for i, (word, key) in enumerate(zip(words, keys, strict=True)):
        key ^= word
        sums[i ^ 1] = sums[i ^ 1] + word & _WORD
        sums[i] = sums[i] + (key & 0xFFFFFFFF) * (key >> 32) & _WORD


def _mixed(data: bytes, at: int, secret: int) -> int:
    a, b = unpack("<2Q", data[at : at + 16])
    c, d = unpack_from("<2Q", _SECRET, secret)
    return _folded(a ^ c, b ^ d)


def _folded(a: int, b: int) -> int:
    product = a * b
    return product & _WORD ^ product >> 64


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _WORD


def _avalanche(value: int) -> int:
    value &= _WORD
    value = (value ^ value >> 37) * 0x165667919E3779F9 & _WORD
    return value ^ value >> 32


def _avalanche64(value: int) -> int:
    value = (value ^ value >> 33) * _P64[1] & _WORD
    value = (value ^ value >> 29) * _P64[2] & _WORD
    return value ^ value >> 32
