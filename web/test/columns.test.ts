import assert from "node:assert/strict";
import { test } from "node:test";
import { declaredColumns } from "../src/columns.tsx";
import type { Answer } from "../src/wire.ts";

const declared = [
  { name: "samples", title: "samples", unit: "samples", meaning: "", form: "count" },
  { name: "twice", title: "twice %", unit: "%", meaning: "made up", form: "percent" },
  { name: "said", title: "said", unit: "", meaning: "words", form: "text" },
];
const answer = {
  header: { columns: declared },
  numbers: (name: string) => Float64Array.of(name === "sites.twice" ? 0.5 : NaN),
  texts: () => ["a word"],
} as unknown as Answer;

test("columns that an answer declares are shown, also where the page has none of its own for them", () => {
  const columns = declaredColumns(answer, "columns", ["samples"], "sites.");
  assert.deepEqual(
    columns.map(({ key, title, unit, hint }) => [key, title, unit, hint]),
    [
      ["twice", "twice", "%", "made up"],
      ["said", "said", undefined, "words"],
    ],
  );
  assert.equal(columns[0]?.values[0], 0.5);
  assert.deepEqual(declaredColumns(answer, "site_columns", []), []);
});
