// How long the blocks of the function take, each time: those that took most of it first.

import type { ComponentChild } from "preact";
import { count, decimal, hex } from "../format.ts";
import { choose, chosenRow, point } from "./choice.ts";
import type { PanelProps } from "./code.ts";
import { binsOf, Histogram } from "./histogram.tsx";
import { Part } from "./part.tsx";

const LETTER = 0.65; // em: of an address, and what lies beside it
const SHOWN = 100; // blocks; the others take less than any of them

export function Cycles({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const why = answer.header["no_cycles"];
  if (why) return <p class="first">Cycles are not known: {String(why)}.</p>;
  const [mean, half, most] = ["cycles", "cycles_p50", "cycles_p90"].map((name) => answer.numbers(`blocks.${name}`));
  const bins = binsOf(answer, "cycles", "block");
  const spent = (block: number): number => (code.counted[block] ?? 0) * (mean?.[block] ?? 0);
  const timed = [...bins.keys()].sort((a, b) => spent(b) - spent(a) || a - b);
  const chosen = chosenRow(code);
  const here = chosen < 0 ? -1 : code.block[chosen];
  const longest = hex(code.address[code.address.length - 1] ?? 0n).length;
  return (
    <>
      <table class="site blocks" aria-label="Cycles of blocks">
        <thead>
          <tr>
            <th style={{ width: `max(5rem, ${longest * LETTER}em)` }}>Block</th>
            <th title="Of one execution, on average.">Cycles</th>
            <th title="Half of the executions take at most that.">p50</th>
            <th title="Nine tenths of the executions take at most that.">p90</th>
            <th title="How often an execution took how many cycles.">Spread</th>
          </tr>
        </thead>
        <tbody>
          {timed.slice(0, SHOWN).map((block) => {
            const rows = code.rowsOf(block);
            return (
              <tr
                key={block}
                class={[block === here ? "active" : "", (code.observed[block] ?? 0) < code.enough ? "few" : ""].join(
                  " ",
                )}
                data-block={block}
                onMouseEnter={() => point(rows)}
                onMouseLeave={() => point([])}
              >
                <td>
                  <button type="button" class="plain" onClick={() => choose(code, rows[0] ?? 0)}>
                    {hex(code.address[rows[0] ?? 0] ?? 0n)}
                  </button>
                </td>
                <td>{decimal(mean?.[block] ?? NaN)}</td>
                <td>{decimal(half?.[block] ?? NaN)}</td>
                <td>{decimal(most?.[block] ?? NaN)}</td>
                <td>
                  <Histogram of="Cycles" bins={bins.get(block) ?? []} />
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {timed.length > SHOWN ? <p class="said">{count(timed.length - SHOWN)} other blocks took less.</p> : null}
      <p class="said">
        A record times the way from one taken branch to the next. Blocks on it share its cycles by their instructions.
      </p>
      <Part answer={answer} />
    </>
  );
}
