// The loops of the function: how often they were entered and went round.

import type { ComponentChild } from "preact";
import { count, decimal, hex } from "../format.ts";
import { Unknown } from "../table.tsx";
import { choose } from "./choice.ts";
import type { PanelProps } from "./code.ts";

export function Loops({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const header = answer.numbers("loops.header");
  const depth = answer.numbers("loops.depth");
  const iterations = answer.numbers("loops.iterations");
  const trips = answer.numbers("loops.trips");
  const cycles = answer.numbers("loops.cycles");
  if (!header.length) return <p class="first">This function has no loops.</p>;
  const known = (value: number | undefined, why: string): ComponentChild =>
    value === undefined || Number.isNaN(value) ? <Unknown why={why} /> : decimal(value);
  return (
    <table>
      <thead>
        <tr>
          <th>At</th>
          <th>Depth</th>
          <th>Iterations</th>
          <th>Trips</th>
          <th>Cycles of one</th>
        </tr>
      </thead>
      <tbody>
        {Array.from(header, (block, loop) => {
          const row = code.first[block] ?? 0;
          return (
            <tr key={loop}>
              <td><button type="button" class="plain" onClick={() => choose(code, row)}>{hex(code.address[row] ?? 0n)}</button></td>
              <td>{depth[loop]}</td>
              <td>{count(iterations[loop] ?? NaN)}</td>
              <td>{known(trips[loop], "It was not seen to be entered.")}</td>
              <td>{known(cycles[loop], "The source does not record cycles.")}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
