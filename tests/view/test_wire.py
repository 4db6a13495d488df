"""Answers as bytes."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lastbranch.errors import FormatError
from lastbranch.view import wire
from lastbranch.view.answer import Answer
from viewer import node_modules

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.sampled_from(wire.DTYPES).flatmap(lambda kind: arrays(kind, st.integers(0, 9)))
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=9)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.dictionaries(st.text(), NUMBERS | TEXTS, max_size=5))
def test_what_is_decoded_is_what_was_encoded(header: dict, columns: dict) -> None:
    back = wire.decode(wire.encode(Answer(header, columns)))
    assert back.header == header
    assert list(back.columns) == list(columns)
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            assert back.columns[name].dtype.str == column.dtype.str
            assert back.columns[name].tobytes() == column.tobytes()  # so that NaN equals NaN
        else:
            assert back.columns[name] == column


def test_the_layout_is_the_documented_one() -> None:
    data = wire.encode(Answer({"a": 1}, {"n": np.array([1, 2], ">i4"), "t": ["ä", ""], "b": np.array([True])}))
    magic, size = struct.unpack_from("<4sI", data)
    assert magic == b"LBV1"
    assert size % 8 == 0
    header = json.loads(data[8 : 8 + size])
    assert header == {"header": {"a": 1}, "columns": [["n", "<i4", 2], ["t", "text", 2], ["b", "|u1", 1]]}
    texts = struct.pack("<3I", 0, 2, 2) + "ä".encode()
    assert data[8 + size :] == struct.pack("<2i", 1, 2) + texts.ljust(16, b"\0") + b"\1".ljust(8, b"\0")


def test_packed_is_the_same_for_the_same_answer() -> None:
    answer = Answer({}, {"n": np.arange(100)})
    assert wire.packed(answer) == wire.packed(answer)
    assert gzip.decompress(wire.packed(answer)) == wire.encode(answer)


@pytest.mark.parametrize("column", [np.array([1 + 2j]), np.zeros((2, 2)), np.array([None, 1], object)])
def test_a_column_that_cannot_be_sent_is_an_error(column: np.ndarray) -> None:
    with pytest.raises(ValueError, match="column bad"):
        wire.encode(Answer({}, {"bad": column}))


@given(st.data())
def test_damage_is_an_error_or_another_answer(data: st.DataObject) -> None:
    whole = bytearray(wire.encode(Answer({"a": [1]}, {"n": np.arange(3), "t": ["one", "two"]})))
    cut = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[cut] ^= data.draw(st.integers(1, 255))
    for damaged in (whole[:cut], flipped):
        with suppress(FormatError):  # and nothing else; a flipped bit in a number is another number
            wire.decode(bytes(damaged))


def test_lengths_are_not_trusted() -> None:
    header = json.dumps({"header": {}, "columns": [["n", "<i8", 1 << 60]]}).encode()
    with pytest.raises(FormatError, match="n = "):
        wire.decode(struct.pack("<4sI", b"LBV1", len(header)) + header)


# -- what the page reads of them

SCRIPT = """
import { readFileSync } from "node:fs";
import { decode } from "./wire.mjs";

const whole = readFileSync("whole.bin");
const bufferOf = (bytes) => Uint8Array.from(bytes).buffer;
const answer = decode(bufferOf(whole));
const read = (a) => ({
  header: a.header,
  n: [...a.numbers("n")],
  x: [...a.numbers("x")].map((value) => (Number.isNaN(value) ? null : value)),
  big: [...a.bigs("big")].map(String),
  t: a.texts("t"),
  length: a.length("t"),
});
let refused = 0;
for (let at = 0; at < whole.length; at++) {
  const flipped = Uint8Array.from(whole);
  flipped[at] ^= 0x55;
  for (const bytes of [whole.subarray(0, at), flipped]) {
    try {
      read(decode(bufferOf(bytes)));
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      refused++;
    }
  }
}
console.log(JSON.stringify({ ...read(answer), refused }));
"""


def test_the_page_reads_the_same_and_refuses_damage(tmp_path: Path) -> None:
    bundle = node_modules() / ".bin" / "esbuild"
    source = Path(__file__).parents[2] / "web" / "src" / "wire.ts"
    subprocess.run([bundle, source, "--format=esm", f"--outfile={tmp_path / 'wire.mjs'}"], check=True, timeout=60)
    columns = {
        "n": np.array([-1, 1 << 53], np.int64),
        "x": np.array([0.5, np.nan]),
        "big": np.array([0, (1 << 64) - 1], np.uint64),
        "t": ["<b>", "", "äöü日本", "a\0b"],
    }
    whole = wire.encode(Answer({"a": [1, None, "ü"]}, columns))
    (tmp_path / "whole.bin").write_bytes(whole)
    (tmp_path / "script.mjs").write_text(SCRIPT)
    done = subprocess.run(["node", "script.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("refused") >= len(whole)  # every answer that was cut, and some of those with other bits
    assert found == {
        "header": {"a": [1, None, "ü"]},
        "n": [-1, 1 << 53],
        "x": [0.5, None],
        "big": ["0", str((1 << 64) - 1)],
        "t": columns["t"],
        "length": 4,
    }
