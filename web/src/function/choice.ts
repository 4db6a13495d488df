// Which instruction is chosen, and which the mouse points at: all panels of the function follow.

import { signal } from "@preact/signals";
import { hex } from "../format.ts";
import { change, state } from "../state.ts";
import type { Code } from "./code.ts";

/** The rows of what is under the mouse in any panel: an instruction, a block, all of a source line. */
export const pointed = signal<readonly number[]>([]);

export function point(rows: readonly number[]): void {
  const now = pointed.value;
  if (rows.length !== now.length || rows.some((row, i) => row !== now[i])) pointed.value = rows;
}

/** The row that is chosen (`at` in the address of the page), -1 where none is. */
export function chosenRow(code: Code): number {
  const { at = "" } = state.value.parameters;
  try {
    return at ? code.rowOf(BigInt(at)) : -1;
  } catch {
    return -1; // no number
  }
}

/** Choose a row: every panel shows it. It does not make an entry in the history, as arrow keys do it as well. */
export function choose(code: Code, row: number): void {
  const address = code.address[row];
  if (address !== undefined) change({ at: hex(address) }, true);
}
