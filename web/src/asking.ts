// Answers for components: each question is asked once for the same parameters, and the last answers are kept.

import { computed, signal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { keyOf, Refusal, type Parameters, type Provider } from "./provider.ts";
import { filters } from "./state.ts";
import type { Answer } from "./wire.ts";

const KEPT = 24;

interface Entry {
  readonly answer: Promise<Answer>;
  readonly stop: AbortController;
  /** The answer about a part of the samples, which came before. */
  part: Answer | null;
  /** Components that wait for it: the last one that goes ends the work. */
  readonly waiting: Set<() => void>;
  settled: boolean;
}

const entries = new Map<string, Entry>();
let provider: Provider;

export function useProvider(chosen: Provider): void {
  provider = chosen;
}

/** What every screen needs to know of the capture. It is about all of it: filters change nothing. */
export function useOverview(): Asked {
  return useAnswer("overview", provider.live ? {} : filters.value);
}

export function isLive(): boolean {
  return provider.live;
}

const revision = signal(0);
/** Questions whose answers are not about the capture. */
const LASTING: readonly string[] = ["doctor"];

/** The capture has grown: components ask again what they show, and show what they have until the answer is there. */
export function askAgain(): void {
  for (const key of entries.keys())
    if (!LASTING.includes(new URLSearchParams(key).get("question") ?? "")) entries.delete(key);
  revision.value++;
}

const underWay = signal(0);
/** Whether no answer is under way: what is not urgent can be asked now. */
export const idle: ReadonlySignal<boolean> = computed(() => underWay.value === 0);

export function ask(question: string, parameters: Parameters): Promise<Answer> {
  const entry = entryOf(question, parameters);
  entry.waiting.add(() => undefined); // who has asked here does not say when they have gone
  return entry.answer;
}

function entryOf(question: string, parameters: Parameters): Entry {
  const key = keyOf(question, parameters);
  const known = entries.get(key);
  if (known) return known;
  const stop = new AbortController();
  const onPart = (part: Answer): void => {
    entry.part = part;
    entry.waiting.forEach((show) => show());
  };
  underWay.value++;
  const answer = provider.ask(question, parameters, { onPart, signal: stop.signal });
  const done = (): number => underWay.value--;
  answer.then(done, done);
  const entry: Entry = { answer, stop, part: null, waiting: new Set(), settled: false };
  entries.set(key, entry);
  answer.then(
    () => Object.assign(entry, { settled: true, part: null }),
    () => entries.get(key) === entry && entries.delete(key), // asked again the next time
  );
  const oldest = entries.keys().next();
  if (entries.size > KEPT && !oldest.done) entries.delete(oldest.value);
  return entry;
}

function leave(key: string, entry: Entry, show: () => void): void {
  entry.waiting.delete(show);
  if (entry.settled || entry.waiting.size) return;
  entry.stop.abort();
  if (entries.get(key) === entry) entries.delete(key);
}

export interface Asked {
  /** The newest answer; while another is under way it is that to the question before, or one about a part of the samples
   * (its header has `part`), with `pending`. */
  readonly answer: Answer | null;
  readonly refusal: Refusal | null;
  readonly pending: boolean;
}

interface Kept extends Asked {
  /** What was asked. */
  readonly key: string | null;
}

const NOTHING: Kept = { answer: null, refusal: null, pending: true, key: null };

/** The answer to a question, in a component; null asks nothing. */
export function useAnswer(question: string | null, parameters: Parameters): Asked {
  const [asked, setAsked] = useState(NOTHING);
  const key = question === null ? null : keyOf(question, parameters);
  const of = question !== null && LASTING.includes(question) ? 0 : revision.value;
  useEffect(() => {
    if (question === null) {
      setAsked({ ...NOTHING, pending: false, key });
      return;
    }
    let wanted = true;
    setAsked((before) => (knows(before, key) ? before : { ...before, pending: true, key }));
    const entry = entryOf(question, parameters);
    const show = (): void => {
      const { part } = entry;
      if (wanted && part)
        setAsked((before) => (knows(before, key) ? before : { answer: part, refusal: null, pending: true, key }));
    };
    entry.waiting.add(show);
    show();
    entry.answer.then(
      (answer) => wanted && setAsked({ answer, refusal: null, pending: false, key }),
      (error: unknown) => wanted && setAsked({ answer: null, refusal: asRefusal(error), pending: false, key }),
    );
    return () => {
      wanted = false;
      leave(key ?? "", entry, show);
    };
  }, [key, of]);
  return asked.key === key ? asked : { ...asked, pending: true }; // before the effect has run
}

/** Whether all of an answer to that is shown already, about less of a recording that grows. */
function knows(shown: Kept, key: string | null): boolean {
  return shown.key === key && shown.answer !== null && !shown.answer.header["part"];
}

function asRefusal(error: unknown): Refusal {
  return error instanceof Refusal ? error : new Refusal(`The viewer failed: ${String(error)}`);
}
