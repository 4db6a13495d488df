"""Compressors of all three formats of a COMPRESSED_MODE file, for tests: small, slow, independent of the readers."""

from etl_streams import huffman_blocks, lznt1_compress
from lastbranch.formats.etl import LZNT1, XPRESS, XPRESS_HUFF, compress

COMPRESSORS = {LZNT1: lznt1_compress, XPRESS: compress, XPRESS_HUFF: huffman_blocks}
