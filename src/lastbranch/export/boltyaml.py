"""``--to boltyaml``: BOLT's profile in YAML, for ``llvm-bolt -data=OUT -profile-ignore-hash``.

For each function and block (`block_layout.code_blocks`): the counts of its successors (``succ``) and of its calls
(``calls``), as bolt/include/bolt/Profile/ProfileYAMLMapping.h declares them. Each block has a hash, by which BOLT finds
the block in another build (`block_hashes`). Functions have none, and the option makes llvm-bolt ignore that. It still
compares the number of blocks, and takes a function for stale where that differs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import IO

import numpy as np
from xxhash import xxh3_64_intdigest

from ..analysis.counting.branch_kinds import CALLS
from ..analysis.function.block_layout import block_counts, code_blocks
from ..arrays import Ints, distinct
from ..binaries.block_map import BlockMap
from ..binaries.call_frames import landing_pads
from ..binaries.files import strings_at
from ..binaries.image import Code, Image
from ..binaries.sections import Binary
from ..errors import UnavailableError
from ..isa import NOT_A_BRANCH, UNDECODABLE, Decoder
from ..lbr import KIND
from ..model import Array, counted, word
from ..opening import code_of, open_image
from ..symbols.backends.symbol_tables import Symbols, elf_symbols
from .bolt import in_stubs, times_after_return
from .interface import ExportOptions, ExportResult
from .modules import ModuleCounts, ModuleFormat

__all__ = [
    "FORMAT",
    "block_hashes",
]


def write(counts: ModuleCounts, out: IO[bytes], _options: ExportOptions) -> ExportResult:
    """Write the counts of a module. Raises `UnavailableError` where its binary is no x86-64 ELF file with symbols."""
    module, code = counts.module, code_of(counts.module)
    if code is None or code.arch != "x86_64" or code.image.format != "elf":
        raise UnavailableError(
            f"{word(module.name)}: blocks are found in ELF files of x86-64 alone",
            hint="`--to bolt` has no blocks, and perf2bolt -pa reads it",
        )
    source, _ = open_image(module.binary)
    try:
        symbols = elf_symbols(Binary(source))
        start, end, names = _functions(symbols, code.image)
        if not len(start):
            raise UnavailableError(f"{word(module.name)} has no symbols of functions, which BOLT needs")
        pads = np.array(landing_pads(source, code.image), np.uint64)
        blocks = code_blocks(source, code.image, start, end, np.concatenate([pads, symbols.start[symbols.code]]))
    finally:
        source.close()
    kind, wrong = _kinds(counts, code)
    straight = ~wrong & (kind != KIND["ret"])
    kept = ~in_stubs(code.image, counts.start)
    found = block_counts(
        blocks,
        code,
        (counts.start[kept], counts.end[kept], counts.times[kept]),
        (counts.source[straight], counts.target[straight], counts.taken[straight]),
    )
    body = _Body(blocks, names, code.image)
    body.edges(found.source, found.target, found.edge)
    body.returns(counts)
    body.branches(counts, kind)
    head = (
        "---\nheader:\n  profile-version: 1\n"
        f"  binary-name:     {_quote(module.name)}\n  binary-build-id: {module.build_id.hex() or '<unknown>'}\n"
        "  profile-flags:   [ lbr ]\n  profile-origin:  branch profile reader\n  profile-events:  ''\n"
        "  dfs-order:       false\n  hash-func:       xxh3\nfunctions:\n"
    )
    out.write(head.encode("utf-8", "surrogateescape"))
    out.writelines(line.encode("utf-8", "surrogateescape") for line in body.lines(code))
    left = int(counts.times.sum()) - int(found.ranges.sum())
    why = f"{counted(left, 'range')} in stubs or no function, or not straight through one" if left else ""
    lost = int(counts.taken[wrong].sum())
    notes = [f"{counted(lost, 'branch', 'branches')} left out: the code has none that goes there"] if lost else []
    return counts.exported([*found.notes, *notes], int(found.ranges.sum()), why)


def _kinds(counts: ModuleCounts, code: Code) -> tuple[Array, Array]:
    """(kind of each branch, 0 from elsewhere; whether it is none that the code has). One edge that a function does not
    have makes all of its profile stale to llvm-bolt."""
    decoder, here = Decoder(code.arch), counts.from_here
    kind, wrong = np.zeros(len(here), np.uint8), np.zeros(len(here), bool)
    size = np.full(int(here.sum()), decoder.arch.longest, np.int64)
    at = counts.source[here]
    found, each = decoder.classify(*code.read_many(at, size), at, np.ones_like(size))
    row = np.flatnonzero(here)[each > 0]
    kind[row] = found.kind
    wrong[here] = True
    wrong[row] = np.isin(found.kind, (NOT_A_BRANCH, UNDECODABLE)) | (
        (found.target != 0) & (found.target != counts.target[row])
    )
    kind[wrong] = 0
    return kind, wrong


def _functions(symbols: Symbols, image: Image) -> tuple[Array, Array, dict[int, str]]:
    """(start, end) of the functions, ascending, and BOLT's name of each: the name of a public symbol; or the name of a
    local symbol with its number, by address, among the local symbols of that name. A stub is called ``NAME@PLT``."""
    order = np.argsort(symbols.start, kind="stable")
    start, end, names, seen = list[int](), list[int](), dict[int, str](), defaultdict[str, int](int)
    public = dict[int, bool]()
    inside = np.zeros(len(symbols.start), bool)
    for s in image.executable_segments:  # the sizes of symbols are what the file says
        left = symbols.start - np.uint64(s.vaddr)
        inside |= (left < s.file_size) & (symbols.size <= s.file_size) & (left + symbols.size <= s.file_size)
    columns = (symbols.start, symbols.size, symbols.code & inside, symbols.public, in_stubs(image, symbols.start))
    text = strings_at(symbols.strings, symbols.name[order].tolist())
    for (a, n, code, is_public, stub), name in zip(
        zip(*(c[order].tolist() for c in columns), strict=True), text, strict=True
    ):
        if stub:
            is_public, at = True, name.endswith("@plt")
            name = name.removesuffix("@plt") + "@PLT" if at else f"__BOLT_PSEUDO_{name}"
        elif not is_public:
            seen[name] += 1
        if not code or not n or (start and a < end[-1] and a != start[-1]):
            continue
        if not start or a != start[-1]:
            start.append(a)
            end.append(a + n)
        if a not in names or (is_public and not public[a]):
            names[a], public[a] = (name if is_public else f"{name}/{seen[name]}"), is_public
    return np.array(start, np.uint64), np.array(end, np.uint64), names


class _Body:
    """The functions as they are written; the number of a block is its place in the function."""

    def __init__(self, blocks: BlockMap, names: dict[int, str], image: Image) -> None:
        self.blocks = blocks
        self.stub = in_stubs(image, blocks.entry)
        """Functions that have no blocks to BOLT."""
        self.names = [names[entry] for entry in blocks.entry.tolist()]
        self.next = defaultdict[int, dict[int, list[int]]](dict)
        """By rows of blocks: how often, and how often mispredicted, the first was followed by the second."""
        self.calls = defaultdict[int, dict[tuple[int, int], list[int]]](dict)
        """By row of a block, place of the call in it and function called (-1: elsewhere): likewise, but BOLT has
        mispredictions of indirect calls alone."""
        self.entered = np.zeros(len(blocks.entry), np.int64)

    def edges(self, source: Array, target: Array, n: Array) -> None:
        for a, b, count in zip(source.tolist(), target.tolist(), n.tolist(), strict=True):
            self.next[a].setdefault(b, [0, 0])[0] += count

    def returns(self, counts: ModuleCounts) -> None:
        """The edges from a call to the block after it: ranges from its beginning that followed a return."""
        times, blocks = times_after_return(counts, counts.start, counts.times), self.blocks
        row = blocks.at(counts.start)
        good = (times > 0) & (row > 0) & (blocks.start[row] == counts.start)
        good[good] = (blocks.function[row[good]] == blocks.function[row[good] - 1]) & (blocks.flags[row[good] - 1] != 0)
        self.edges(row[good] - 1, row[good], times[good])

    def branches(self, counts: ModuleCounts, kind: Array) -> None:
        """Mispredictions, calls and entries."""
        blocks = self.blocks
        at, to = blocks.at(counts.source), blocks.at(counts.target)
        at[~counts.from_here], to[~counts.to_here] = -1, -1
        entry = (to >= 0) & (blocks.entry[blocks.function[to]] == counts.target)
        same = (at >= 0) & (to >= 0) & (blocks.function[at] == blocks.function[to])
        enters = entry & (~same | CALLS[kind]) & ((kind != 0) | ~counts.from_here) & (kind != KIND["ret"])
        np.add.at(self.entered, blocks.function[to[enters]], counts.taken[enters])
        calling = (at >= 0) & entry & (CALLS[kind] | (np.isin(kind, (KIND["uncond"], KIND["ind"])) & ~same))
        calling |= (at >= 0) & (to < 0) & (kind == KIND["ind_call"])
        indirect = np.isin(kind, (KIND["ind"], KIND["ind_call"]))
        missed_calls = np.where(indirect, counts.mispredicted, 0)
        rows = zip(
            at.tolist(),
            to.tolist(),
            (counts.source - blocks.start[at]).tolist(),
            counts.taken.tolist(),
            np.where(calling, missed_calls, counts.mispredicted).tolist(),
            calling.tolist(),
            (same & ~CALLS[kind]).tolist(),
            strict=True,
        )
        for a, b, offset, n, missed, calls, inside in rows:
            if calls:
                both = self.calls[a].setdefault((offset, int(blocks.function[b]) if b >= 0 else -1), [0, 0])
                both[0] += n
                both[1] += missed
            elif inside and b in self.next[a]:
                self.next[a][b][1] += missed

    def lines(self, code: Code) -> list[str]:
        """The functions that anything was counted of."""
        blocks, out = self.blocks, list[str]()
        touched = np.array([*self.next, *self.calls], np.int64)
        rows_of = defaultdict[int, set[int]](set)
        for row in touched.tolist():
            if (self.next.get(row) or self.calls.get(row)) and not self.stub[blocks.function[row]]:
                rows_of[int(blocks.function[row])].add(row)
        first = np.searchsorted(blocks.function, np.arange(len(blocks.entry) + 1)).tolist()
        functions = distinct(np.array([*rows_of, *np.flatnonzero(self.entered).tolist()], np.int64))
        hashes = block_hashes(blocks, code, functions[~self.stub[functions]])
        for f in functions.tolist():
            out.append(
                f"  - name:            {_quote(self.names[f])}\n    fid:             {f + 1}\n"
                "    hash:            0x0\n"
                f"    exec:            {self.entered[f]}\n"
                f"    nblocks:         {0 if self.stub[f] else first[f + 1] - first[f]}\n"
            )
            if self.stub[f]:
                continue
            out.append("    blocks:\n")
            rows = sorted(rows_of[f] | ({first[f]} if self.entered[f] else set()))
            out += (self._block(row, row - first[f], int(self.entered[f]), first[f], hashes[row]) for row in rows)
        return out

    def _block(self, row: int, number: int, entered: int, first: int, hash_: int) -> str:
        text = f"      - bid:             {number}\n        insns:           0\n        hash:            {hash_:#x}\n"
        if number == 0 and entered:
            text += f"        exec:            {entered}\n"
        if calls := sorted(self.calls.get(row, {}).items()):
            each = (f"{{ off: {at:#x}, fid: {f + 1}, cnt: {n}{_missed_text(m)} }}" for (at, f), (n, m) in calls)
            text += f"        calls:           [ {', '.join(each)} ]\n"
        if after := sorted(self.next.get(row, {}).items()):
            each = (f"{{ bid: {b - first}, cnt: {n}{_missed_text(m)} }}" for b, (n, m) in after)
            text += f"        succ:            [ {', '.join(each)} ]\n"
        return text


def _missed_text(n: int) -> str:
    return f", mis: {n}" if n else ""


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''").replace("\n", " ") + "'"


# -- By what BOLT finds the blocks of a profile again in a binary that was built since (``--infer-stale-profile``)
#
# The hash of a block has five parts (BOLT's StaleProfileMatching.cpp, HashUtilities.cpp): its distance from the entry
# of the function (16 bits), a loose hash of the mnemonics in it, whatever their order and operands (16), an exact
# hash of its instructions (16), and the loose hashes of its predecessors and of its successors (8 each; jumps through
# tables are left out here). BOLT takes the block with the same loose hash; of several, the one whose other parts
# differ least.
#
# The exact hash is made of LLVM's names of opcodes and its numbers of registers, which change with its versions. It
# is 0 in all blocks here, and so decides nothing. A function's hash is made of exact hashes of its blocks, and is 0,
# too.


_PREFIXES = frozenset(["bnd", "data16", "lock", "notrack", "rep", "repe", "repne", "repnz", "repz"])
_OPERAND_IN_NAME = (
    (re.compile(r"(?:sh[lr]d?|sa[lr]|ro[lr]|rc[lr])[bwlq] %cl, "), "%cl,"),
    (re.compile(r"stos[bwlq] %[a-z]+, "), ""),
    (re.compile(r"(?:call|jmp)[wlq]? \*"), "*"),
)
"""LLVM's mnemonics have the operands that their instructions always have."""
_BY_OPERANDS = re.compile(r"(?:sh[lr]d?|sa[lr]|ro[lr]|rc[lr]|stos)[bwlq]|(?:call|jmp|xchg)[wlq]?")
"""Mnemonics for which the operands count."""
_ON_CONDITION = re.compile(r"(cmov|set)(?:n?[abglcospez]|n?[abgl]e|p[eo])[wlq]?")
_NOT_LEFT = re.compile(r"(?:(?:rep\w*|bnd|notrack) )?(?:jmp|ret|iret|sysret|ud2)")
_LOW = (1 << 64) - 1
_COND, _UNCOND = KIND["cond"], KIND["uncond"]


