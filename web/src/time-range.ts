// The arithmetic of a time chart: places on its width are shares from 0 to 1, times are ns since the first event.

import type { Numbers } from "./wire.ts";

const CLICK = 0.005; // a shorter part of the width is a click
const DISTINCT = 1000; // places on the width: a chosen time has no more digits than these can tell apart

/** The place of `time`, a number as text; `none` without a time. */
export function share(time: string | undefined, none: number, from: number, length: number): number {
  return time ? Math.max(0, Math.min(1, (Number(time) - from) / length)) : none;
}

/** The times between two places, as texts for the filters. An empty text is the edge of the chart, also after a
 * recording has grown. A click chooses the whole time. */
export function chosen(low: number, high: number, from: number, length: number): { from: string; to: string } {
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(length / DISTINCT)));
  const time = (place: number): string => String(Math.round((from + place * length) / unit) * unit);
  const all = high - low < CLICK;
  return { from: all || low <= 0 ? "" : time(low), to: all || high >= 1 ? "" : time(high) };
}

/** The path of an SVG of `height` in which each value is a step of width 1; `most` is as high as the drawing. */
export function outline(values: Numbers, most: number, height: number): string {
  const steps = Array.from(
    values,
    (value, i) => `V${(height * (1 - (value || 0) / (most || 1))).toFixed(1)}H${i + 1}`,
  ).join("");
  return `M0 ${height}${steps}V${height}Z`;
}
