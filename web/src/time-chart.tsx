// A chart of numbers over the time of the capture. Dragging over it chooses a part of the time for all screens.

import type { ComponentChild } from "preact";
import { useState } from "preact/hooks";
import { largest } from "./format.ts";
import { change, filters } from "./state.ts";
import { chosen, outline, share } from "./time-range.ts";
import type { Numbers } from "./wire.ts";

interface TimeChartProps {
  /** Of equal parts of the time; NaN is not known. */
  readonly values: Numbers;
  /** The number that is as high as the chart; the largest without it. */
  readonly most?: number;
  /** ns since the first event, and how many there are. */
  readonly from: number;
  readonly length: number;
  /** Whether filters can change. */
  readonly live: boolean;
  readonly height: number;
  readonly label: string;
  /** The place in the values that the pointer is at; -1: it has left. */
  onPoint?(part: number): void;
}

interface Drag {
  /** Where it began and where it is, as shares of the width. */
  readonly ends: readonly [number, number];
  /** What it goes over: a recording that grows does not move under the pointer. */
  readonly over: TimeChartProps;
}

/** The fields for the time in the bar of filters do the same for the keyboard. */
export function TimeChart(props: TimeChartProps): ComponentChild {
  const { live, height, label, onPoint } = props;
  const { from: first, to: last } = filters.value;
  const [drag, setDrag] = useState<Drag | null>(null);
  const { values, from, length, most = largest(values) } = drag?.over ?? props;
  const [low, high] = drag
    ? [Math.min(...drag.ends), Math.max(...drag.ends)]
    : [share(first, 0, from, length), share(last, 1, from, length)];
  const at = ({ currentTarget, clientX }: PointerEvent & { currentTarget: Element }): number => {
    const { left, width } = currentTarget.getBoundingClientRect();
    return Math.max(0, Math.min(1, (clientX - left) / width));
  };
  return (
    <svg
      class={live ? "timeline live" : "timeline"}
      viewBox={`0 0 ${values.length || 1} ${height}`}
      style={{ height: `${height}px` }}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
      onPointerDown={(event) => {
        if (!live) return;
        event.currentTarget.setPointerCapture(event.pointerId);
        setDrag({ ends: [at(event), at(event)], over: props });
      }}
      onPointerMove={(event) => {
        onPoint?.(Math.min(values.length - 1, Math.floor(at(event) * values.length)));
        if (drag) setDrag({ ...drag, ends: [drag.ends[0], at(event)] });
      }}
      onPointerLeave={() => onPoint?.(-1)}
      onPointerCancel={() => setDrag(null)}
      onPointerUp={() => {
        if (!drag) return;
        setDrag(null);
        change(chosen(low, high, from, length));
      }}
    >
      <title>
        {label}.{live ? " Drag to choose a part of the time; click to choose all." : ""}
      </title>
      <path d={outline(values, most, height)} />
      {low > 0 || high < 1 ? (
        <>
          <rect class="outside" x="0" y="0" width={`${100 * low}%`} height={height} />
          <rect class="outside" x={`${100 * high}%`} y="0" width={`${100 * (1 - high)}%`} height={height} />
        </>
      ) : null}
    </svg>
  );
}