def block_hashes(blocks: BlockMap, code: Code, functions: Ints) -> dict[int, int]:
    """The hashes of all blocks of ``functions`` (rows of `BlockMap.entry`), by row of ``blocks``.

    Raises `UnavailableError` where instructions cannot be decoded.
    """
    decoder, known, names = Decoder(code.arch, att=True), dict[str, int](), dict[str, str]()
    out = dict[int, int]()
    for f in functions.tolist():
        first, past = np.searchsorted(blocks.function, [f, f + 1]).tolist()
        start, end = blocks.start[first:past].tolist(), blocks.end[first:past].tolist()
        if start:
            out.update(enumerate(_of_function(start, end, code, decoder, known, names), first))
    return out


def _of_function(
    start: list[int], end: list[int], code: Code, decoder: Decoder, known: dict[str, int], names: dict[str, str]
) -> list[int]:
    """The hashes of the blocks of one function; the blocks follow each other. ``known`` are those of texts. ``names``
    are the mnemonics that lead nowhere else, with what they add to a text whatever their operands: nearly all."""
    row = {address: i for i, address in enumerate(start)}
    words, taken, stays = [set[str]() for _ in start], list[tuple[int, int]](), [True] * len(start)
    here, current = 0, words[0]
    for address, length, mnemonic, operands in decoder.texts(code.read(start[0], end[-1] - start[0]), start[0]):
        if address in row:
            here = row[address]
            current = words[here]
        if (word := names.get(mnemonic)) is not None:
            current.add(word)
            continue
        kind, target = decoder.kind_of(mnemonic, operands)
        text = f"{mnemonic} {operands}" if operands else mnemonic
        leaves = kind == _UNCOND or _NOT_LEFT.match(text) is not None
        if leaves and (address + length in row or address + length >= end[-1]):  # it is the last of its block
            stays[here] = False
        if target in row and kind in (_COND, _UNCOND):
            taken.append((here, row[target]))
        if kind == _COND:
            current.add("JMP")
        elif kind != _UNCOND or not start[0] <= target < end[-1]:
            found, always = _words(text, mnemonic.partition(" ")[0])
            current.update(found)
            if always and not leaves and kind == NOT_A_BRANCH and " " not in mnemonic:
                names[mnemonic] = "".join(found)
    texts = ["".join(sorted(found)) for found in words]
    for text in texts:
        if text not in known:
            known[text] = xxh3_64_intdigest(text.encode())
    loose = [known[text] for text in texts]
    next_ = [(i, i + 1) for i in range(len(start) - 1) if stays[i]]
    after, before = [0] * len(start), [0] * len(start)
    for source, target in taken + next_:  # the order in which BOLT finds them
        after[source] = _with(after[source], loose[target])
        before[target] = _with(before[target], loose[source])
    return [
        (address - start[0]) & 0xFFFF | (loose[i] & 0xFFFF) << 16 | (before[i] & 0xFF) << 48 | (after[i] & 0xFF) << 56
        for i, address in enumerate(start)
    ]


