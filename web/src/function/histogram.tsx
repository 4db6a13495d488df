// How numbers are distributed, as bars of equal width.

import type { ComponentChild } from "preact";
import { count } from "../format.ts";
import type { Answer } from "../wire.ts";

const HIGH = 40; // of the drawing, whose width is the number of bins
const WIDE = 8; // bins that have room at least

export interface Bin {
  readonly low: number;
  readonly below: number;
  readonly count: number;
  /** Of what was not seen to its end: that large, or larger. */
  readonly cut: number;
}

/** The bins of every row of `of`: a loop, or a block. */
export function binsOf(answer: Answer, table: string, of: string): Map<number, Bin[]> {
  const [low, below, counts, cut] = ["low", "below", "count", "cut"].map((name) => answer.numbers(`${table}.${name}`));
  const found = new Map<number, Bin[]>();
  answer.numbers(`${table}.${of}`).forEach((row: number, i: number) => {
    const bins = found.get(row) ?? [];
    if (!bins.length) found.set(row, bins);
    bins.push({ low: low?.[i] ?? NaN, below: below?.[i] ?? NaN, count: counts?.[i] ?? 0, cut: cut?.[i] ?? 0 });
  });
  return found;
}

interface HistogramProps {
  /** What is counted: "trips". */
  readonly of: string;
  readonly bins: readonly Bin[];
}

export function Histogram({ of, bins }: HistogramProps): ComponentChild {
  const most = Math.max(1, ...bins.map((bin) => bin.count + bin.cut));
  const height = (value: number): number => (HIGH * value) / most;
  const labels = bins.filter((bin) => bin.count || bin.cut).map(said);
  return (
    <svg
      class="histogram"
      viewBox={`0 0 ${Math.max(WIDE, bins.length)} ${HIGH}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`${of}: ${labels.join("; ")}`}
    >
      {bins.map((bin, i) => (
        <g key={bin.low}>
          <title>{said(bin)}</title>
          <rect class="room" x={i} y={0} width={1} height={HIGH} />
          <rect class="whole" x={i + 0.05} y={HIGH - height(bin.count)} width={0.9} height={height(bin.count)} />
          <rect class="cut" x={i + 0.05} y={HIGH - height(bin.count + bin.cut)} width={0.9} height={height(bin.cut)} />
        </g>
      ))}
    </svg>
  );
}

/** The same with the least and the largest number below it. */
export function LabelledHistogram(props: HistogramProps): ComponentChild {
  const first = props.bins[0];
  const last = props.bins.at(-1);
  if (!first || !last) return null;
  return (
    <figure class="labelled">
      <Histogram {...props} />
      <figcaption style={{ width: `${(100 * props.bins.length) / Math.max(WIDE, props.bins.length)}%` }}>
        <span>{spanned(first)}</span>
        <span>{props.bins.length > 1 ? spanned(last) : ""}</span>
      </figcaption>
    </figure>
  );
}

function said(bin: Bin): string {
  return `${spanned(bin)}: ${count(bin.count)}${bin.cut ? `, and ${count(bin.cut)} cut short there` : ""}`;
}

/** "7", "8 to 9", "1.5 to 2". */
function spanned({ low, below }: Bin): string {
  const whole = Number.isInteger(low) && Number.isInteger(below);
  const last = whole ? below - 1 : below;
  return last === low ? short(low) : `${short(low)} to ${short(last)}`;
}

function short(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
}
