import assert from "node:assert/strict";
import { test } from "node:test";
import { count, counted, decimal, duration, hex, largest, percent, seconds, UNKNOWN } from "../src/format.ts";

test("numbers that are not known are a dash, never 0", () => {
  for (const print of [count, percent, decimal]) assert.equal(print(NaN), UNKNOWN);
  assert.deepEqual([count(0), percent(0), decimal(0)], ["0", "0.00", "0.00"]);
});

test("counts have separators, and their noun a plural", () => {
  assert.equal(count(1234567), "1,234,567");
  assert.deepEqual(
    [counted(0, "block"), counted(1, "block"), counted(2, "block")],
    ["0 blocks", "1 block", "2 blocks"],
  );
});

test("addresses are hexadecimal, exactly", () => {
  assert.equal(hex(0xffff_ffff_8100_0001n), "0xffffffff81000001");
});

test("seconds have the digits that tell thousandths of a span apart", () => {
  assert.equal(seconds(1.5e9), "1.500");
  assert.equal(seconds(1_234_567, 1e6), "0.001235");
  assert.equal(seconds(1, 1), "0.000000001");
});

test("a length of time is in the unit that suits it", () => {
  const cases: [number, string][] = [[12, "12 ns"], [1500, "1.5 µs"], [2e6, "2 ms"], [61e9, "61 s"], [0, "0 ns"]]; // prettier-ignore
  for (const [nanoseconds, text] of cases) assert.equal(duration(nanoseconds), text);
});

test("the largest leaves out what is not known", () => {
  assert.equal(largest([NaN, 3, 1]), 3);
  assert.equal(largest([]), 0);
});