def _words(text: str, name: str) -> tuple[tuple[str, ...], bool]:
    """The mnemonic of the instruction ``text`` in LLVM's spelling, which the loose hash of its block takes in; and
    whether the mnemonic stays the same with other operands."""
    if name in _PREFIXES and " " in text:
        rest = text.partition(" ")[2]
        after, always = _words(rest, rest.partition(" ")[0])
        return ((name, *after) if name == "lock" else after), always  # only this one is an instruction of its own
    if name.startswith("nop") or text == "xchgw %ax, %ax":
        return (), name.startswith("nop")
    for pattern, operand in _OPERAND_IN_NAME:
        if found := pattern.match(text):
            return (name + operand if operand else found[0].replace(" ", ""),), False
    conditional = _ON_CONDITION.fullmatch(name)
    return (conditional[1] if conditional else name,), not _BY_OPERANDS.fullmatch(name)


def _with(sum_: int, value: int) -> int:
    """LLVM's ``hash_16_bytes`` (llvm/ADT/Hashing.h)."""
    multiplier = 0x9DDFEA08EB382D69
    a = (sum_ ^ value) * multiplier & _LOW
    b = (value ^ a ^ a >> 47) * multiplier & _LOW
    return (b ^ b >> 47) * multiplier & _LOW


FORMAT = ModuleFormat("bolt.yaml", write, relocatable=False)
