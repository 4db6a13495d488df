// Where each indirect jump and call went, and how surely that was predicted.

import type { ComponentChild } from "preact";
import { count, hex, percent } from "../format.ts";
import { Place } from "../table.tsx";
import { choose } from "./choice.ts";
import type { PanelProps } from "./code.ts";

const INDIRECT = new Set(["ind", "ind_call"]);
const SHOWN = 50; // targets of one branch; the others are summed

export function Targets({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const kind = answer.texts("instructions.kind");
  const source = answer.numbers("edges.source");
  const to = answer.texts("edges.to");
  const counts = answer.numbers("edges.count");
  const wrong = answer.numbers("edges.mispredicted");
  const sites = new Map<number, number[]>(); // its edges, the most frequent first, as the answer has them
  source.forEach((row, edge) => {
    if (INDIRECT.has(kind[row] ?? "")) sites.set(row, [...(sites.get(row) ?? []), edge]);
  });
  if (code.missing) return <p class="first">Targets are not known: {code.missing}.</p>;
  if (!sites.size) return <p class="first">No indirect jump or call of this function was seen to be taken.</p>;
  const sum = (edges: readonly number[]): number => edges.reduce((all, edge) => all + (counts[edge] ?? 0), 0);
  return [...sites].map(([row, edges]) => {
    const all = sum(edges);
    const rest = edges.slice(SHOWN);
    const at = hex(code.address[row] ?? 0n);
    return (
      <table key={row} class="site" aria-label={`Targets of ${at}`}>
        <caption>
          <button type="button" class="plain" onClick={() => choose(code, row)}>{at} {code.text[row]}</button>
        </caption>
        <thead>
          <tr><th>Target</th><th>Taken</th><th>Share %</th><th>Missed %</th></tr>
        </thead>
        <tbody>
          {edges.slice(0, SHOWN).map((edge) => (
            <tr key={edge}>
              <td class="target" title={to[edge]}><Place name={to[edge] ?? ""} /></td>
              <td>{count(counts[edge] ?? NaN)}</td>
              <td>{percent((counts[edge] ?? NaN) / all)}</td>
              <td title={Number.isNaN(wrong[edge]) ? "The source does not record predictions." : undefined}>{percent(wrong[edge] ?? NaN)}</td>
            </tr>
          ))}
          {rest.length ? <tr><td>{rest.length} others</td><td>{count(sum(rest))}</td><td>{percent(sum(rest) / all)}</td><td /></tr> : null}
        </tbody>
      </table>
    );
  });
}
