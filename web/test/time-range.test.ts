import assert from "node:assert/strict";
import { test } from "node:test";
import { chosen, outline, share } from "../src/time-range.ts";

test("a time has a place on the chart, and a time outside of it the edge", () => {
  assert.equal(share("1500", 0, 1000, 1000), 0.5);
  assert.equal(share("0", 0, 1000, 1000), 0);
  assert.equal(share("9000", 0, 1000, 1000), 1);
  assert.equal(share(undefined, 1, 1000, 1000), 1);
  assert.equal(share("", 0, 1000, 1000), 0);
});

test("a chosen part has only digits that its width can tell apart", () => {
  assert.deepEqual(chosen(0.25, 0.75, 0, 12_345_678_901), { from: "3090000000", to: "9260000000" });
  assert.deepEqual(chosen(0.25, 0.75, 100, 200), { from: "150", to: "250" });
});

test("an edge stays open, and a click chooses all", () => {
  assert.deepEqual(chosen(0, 0.5, 0, 1e9), { from: "", to: "500000000" });
  assert.deepEqual(chosen(0.5, 1, 0, 1e9), { from: "500000000", to: "" });
  assert.deepEqual(chosen(0.5, 0.504, 0, 1e9), { from: "", to: "" });
});

test("what was chosen lies where it was chosen", () => {
  for (const [low, high] of [
    [0.1, 0.2],
    [0.333, 0.9],
    [0.0051, 0.5],
  ] as const) {
    // prettier-ignore
    const { from, to } = chosen(low, high, 5e9, 7e9);
    assert.ok(Math.abs(share(from, 0, 5e9, 7e9) - low) < 0.001);
    assert.ok(Math.abs(share(to, 1, 5e9, 7e9) - high) < 0.001);
  }
});

test("an outline has a step for each value; unknown ones lie on the ground", () => {
  assert.equal(outline(Float64Array.of(1, NaN, 2), 2, 10), "M0 10V5.0H1V10.0H2V0.0H3V10Z");
  assert.equal(outline(Float64Array.of(), 0, 10), "M0 10V10Z");
});
