// A tree of call stacks: laid out, flipped to callers, searched. It knows nothing of the page.

import type { Answer, Numbers } from "./wire.ts";

/** Nodes in columns, parents before their children. `parent` -1: a root. */
export interface Tree {
  readonly parent: Numbers;
  /** Rows of the names. */
  readonly name: Numbers;
  readonly samples: Numbers;
  /** Samples that end here. */
  readonly own: Numbers;
}

/** Where each node of a tree lies: children beside each other below their parent, the heaviest first. */
export interface Layout {
  readonly depth: Int32Array;
  /** In samples, from the left. */
  readonly left: Float64Array;
  /** The nodes of each depth, from left to right. */
  readonly rows: readonly (readonly number[])[];
  /** Names one path from its root in every answer, whatever the order of its nodes. */
  readonly hash: Uint32Array;
}

export function treeOf(answer: Answer): Tree {
  return { parent: answer.numbers("parent"), name: answer.numbers("name"), samples: answer.numbers("samples"), own: answer.numbers("own") };
}

/** The same stacks from their ends: what was sampled is a root, and its callers lie below it. */
export function flipped({ parent, name, own }: Tree): Tree {
  const made = { parent: [] as number[], name: [] as number[], samples: [] as number[], own: [] as number[] };
  const known = new Map<number, Map<number, number>>();
  for (let leaf = 0; leaf < own.length; leaf++) {
    const weight = own[leaf] ?? 0;
    if (!weight) continue;
    let at = -1;
    for (let node = leaf; node >= 0; node = parent[node] ?? -1) {
      const label = name[node] ?? 0;
      let children = known.get(at);
      if (!children) known.set(at, (children = new Map()));
      let next = children.get(label);
      if (next === undefined) {
        next = made.parent.length;
        children.set(label, next);
        made.parent.push(at);
        made.name.push(label);
        made.samples.push(0);
        made.own.push(0);
      }
      at = next;
      made.samples[at] = (made.samples[at] ?? 0) + weight;
    }
    made.own[at] = (made.own[at] ?? 0) + weight;
  }
  return {
    parent: Int32Array.from(made.parent), name: Int32Array.from(made.name),
    samples: Float64Array.from(made.samples), own: Float64Array.from(made.own),
  };
}

export function layout({ parent, name, samples }: Tree, names: readonly string[]): Layout {
  const nodes = parent.length;
  const depth = new Int32Array(nodes);
  const left = new Float64Array(nodes);
  const hash = new Uint32Array(nodes);
  const ofName = names.map(hashed);
  for (let node = 0; node < nodes; node++) {
    const up = parent[node] ?? -1;
    depth[node] = up < 0 ? 0 : (depth[up] ?? 0) + 1;
    hash[node] = Math.imul((up < 0 ? 0x811c9dc5 : (hash[up] ?? 0)) ^ (ofName[name[node] ?? 0] ?? 0), 0x01000193);
  }
  // By depth, and by samples in it: each node then takes the next room in its parent.
  const order = Uint32Array.from({ length: nodes }, (_, node) => node);
  order.sort((a, b) => (depth[a] ?? 0) - (depth[b] ?? 0) || (samples[b] ?? 0) - (samples[a] ?? 0) || a - b);
  const filled = new Float64Array(nodes + 1); // of each node, and of the whole in the last place
  const rows: number[][] = [];
  for (const node of order) {
    const up = parent[node] ?? -1;
    const slot = up < 0 ? nodes : up;
    left[node] = (up < 0 ? 0 : (left[up] ?? 0)) + (filled[slot] ?? 0);
    filled[slot] = (filled[slot] ?? 0) + (samples[node] ?? 0);
    (rows[depth[node] ?? 0] ??= []).push(node);
  }
  for (const row of rows) row.sort((a, b) => (left[a] ?? 0) - (left[b] ?? 0));
  return { depth, left, rows, hash };
}

/** FNV-1a of the letters of a name. */
function hashed(name: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return hash;
}

/** The node of a row of `rows` at a place; -1 where there is none. */
export function nodeAt({ left }: Layout, { samples }: Tree, row: readonly number[] | undefined, place: number): number {
  let low = 0;
  let high = row?.length ?? 0;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((left[row?.[middle] ?? 0] ?? 0) <= place) low = middle + 1;
    else high = middle;
  }
  const node = row?.[low - 1] ?? -1;
  return node >= 0 && place < (left[node] ?? 0) + (samples[node] ?? 0) ? node : -1;
}

/** The samples of the stacks in which one of the names is `wanted`, each counted once. */
export function matched({ parent, name, samples }: Tree, wanted: Uint8Array): number {
  const within = new Uint8Array(parent.length);
  let sum = 0;
  for (let node = 0; node < parent.length; node++) {
    const up = parent[node] ?? -1;
    const above = up >= 0 && within[up] === 1;
    const here = wanted[name[node] ?? 0] === 1;
    if (here && !above) sum += samples[node] ?? 0;
    within[node] = above || here ? 1 : 0;
  }
  return sum;
}
