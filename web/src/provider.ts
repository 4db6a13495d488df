// Where answers come from. Screens do not know whether that is a server or the page itself.

import type { Answer } from "./wire.ts";

export type Parameters = Readonly<Record<string, string>>;

/** What becomes of a question while its answer is not there yet. */
export interface Waiting {
  /** Gets the answer about a part of the samples, where all of them take long: its header has `part`. */
  readonly onPart?: (answer: Answer) => void;
  /** Ends the work, as nobody waits any more. */
  readonly signal?: AbortSignal;
}

export interface Provider {
  /** Whether other filters can be asked for than those that the page began with. */
  readonly live: boolean;
  /** The filters that the page began with, where they are fixed. */
  readonly fixed: Parameters;
  /** What a page that has its answers in it holds, and what it leaves out. */
  readonly notes: readonly string[];
  /** The answer to a question of src/lastbranch/view/questions/. Rejects with a `Refusal` where there is none. */
  ask(question: string, parameters: Parameters, waiting?: Waiting): Promise<Answer>;
}

/** Why there is no answer, in words for the user. */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly hint: string | null = null,
  ) {
    super(message);
  }
}

/** One text for equal questions: the parameters in the order of their names (single_file.py makes the same). */
export function keyOf(question: string, parameters: Parameters): string {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== "");
  pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return new URLSearchParams([["question", question], ...pairs]).toString();
}
