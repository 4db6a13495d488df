"""Stores what dissect.util's decoders say, for `test_etl_codecs`.

    python tests/tools/make_etl_codecs.py > tests/data/etl_codecs.json

Run it where dissect.util is installed. For each stream of `cases` the output has a digest of the stream, and the size
and a digest of dissect.util's result; the test makes the same streams and compares lastbranch's results.
"""

import hashlib
import json
import random
import sys
from functools import partial

from etl_streams import huffman_blocks, lznt1_compress, mixed, xpress_compress, xpress_tokens

LZNT1, XPRESS, XPRESS_HUFF = 2, 3, 4  # COMPRESSION_FORMAT_*
DATA = {
    **{f"mixed {seed}": partial(mixed, seed, 20_000) for seed in range(5)},
    "one byte": lambda: b"x",
    "zeros": lambda: bytes(70_000),
    "two bytes": lambda: b"ab" * 20_000,
    "noise": lambda: random.Random(2).randbytes(9_000),
    "two blocks and more": partial(mixed, 9, 140_000),  # of XPRESS-Huffman, 64 KiB each
}


def digest(data):
    return hashlib.sha256(data).hexdigest()[:32]


def cases():
    """(name, format, function that gives a block and its data).

    The blocks are those of compressors for tests: what `formats.etl.compress` makes depends on zlib.
    """
    for form, pack in ((LZNT1, lznt1_compress), (XPRESS, xpress_compress), (XPRESS_HUFF, huffman_blocks)):
        for name, data in DATA.items():
            yield f"{form}: {name}", form, lambda pack=pack, data=data: (pack(data()), data())
    for seed in range(5):
        yield f"{XPRESS}: tokens {seed}", XPRESS, partial(xpress_tokens, seed, 60_000)


def main():
    from dissect.util.compression import lznt1, lzxpress, lzxpress_huffman

    decoders = {LZNT1: lznt1, XPRESS: lzxpress, XPRESS_HUFF: lzxpress_huffman}
    said = {}
    for name, form, make in cases():
        block, data = make()
        if form == XPRESS_HUFF:  # that decoder reads ahead, and ends too early without something behind its input
            decoded = decoders[form].decompress(block + bytes(4))[: len(data)]
        else:
            decoded = decoders[form].decompress(block)
        said[name] = {"block": digest(block), "size": len(decoded), "data": digest(decoded)}
    json.dump(said, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
