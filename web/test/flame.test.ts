import assert from "node:assert/strict";
import { test } from "node:test";
import { flipped, layout, matched, nodeAt, type Tree } from "../src/flame.ts";

const NAMES = ["main", "parse", "work", "free"];

/** A tree from its stacks, each with its samples: the independent form of what the functions take. */
function treeOf(stacks: readonly (readonly [path: readonly string[], samples: number])[]): Tree {
  const parent: number[] = [];
  const name: number[] = [];
  const samples: number[] = [];
  const own: number[] = [];
  const known = new Map<string, number>();
  for (const [path, weight] of stacks) {
    let up = -1;
    path.forEach((frame, depth) => {
      const key = path.slice(0, depth + 1).join(";");
      if (!known.has(key)) {
        known.set(key, parent.length);
        parent.push(up);
        name.push(NAMES.indexOf(frame));
        samples.push(0);
        own.push(0);
      }
      up = known.get(key) ?? -1;
      samples[up] = (samples[up] ?? 0) + weight;
    });
    own[up] = (own[up] ?? 0) + weight;
  }
  return {
    parent: Int32Array.from(parent),
    name: Int32Array.from(name),
    samples: Float64Array.from(samples),
    own: Float64Array.from(own),
  };
}

/** The stacks of a tree and their samples, as text. */
function stacksOf({ parent, name, own }: Tree): Record<string, number> {
  const found: Record<string, number> = {};
  own.forEach((samples: number, node: number) => {
    const path: string[] = [];
    for (let at = node; at >= 0; at = parent[at] ?? -1) path.unshift(NAMES[name[at] ?? 0] ?? "");
    if (samples) found[path.join(";")] = (found[path.join(";")] ?? 0) + samples;
  });
  return found;
}

const TREE = treeOf([
  [["main", "parse"], 3],
  [["main", "work", "free"], 5],
  [["main", "work"], 2],
  [["free"], 1],
  [["main", "parse", "free"], 4],
]);

test("flipped stacks begin where samples were taken and keep every sample", () => {
  const { closed, ...callers } = flipped(TREE);
  assert.equal(closed, 0);
  assert.deepEqual(stacksOf(callers), {
    "parse;main": 3,
    "free;work;main": 5,
    "work;main": 2,
    free: 1,
    "free;parse;main": 4,
  });
});

test("a limit leaves the lightest frames closed", () => {
  const { closed, parent, samples } = flipped(TREE, 1);
  assert.ok(closed > 0);
  const roots = Array.from(samples).filter((_, node) => parent[node] === -1);
  assert.equal(roots.reduce((sum, weight) => sum + weight, 0), 15); // prettier-ignore
});

test("children lie below their parents, beside each other, the heaviest first", () => {
  const { depth, left, rows } = layout(TREE, NAMES);
  for (let node = 0; node < TREE.parent.length; node++) {
    const up = TREE.parent[node] ?? -1;
    if (up < 0) continue;
    assert.equal(depth[node], (depth[up] ?? 0) + 1);
    assert.ok((left[node] ?? -1) >= (left[up] ?? 0));
    assert.ok((left[node] ?? 0) + (TREE.samples[node] ?? 0) <= (left[up] ?? 0) + (TREE.samples[up] ?? 0));
  }
  const names = rows.map((row) => row.map((node) => NAMES[TREE.name[node] ?? 0]));
  assert.deepEqual(names, [["main", "free"], ["parse", "work"], ["free", "free"]].map((row) => row), "rows"); // prettier-ignore
});

test("a path has one hash in every answer, whatever the order of its nodes", () => {
  const other = treeOf([
    [["free"], 9],
    [["main", "work"], 1],
    [["main", "parse", "free"], 1],
  ]);
  const hashes = (tree: Tree): Map<string, number> => {
    const { hash } = layout(tree, NAMES);
    const paths = new Map<string, number>();
    for (let node = 0; node < tree.parent.length; node++) {
      const path: string[] = [];
      for (let at = node; at >= 0; at = tree.parent[at] ?? -1) path.unshift(NAMES[tree.name[at] ?? 0] ?? "");
      paths.set(path.join(";"), hash[node] ?? 0);
    }
    return paths;
  };
  const known = hashes(TREE);
  for (const [path, hash] of hashes(other)) assert.equal(hash, known.get(path), path);
  assert.equal(new Set(known.values()).size, known.size);
});

test("the node at a place is the one whose samples cover it", () => {
  const at = layout(TREE, NAMES);
  const row = at.rows[1];
  for (let place = 0; place < 15; place++) {
    const covering = row?.find((node) => {
      const from = at.left[node] ?? 0;
      return place >= from && place < from + (TREE.samples[node] ?? 0);
    });
    assert.equal(nodeAt(at, TREE, row, place), covering ?? -1);
  }
  assert.equal(nodeAt(at, TREE, undefined, 0), -1);
});

test("stacks that have a name are counted once", () => {
  const nested = treeOf([
    [["work", "parse", "work"], 2],
    [["main", "work"], 3],
    [["main"], 7],
  ]);
  const wanted = Uint8Array.from(NAMES, (name) => (name === "work" ? 1 : 0));
  assert.equal(matched(nested, wanted), 5);
});
