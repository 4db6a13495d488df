// Small parts that several screens have.

import type { ComponentChild, ComponentChildren } from "preact";
import { isLive, type Asked } from "./asking.ts";
import { count, percent } from "./format.ts";
import { change, counts } from "./state.ts";
import type { Answer, Numbers } from "./wire.ts";

/** What a screen shows of an answer; while there is none why, or that it is under way. */
export function Answered({
  asked,
  children,
}: {
  asked: Asked;
  children: (answer: Answer) => ComponentChildren;
}): ComponentChild {
  const { answer, refusal, pending } = asked;
  if (refusal) {
    return (
      <div class="refusal" role="alert">
        <p>{refusal.message}</p>
        {refusal.hint ? <p class="hint">{refusal.hint}</p> : null}
      </div>
    );
  }
  if (!answer)
    return (
      <p class="waiting" role="status">
        {pending ? "Counting…" : null}
      </p>
    );
  const part = answer.header["part"] as { samples: number; of: number } | undefined;
  return (
    <div class={part ? "answered" : pending ? "answered pending" : "answered"} aria-busy={pending}>
      {part ? (
        <p class="part" role="status">
          A first look at {percent(part.samples / part.of)} % of the samples ({count(part.samples)} of {count(part.of)}
          ), drawn from all over the file. The rest is being counted…
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
      <ul>
        {notes.map((note) => (
          <li key={note}>{note}</li>
        ))}
      </ul>
    </details>
  );
}

/** What an answer says of its counts of branches and instructions (counts_of in src/lastbranch/view/answer.py). */
export interface CountsOf {
  readonly basis: "time" | "executions" | "entries";
  readonly replaced: boolean;
  readonly refused: boolean;
  readonly note: string;
}

export function countsOf(answer: Answer): CountsOf {
  return answer.header["counts"] as unknown as CountsOf;
}

/** "Share of time": what shares are in proportion to. */
export function shareTitle(basis: CountsOf["basis"]): string {
  return basis === "entries" ? "Share" : `Share of ${basis}`;
}

/** rem: room for that title, its unit and the arrow of sorting. */
export function shareWidth(basis: CountsOf["basis"]): number {
  return { time: 8, executions: 10.6, entries: 6 }[basis];
}

const CHOICES = [
  { value: "", title: "Observed", hint: "Counts as they were recorded." },
  { value: "executions", title: "Executions", hint: "How often code ran, estimated from what was recorded." },
] as const;

/** The choice of what is counted, and what the counts are. */
export function Counts({ answer }: { answer: Answer }): ComponentChild {
  const { note, refused } = countsOf(answer);
  const { estimate = "" } = counts.value;
  return (
    <div class="counts">
      <nav aria-label="Counts" class="views">
        {CHOICES.map(({ value, title, hint }) => (
          <button
            key={title}
            type="button"
            title={hint}
            disabled={!isLive()}
            aria-pressed={value === estimate}
            onClick={() => change({ estimate: value })}
          >
            {title}
          </button>
        ))}
      </nav>
      <span class={refused ? "refused" : "hint"} role="status" title={note}>
        {note}
      </span>
    </div>
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
