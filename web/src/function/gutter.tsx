// Jumps as arcs beside the assembly, on a canvas: forwards quiet, backwards (loops) in the accent colour, mispredicted
// ones red; the more often, the thicker. The table has the same numbers as text.

import type { ComponentChild } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { count, hex, largest, percent } from "../format.ts";
import type { View } from "../grid.tsx";
import type { Answer, Numbers } from "../wire.ts";
import { choose, point, pointed } from "./choice.ts";
import type { Code } from "./code.ts";

/** px: how wide it is, as the padding in app.css. */
export const GUTTER = 76;
const NEAREST = 14; // px from the code to the first lane
const HEAD = 4; // px: of an arrow
const MISPREDICTED = 0.05; // from this share on an arc is red

export class Arcs {
  private readonly source: Numbers;
  private readonly target: Numbers;
  private readonly count: Numbers;
  private readonly share: Numbers;
  private readonly mispredicted: Numbers;
  private readonly lane: Numbers;
  private readonly step: number;
  private readonly most: number;
  /** The hottest arc of each row. */
  private readonly first = new Map<number, number>();

  constructor(answer: Answer) {
    this.source = answer.numbers("arcs.source");
    this.target = answer.numbers("arcs.target");
    this.count = answer.numbers("arcs.count");
    this.share = answer.numbers("arcs.share");
    this.mispredicted = answer.numbers("arcs.mispredicted");
    this.lane = answer.numbers("arcs.lane");
    this.step = Math.min(9, (GUTTER - NEAREST - 4) / Math.max(1, largest(this.lane)));
    this.most = largest(this.count);
    for (let arc = this.source.length - 1; arc >= 0; arc--) this.first.set(this.source[arc] ?? -1, arc);
  }

  /** The row that the hottest jump of a row leads to, -1 where it has none within the function. */
  targetOf(row: number): number {
    const arc = this.first.get(row);
    return arc === undefined ? -1 : (this.target[arc] ?? -1);
  }

  ends(arc: number): [number, number] {
    return [this.source[arc] ?? -1, this.target[arc] ?? -1];
  }

  /** One line about an arc. */
  said(arc: number, code: Code): string {
    const [from, to] = this.ends(arc).map((row) => hex(code.address[row] ?? 0n));
    const wrong = this.mispredicted[arc] ?? NaN;
    const facts = [
      `${from} → ${to}`,
      code.missing ? "" : this.count[arc] ? `${count(this.count[arc] ?? 0)} times` : "not seen",
      Number.isNaN(this.share[arc]) ? "" : `${percent(this.share[arc] ?? 0)} % of its executions`,
      Number.isNaN(wrong) ? "" : `${percent(wrong)} % mispredicted`,
    ];
    return facts.filter(Boolean).join(", ");
  }

  /** The arc at a place of the gutter, -1 where none is near. */
  at(x: number, y: number, height: number): number {
    let best = -1;
    let nearest = 5;
    for (let arc = 0; arc < this.source.length; arc++) {
      if ((this.lane[arc] ?? -1) < 0) continue;
      const [from, to] = this.ends(arc).map((row) => (row + 0.5) * height) as [number, number];
      if (y < Math.min(from, to) - 4 || y > Math.max(from, to) + 4) continue;
      const away = Math.abs(x - this.left(arc));
      if (away < nearest) [best, nearest] = [arc, away];
    }
    return best;
  }

  paint(
    canvas: HTMLCanvasElement,
    top: number,
    height: number,
    row: number,
    under: readonly number[],
    chosen: number,
  ): void {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = GUTTER * ratio;
    canvas.height = Math.max(0, height) * ratio;
    const pen = canvas.getContext("2d");
    if (!pen) return;
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    const colours = ["--quiet", "--accent", "--error"].map((name) => style.getPropertyValue(name));
    const first = top / row - 1;
    const last = (top + height) / row + 1;
    for (let arc = this.source.length - 1; arc >= 0; arc--) {
      const [from, to] = this.ends(arc);
      if ((this.lane[arc] ?? -1) < 0 || Math.max(from, to) < first || Math.min(from, to) > last) continue;
      const times = this.count[arc] || 0;
      const marked = arc === chosen || under.includes(from) || under.includes(to);
      pen.globalAlpha = marked ? 1 : times ? 0.75 : 0.3;
      pen.lineWidth = (times ? 1 + (2.5 * Math.log1p(times)) / Math.log1p(this.most) : 1) + (marked ? 1 : 0);
      pen.strokeStyle = pen.fillStyle =
        colours[(this.mispredicted[arc] ?? 0) >= MISPREDICTED ? 2 : to <= from ? 1 : 0] ?? "";
      pen.setLineDash(times || !this.most ? [] : [2, 3]);
      const [x, a, b] = [this.left(arc), (from + 0.5) * row - top + 3, (to + 0.5) * row - top - 3];
      const bend = Math.min(6, Math.abs(b - a) / 2) * Math.sign(b - a || 1);
      pen.beginPath();
      pen.moveTo(GUTTER, a);
      pen.lineTo(x + 6, a);
      pen.quadraticCurveTo(x, a, x, a + bend);
      pen.lineTo(x, b - bend);
      pen.quadraticCurveTo(x, b, x + 6, b);
      pen.lineTo(GUTTER - HEAD, b);
      pen.stroke();
      pen.setLineDash([]);
      pen.beginPath();
      pen.moveTo(GUTTER, b);
      pen.lineTo(GUTTER - 2 * HEAD, b - HEAD);
      pen.lineTo(GUTTER - 2 * HEAD, b + HEAD);
      pen.fill();
    }
  }

  private left(arc: number): number {
    return GUTTER - NEAREST - (this.lane[arc] ?? 0) * this.step;
  }
}

interface GutterProps {
  readonly code: Code;
  readonly arcs: Arcs;
  readonly view: View;
  /** px: of a row. */
  readonly row: number;
  /** The arc under the mouse, -1 where none is. */
  readonly arc: number;
  onArc(arc: number): void;
}

/** The arcs of the rows in view; the mouse on one points at its ends, a click leads to its target. */
export function Gutter({ code, arcs, view, row, arc, onArc }: GutterProps): ComponentChild {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [, paintAgain] = useState({});
  const under = pointed.value;
  const height = Math.max(0, view.height - row); // below the headings
  useLayoutEffect(() => {
    if (canvas.current) arcs.paint(canvas.current, view.top, height, row, under, arc);
  });
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const again = (): void => paintAgain({});
    dark.addEventListener("change", again);
    return () => dark.removeEventListener("change", again);
  }, []);
  const onMouseMove = (event: MouseEvent): void => {
    const found = arcs.at(event.offsetX, event.offsetY + view.top, row);
    onArc(found);
    point(found < 0 ? [] : arcs.ends(found));
  };
  return (
    <canvas
      ref={canvas}
      class="gutter"
      aria-hidden="true"
      style={{ width: `${GUTTER}px`, height: `${height}px`, marginBottom: `-${height}px` }}
      onMouseMove={onMouseMove}
      onMouseLeave={() => onArc(-1)}
      onClick={() => arc >= 0 && choose(code, arcs.ends(arc)[1] ?? 0)}
    />
  );
}
