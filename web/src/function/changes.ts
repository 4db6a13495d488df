// How the shares of a function's blocks changed, where its capture is compared with another (view/questions/diff.py).

import { percent } from "../format.ts";
import type { Answer } from "../wire.ts";
import type { Code } from "./code.ts";

export interface Change {
  readonly before: number;
  readonly share: number;
  readonly change: number;
  readonly significant: boolean;
  /** All of it, as a sentence. */
  readonly description: string;
}

/** The change of each block.
 *
 * A block that nothing was seen to begin at ran as often as the one before it, through which it was reached.
 */
export function changesOf(code: Code, answer: Answer): Map<number, Change> {
  const found = new Map<number, Change>();
  const address = answer.bigs("address");
  const after = answer.numbers("after");
  const events = answer.texts("event");
  const [before, share, change, noise, p, significant] = ["before", "share", "change", "noise", "p", "significant"].map(
    (name) => answer.numbers(name),
  );
  for (const wanted of [1, 0]) {
    // where a block begins both ways, what branches lead to has all of its ranges
    for (let i = 0; i < address.length; i++) {
      if (after[i] !== wanted || events[i] !== events[0]) continue;
      const row = code.rowOf(address[i] ?? 0n);
      if (row < 0 || code.address[row] !== address[i]) continue;
      const block = code.block[row + wanted];
      if (block === undefined || code.first[block] !== row + wanted) continue;
      const of = (values: typeof before): number => values?.[i] ?? NaN;
      const sure = of(significant) === 1;
      found.set(block, {
        before: of(before),
        share: of(share),
        change: of(change),
        significant: sure,
        description:
          `before ${percent(of(before))} % of the ranges, after ${percent(of(share))} %: ${of(change) > 0 ? "+" : ""}${percent(of(change))} points ` +
          `(noise ${percent(of(noise))}, ${Number.isNaN(of(p)) ? "too few samples to tell" : `p ${of(p).toPrecision(2)}`}${sure ? ", significant" : ""})`,
      });
    }
  }
  for (let block = 1; block < code.first.length; block++) {
    const last = found.get(block - 1);
    if (!found.has(block) && last && !Number.isNaN(code.counted[block] ?? NaN)) found.set(block, last);
  }
  return found;
}
