// The answer to "function" with names: its instructions, blocks and edges, for all panels of the screen.

import type { Answer, Numbers } from "../wire.ts";

export class Code {
  /** Of each instruction: its address as linked, and its block. Instructions are "rows" everywhere. */
  readonly address: BigUint64Array | BigInt64Array;
  readonly block: Numbers;
  readonly text: string[];
  /** Of each block: its first and last row. */
  readonly first: Numbers;
  readonly last: Numbers;
  /** How often each block ran; NaN where that is not known. */
  readonly counted: Numbers;
  /** What its count and rates rest on, in this unit: bursts or executions. */
  readonly observed: Numbers;
  readonly unit: string;
  /** What rests on fewer is grey. */
  readonly enough: number;
  /** The row with the most samples, else of the block that ran most often: what is looked at first. */
  readonly hottest: number;
  /** Why there are no counts of executions; empty where there are. */
  readonly missing: string;

  constructor(readonly answer: Answer) {
    this.address = answer.bigs("instructions.address");
    this.block = answer.numbers("instructions.block");
    this.text = answer.texts("instructions.text");
    this.first = answer.numbers("blocks.first");
    this.last = answer.numbers("blocks.last");
    this.counted = answer.numbers("blocks.count");
    this.observed = answer.numbers("blocks.observed");
    this.enough = Number(answer.header["enough"]);
    this.unit = String(answer.header["rests_on"]);
    const row = maximum(answer.numbers("instructions.samples"));
    this.hottest = row >= 0 ? row : (this.first[maximum(this.counted)] ?? 0);
    this.missing = String(answer.header["missing"] ?? "");
  }

  get rows(): number {
    return this.address.length;
  }

  /** The instruction that holds an address, -1 where none does. */
  rowOf(address: bigint): number {
    let low = 0;
    let high = this.rows;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.address[middle] ?? 0n) <= address) low = middle + 1;
      else high = middle;
    }
    return address < BigInt(String(this.answer.header["end"])) ? low - 1 : -1;
  }

  /** The rows of a block. */
  rowsOf(block: number): number[] {
    const first = this.first[block] ?? 0;
    return Array.from({ length: (this.last[block] ?? -1) - first + 1 }, (_, i) => first + i);
  }
}

/** Where the largest number above 0 is, -1 where none is. */
function maximum(values: Numbers): number {
  let best = -1;
  for (let i = 0; i < values.length; i++) if ((values[i] ?? 0) > (values[best] ?? 0)) best = i;
  return best;
}

/** What every panel of the screen gets. */
export interface PanelProps {
  readonly code: Code;
}
