// Small parts that several screens have.

import type { ComponentChild, ComponentChildren } from "preact";
import type { Asked } from "./asking.ts";
import { count, percent } from "./format.ts";
import type { Answer, Numbers } from "./wire.ts";

/** What a screen shows of an answer; while there is none why, or that it is under way. */
export function Answered({ asked, children }: { asked: Asked; children: (answer: Answer) => ComponentChildren }): ComponentChild {
  const { answer, refusal, pending } = asked;
  if (refusal) {
    return (
      <div class="refusal" role="alert">
        <p>{refusal.message}</p>
        {refusal.hint ? <p class="hint">{refusal.hint}</p> : null}
      </div>
    );
  }
  if (!answer) return <p class="waiting" role="status">{pending ? "Counting…" : null}</p>;
  const part = answer.header["part"] as { samples: number; of: number } | undefined;
  return (
    <div class={part ? "answered" : pending ? "answered pending" : "answered"} aria-busy={pending}>
      {part ? (
        <p class="part" role="status">
          A first look at {percent(part.samples / part.of)} % of the samples ({count(part.samples)} of {count(part.of)}), drawn from all over the
          file. The rest is being counted…
        </p>
      ) : null}
      {children(answer)}
    </div>
  );
}

/** What a reader should know beside the numbers. */
export function Notes({ notes }: { notes: readonly string[] }): ComponentChild {
  if (!notes.length) return null;
  return (
    <details class="notes">
      <summary>{notes.length === 1 ? "1 note" : `${notes.length} notes`}</summary>
      <ul>{notes.map((note) => <li key={note}>{note}</li>)}</ul>
    </details>
  );
}

interface SparklineProps {
  readonly values: Numbers;
  /** Where its numbers begin, how many they are. */
  readonly at: number;
  readonly length: number;
  readonly label: string;
}

/** A small chart of a row's numbers over time, each row scaled to its own largest. */
export function Sparkline({ values, at, length, label }: SparklineProps): ComponentChild {
  const part = Array.from({ length }, (_, i) => values[at + i] ?? 0);
  const most = Math.max(1, ...part);
  const steps = part.map((value, i) => `V${(16 - (15 * value) / most).toFixed(1)}H${i + 1}`).join("");
  return (
    <svg class="spark" viewBox={`0 0 ${length} 16`} preserveAspectRatio="none" role="img" aria-label={label}>
      <path d={`M0 16${steps}V16Z`} />
    </svg>
  );
}
