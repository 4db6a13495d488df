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
  return {
    parent: answer.numbers("parent"),
    name: answer.numbers("name"),
    samples: answer.numbers("samples"),
    own: answer.numbers("own"),
  };
}

/** The same stacks from their ends: what was sampled is a root, and its callers lie below it.
 *
 * About `most` frames get their callers, the heaviest first: all of a large tree would take seconds, and most of it is
 * too narrow to be seen. `closed` counts the other frames that have callers.
 */
export function flipped({ parent, name, own }: Tree, most = 20_000): Tree & { readonly closed: number } {
  const made = { parent: [] as number[], name: [] as number[], samples: [] as number[], own: [] as number[] };
  const paths: Path[][] = []; // of each frame, those that have callers
  const newest: number[] = []; // by name, the frame that was made last
  const open = (up: number, callees: readonly Path[]): void => {
    const first = made.parent.length;
    for (const { at, leaf } of callees) {
      const label = name[at] ?? 0;
      const weight = own[leaf] ?? 0;
      let node = newest[label] ?? -1;
      if (node < first) {
        // of another frame
        newest[label] = node = paths.push([]) - 1;
        made.parent.push(up);
        made.name.push(label);
        made.samples.push(0);
        made.own.push(0);
      }
      made.samples[node] = (made.samples[node] ?? 0) + weight;
      const above = parent[at] ?? -1;
      if (above < 0) made.own[node] = (made.own[node] ?? 0) + weight;
      else paths[node]?.push({ at: above, leaf });
    }
    for (let node = first; node < made.parent.length; node++) if (paths[node]?.length) closed.push(node);
  };
  let closed: number[] = [];
  const ends = Array.from(own.keys())
    .filter((node) => own[node])
    .map((node) => ({ at: node, leaf: node }));
  open(-1, ends);
  let opened = 0;
  for (
    let least = ends.reduce((sum, { leaf }) => sum + (own[leaf] ?? 0), 0);
    closed.length && opened < most;
    least /= 2
  ) {
    const kept: number[] = [];
    for (const node of closed) {
      // which grows
      if (opened < most && (made.samples[node] ?? 0) >= least) {
        opened++;
        open(node, paths[node] ?? []);
        paths[node] = [];
      } else kept.push(node);
    }
    closed = kept;
  }
  return {
    parent: Int32Array.from(made.parent),
    name: Int32Array.from(made.name),
    samples: Float64Array.from(made.samples),
    own: Float64Array.from(made.own),
    closed: closed.length,
  };
}

/** From the end of a stack, the node `leaf`, up to one that calls it. */
interface Path {
  readonly at: number;
  readonly leaf: number;
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
  const order = Uint32Array.from({ length: nodes }, (_, node) => node);
  order.sort((a, b) => (samples[b] ?? 0) - (samples[a] ?? 0) || a - b);
  const first = new Int32Array(nodes + 1).fill(-1); // child of each node, and root in the last place
  const next = new Int32Array(nodes);
  for (const node of order.reverse()) {
    const up = parent[node] ?? -1;
    const slot = up < 0 ? nodes : up;
    next[node] = first[slot] ?? -1;
    first[slot] = node;
  }
  const rows: number[][] = [];
  for (let above = [nodes]; above.length; above = rows[rows.length - 1] ?? []) {
    const row: number[] = [];
    for (const up of above) {
      let filled = up === nodes ? 0 : (left[up] ?? 0);
      for (let node = first[up] ?? -1; node >= 0; node = next[node] ?? -1) {
        left[node] = filled;
        filled += samples[node] ?? 0;
        row.push(node);
      }
    }
    if (!row.length) break;
    rows.push(row);
  }
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
