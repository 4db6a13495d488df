// Where the boxes and edges of a graph lie. Graphviz gets nothing but numbers: sizes of boxes, and which lead where.

import { unzipped } from "../embedded.ts";

export interface Size {
  readonly width: number;
  readonly height: number;
}

export interface Point {
  readonly x: number;
  readonly y: number;
}

/** Pixels, y downwards. */
export interface Laid extends Size {
  /** The middle of each box. */
  readonly boxes: readonly Point[];
  /** Of each edge: where it starts, three points for each Bézier curve, and where its arrow ends. */
  readonly edges: readonly { readonly curve: readonly Point[]; readonly end: Point }[];
}

const LONGEST = 10_000; // milliseconds
const INCH = 72;

/** Rejects with an `Error` where it fails or takes too long; never answers after `signal`. */
export async function layOut(
  boxes: readonly Size[],
  edges: readonly (readonly [number, number])[],
  signal: AbortSignal,
): Promise<Laid> {
  const embedded = document.querySelector<HTMLScriptElement>('script[id="graph.js"]'); // in a single file
  const address = embedded
    ? URL.createObjectURL(new Blob([await unzipped(embedded)], { type: "text/javascript" }))
    : "graph.js";
  const worker = new Worker(address);
  try {
    return await new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`it took more than ${LONGEST / 1000} s`)), LONGEST);
      signal.addEventListener("abort", () => (clearTimeout(late), worker.terminate()));
      worker.onerror = (event) => reject(new Error(event.message || "its worker did not start"));
      worker.onmessage = ({ data }: MessageEvent<{ laid?: string; failed?: string }>) => {
        clearTimeout(late);
        if (data.laid) resolve(read(data.laid, boxes.length));
        else reject(new Error(data.failed));
      };
      if (!signal.aborted) worker.postMessage(written(boxes, edges));
    });
  } finally {
    worker.terminate();
    if (embedded) URL.revokeObjectURL(address);
  }
}

/** In Graphviz's language. The limits of its searches keep large graphs under a second or two. */
function written(boxes: readonly Size[], edges: readonly (readonly [number, number])[]): string {
  const made = boxes.map(({ width, height }, i) => `${i} [width=${width / INCH} height=${height / INCH}]`);
  const led = edges.map(([from, to], i) => `${from} -> ${to} [id=${i}]`);
  return `digraph { nslimit=2 nslimit1=2 mclimit=0.3 ranksep=0.45 node [shape=box fixedsize=true label=""]\n${[...made, ...led].join("\n")}\n}`;
}

interface Drawn {
  readonly bb: string;
  readonly objects?: readonly { readonly name: string; readonly pos: string }[];
  readonly edges?: readonly { readonly id: string; readonly pos: string }[];
}

function read(text: string, boxes: number): Laid {
  const drawn = JSON.parse(text) as Drawn;
  const [, , width = 0, height = 0] = drawn.bb.split(",").map(Number);
  const point = (at: string): Point => {
    const [x = 0, y = 0] = at.split(",").map(Number);
    return { x, y: height - y };
  };
  const placed: Point[] = Array.from({ length: boxes }, () => ({ x: 0, y: 0 }));
  for (const { name, pos } of drawn.objects ?? []) placed[Number(name)] = point(pos);
  const edges: Laid["edges"][number][] = [];
  for (const { id, pos } of drawn.edges ?? []) {
    const [end = "", ...curve] = pos.split(" ");
    edges[Number(id)] = { curve: curve.map(point), end: point(end.replace("e,", "")) };
  }
  return { width, height, boxes: placed, edges };
}
