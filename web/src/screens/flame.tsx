// Flame: call stacks as rectangles, callers above the functions that they call, as wide as their samples.

import type { ComponentChild } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer } from "../asking.ts";
import { count, percent } from "../format.ts";
import { Answered } from "../parts.tsx";
import { filters } from "../state.ts";
import type { Answer } from "../wire.ts";

export function Flame(): ComponentChild {
  return <Answered asked={useAnswer("flame", filters.value)}>{(answer) => <Graph answer={answer} />}</Answered>;
}

const HEIGHT = 20;
const NARROWEST = 0.5; // px: what is less is not drawn

interface Box {
  readonly node: number;
  readonly depth: number;
  /** From 0 to 1 of the samples. */
  readonly left: number;
  readonly width: number;
}

/** Where each node lies: children beside each other below their parent, the heaviest first. */
function layout(answer: Answer): Box[] {
  const parent = answer.numbers("parent");
  const samples = answer.numbers("samples");
  const whole = Number(answer.header["samples"]) || 1;
  const order = Array.from(parent.keys()).sort((a, b) => (samples[b] ?? 0) - (samples[a] ?? 0));
  const depth = new Int32Array(parent.length);
  const left = new Float64Array(parent.length);
  const filled = new Float64Array(parent.length + 1); // of each node, and of the root in the last place
  const children = new Map<number, number[]>();
  for (const node of order) {
    const up = parent[node] ?? -1;
    const list = children.get(up);
    if (list) list.push(node);
    else children.set(up, [node]);
  }
  const boxes: Box[] = [];
  const todo = [...(children.get(-1) ?? [])].reverse();
  for (let node = todo.pop(); node !== undefined; node = todo.pop()) {
    const up = parent[node] ?? -1;
    const slot = up < 0 ? parent.length : up;
    const width = (samples[node] ?? 0) / whole;
    left[node] = (up < 0 ? 0 : (left[up] ?? 0)) + (filled[slot] ?? 0);
    filled[slot] = (filled[slot] ?? 0) + width;
    depth[node] = up < 0 ? 0 : (depth[up] ?? 0) + 1;
    boxes.push({ node, depth: depth[node] ?? 0, left: left[node] ?? 0, width });
    todo.push(...[...(children.get(node) ?? [])].reverse());
  }
  return boxes;
}

function Graph({ answer }: { answer: Answer }): ComponentChild {
  const boxes = useMemo(() => layout(answer), [answer]);
  const [pointed, setPointed] = useState<Box | null>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const names = answer.texts("names.function");
  const name = answer.numbers("name");
  const deepest = boxes.reduce((most, { depth }) => Math.max(most, depth), 0);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const draw = (): void => paint(element, boxes, (node) => names[name[node] ?? 0] ?? "");
    const observer = new ResizeObserver(draw);
    observer.observe(element);
    return () => observer.disconnect();
  }, [boxes]);
  const at = (event: MouseEvent): Box | null => {
    const x = event.offsetX / (canvas.current?.clientWidth ?? 1);
    const depth = Math.floor(event.offsetY / HEIGHT);
    return boxes.find((box) => box.depth === depth && x >= box.left && x < box.left + box.width) ?? null;
  };
  const samples = answer.numbers("samples");
  const whole = Number(answer.header["samples"]) || 1;
  const said = pointed
    ? `${names[name[pointed.node] ?? 0]}: ${count(samples[pointed.node] ?? 0)} samples, ${percent((samples[pointed.node] ?? 0) / whole)} %`
    : `Stacks: ${answer.list("sources").join("; ")}`;
  return (
    <>
      <p class="first" role="status">{said}</p>
      <div class="scrolled" tabIndex={0} role="region" aria-label="Flame graph">
        <canvas
          ref={canvas}
          class="flame"
          style={{ height: `${(deepest + 1) * HEIGHT}px` }}
          role="img"
          aria-label={`Flame graph of ${count(whole)} samples`}
          onMouseMove={(event) => setPointed(at(event))}
          onMouseLeave={() => setPointed(null)}
        />
      </div>
    </>
  );
}

function paint(canvas: HTMLCanvasElement, boxes: readonly Box[], nameOf: (node: number) => string): void {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(canvas);
  pen.scale(ratio, ratio);
  pen.font = `12px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  for (const { node, depth, left, width: share } of boxes) {
    const wide = share * width;
    if (wide < NARROWEST) continue;
    pen.fillStyle = style.getPropertyValue(`--flame-${depth % 3}`);
    pen.fillRect(left * width, depth * HEIGHT, Math.max(NARROWEST, wide - 1), HEIGHT - 1);
    if (wide < 40) continue;
    pen.fillStyle = style.color;
    pen.fillText(fitted(nameOf(node), wide - 8), left * width + 4, depth * HEIGHT + HEIGHT / 2);
  }
}

/** As much of a name as fits; all letters are taken to be 7 px wide, which is quicker than measuring each. */
function fitted(name: string, room: number): string {
  const letters = Math.floor(room / 7);
  return name.length <= letters ? name : `${name.slice(0, Math.max(0, letters - 1))}…`;
}
