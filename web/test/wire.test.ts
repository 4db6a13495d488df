import assert from "node:assert/strict";
import { test } from "node:test";
import { decode } from "../src/wire.ts";

type Column = readonly [name: string, kind: string, values: readonly (number | bigint | string)[]];

/** An answer as src/lastbranch/view/wire.py describes it, written without the code under test. */
function encode(header: object, columns: readonly Column[]): ArrayBuffer {
  const pad = (bytes: number[]): number[] => [...bytes, ...Array<number>((8 - (bytes.length % 8)) % 8).fill(0)];
  const utf8 = new TextEncoder();
  const table = columns.map(([name, kind, values]) => [name, kind, values.length]);
  const text = [...utf8.encode(JSON.stringify({ header, columns: table }))];
  while (text.length % 8) text.push(0x20);
  const bytes = [...utf8.encode("LBV1"), ...little(text.length, 4), ...text];
  for (const [, kind, values] of columns) bytes.push(...pad(kind === "text" ? texts(values) : numbers(kind, values)));
  return Uint8Array.from(bytes).buffer;

  function texts(values: Column[2]): number[] {
    const parts = values.map((value) => [...utf8.encode(String(value))]);
    let at = 0;
    const offsets = [0, ...parts.map((part) => (at += part.length))];
    return [...offsets.flatMap((offset) => little(offset, 4)), ...parts.flat()];
  }

  function numbers(kind: string, values: Column[2]): number[] {
    const width = Number(kind.slice(2));
    if (kind[1] !== "f") return values.flatMap((value) => little(value as number | bigint, width));
    const view = new DataView(new ArrayBuffer(width * values.length));
    values.forEach((value, i) =>
      width === 4 ? view.setFloat32(4 * i, Number(value), true) : view.setFloat64(8 * i, Number(value), true),
    );
    return [...new Uint8Array(view.buffer)];
  }

  function little(value: number | bigint, width: number): number[] {
    const whole = BigInt.asUintN(8 * width, BigInt(value));
    return Array.from({ length: width }, (_, i) => Number((whole >> BigInt(8 * i)) & 255n));
  }
}

const KINDS: readonly Column[] = [
  ["u1", "|u1", [0, 255]],
  ["i1", "|i1", [-128, 127]],
  ["u2", "<u2", [65535]],
  ["i2", "<i2", [-32768, 7, 8]],
  ["u4", "<u4", [4294967295]],
  ["i4", "<i4", [-1]],
  ["f4", "<f4", [0.5, NaN]],
  ["f8", "<f8", [Math.PI]],
];

test("columns of every kind are read back", () => {
  const answer = decode(encode({ samples: 3 }, KINDS));
  assert.equal(answer.header["samples"], 3);
  for (const [name, , values] of KINDS) {
    assert.equal(answer.length(name), values.length);
    assert.deepEqual(Array.from(answer.numbers(name)), values);
  }
});

test("64-bit integers are exact as bigs and rounded as numbers", () => {
  const answer = decode(encode({}, [["at", "<u8", [2n ** 64n - 1n, 5n]], ["change", "<i8", [-(2n ** 63n)]]])); // prettier-ignore
  assert.deepEqual(Array.from(answer.bigs("at")), [2n ** 64n - 1n, 5n]);
  assert.deepEqual(Array.from(answer.bigs("change")), [-(2n ** 63n)]);
  assert.equal(answer.numbers("at")[1], 5);
});

test("texts have any letters, and may be empty", () => {
  const names = ["main", "", "größe<日本>", "a\nb"];
  assert.deepEqual(decode(encode({}, [["name", "text", names]])).texts("name"), names);
  assert.deepEqual(decode(encode({}, [["name", "text", []]])).texts("name"), []);
});

test("a column of another kind or name is refused", () => {
  const answer = decode(encode({}, [["name", "text", ["x"]], ["n", "<u4", [1]]])); // prettier-ignore
  assert.throws(() => answer.numbers("name"), /column name is not of numbers/);
  assert.throws(() => answer.texts("n"), /column n is not text/);
  assert.throws(() => answer.bigs("n"), /not of 64-bit integers/);
  assert.throws(() => answer.length("other"), /no column other/);
});

test("an answer that is cut anywhere is an error, or whole", () => {
  const whole = encode({ a: 1 }, [...KINDS, ["name", "text", ["main", "x"]]]);
  const used = whole.byteLength - 8; // the last bytes may be padding
  for (let length = 0; length < used; length++) assert.throws(() => decode(whole.slice(0, length)), Error);
});

test("offsets of texts that do not ascend are damage", () => {
  const damaged = new Uint8Array(encode({}, [["name", "text", ["main", "x"]]]));
  const at = damaged.length - 24; // offsets 0, 4, 5, then the letters and padding
  damaged[at + 4] = 9;
  assert.throws(() => decode(damaged.buffer), /damaged answer: column name/);
});
