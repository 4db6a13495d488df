// Where the indirect jumps and calls went, and how surely that was predicted: a matrix of all, and a table of each.

import type { ComponentChild } from "preact";
import { Figure, Place, Unknown } from "../columns.tsx";
import { count, hex, percent } from "../format.ts";
import { choose } from "./choice.ts";
import type { Code, PanelProps } from "./code.ts";

const SHOWN = 50; // targets of one branch; the others are summed
const ACROSS = 12; // targets of the matrix, and branches down
const HEAT = 45; // % of the colour where a branch always goes to one target: text can still be read

interface Target {
  readonly to: string;
  readonly column: number;
  readonly count: number;
  readonly observed: number;
  readonly share: number;
  readonly mispredicted: number;
}

export function Targets({ code }: PanelProps): ComponentChild {
  if (code.missing) return <p class="first">Targets are not known: {code.missing}.</p>;
  const sites = sitesOf(code);
  if (!sites.size) return <p class="first">No indirect jump or call of this function was seen to be taken.</p>;
  return (
    <>
      <Matrix code={code} sites={sites} />
      {[...sites].map(([row, targets]) => (
        <Site key={row} code={code} row={row} targets={targets} />
      ))}
    </>
  );
}

/** The targets of each branch, in the order of the answer: the most frequent first. */
function sitesOf({ answer }: Code): Map<number, Target[]> {
  const to = answer.texts("edges.to");
  const counts = answer.numbers("edges.count");
  const observed = answer.numbers("edges.observed");
  const wrong = answer.numbers("edges.mispredicted");
  const edges = answer.numbers("targets.edge");
  const share = answer.numbers("targets.share");
  const column = answer.numbers("targets.column");
  const sites = new Map<number, Target[]>();
  answer.numbers("targets.site").forEach((row: number, i: number) => {
    const edge = edges[i] ?? 0;
    const found = sites.get(row) ?? [];
    if (!found.length) sites.set(row, found);
    found.push({
      to: to[edge] ?? "",
      column: column[i] ?? 0,
      count: counts[edge] ?? NaN,
      observed: observed[edge] ?? 0,
      share: share[i] ?? NaN,
      mispredicted: wrong[edge] ?? NaN,
    });
  });
  return sites;
}

/** Branches down, targets across, and how often which went where as heat. */
function Matrix({ code, sites }: PanelProps & { sites: ReadonlyMap<number, readonly Target[]> }): ComponentChild {
  const { answer } = code;
  const to = answer.texts("edges.to");
  const edges = answer.numbers("columns.edge");
  const across = Math.min(ACROSS, edges.length);
  const down = [...sites].slice(0, ACROSS);
  const others = edges.length > across;
  return (
    <div class="matrix" role="region" aria-label="Matrix of branches and targets" tabIndex={0}>
      <table aria-label="Branches and targets">
        <thead>
          <tr>
            <th scope="col">Share %</th>
            {Array.from({ length: across }, (_, column) => (
              <th key={column} scope="col" title={to[edges[column] ?? 0]}>
                {column + 1}
              </th>
            ))}
            {others ? (
              <th scope="col" title={`${edges.length - across} other targets`}>
                others
              </th>
            ) : null}
          </tr>
        </thead>
        <tbody>
          {down.map(([row, targets]) => {
            const by = new Map(targets.map((target) => [target.column, target]));
            const rest = targets.filter(({ column }) => column >= across).reduce((sum, { share }) => sum + share, 0);
            const at = hex(code.address[row] ?? 0n);
            return (
              <tr key={row}>
                <th scope="row" title={code.text[row]}>
                  <button type="button" class="plain" onClick={() => choose(code, row)}>
                    {at}
                  </button>
                </th>
                {Array.from({ length: across }, (_, column) => {
                  const target = by.get(column);
                  return target ? <Cell key={column} at={at} target={target} /> : <td key={column} />;
                })}
                {others ? <td>{rest ? percent(rest) : ""}</td> : null}
              </tr>
            );
          })}
        </tbody>
      </table>
      {sites.size > down.length ? (
        <p class="said">{count(sites.size - down.length)} other branches were taken less often.</p>
      ) : null}
    </div>
  );
}

function Cell({ at, target }: { at: string; target: Target }): ComponentChild {
  const { to, share, mispredicted } = target;
  const missed = Number.isNaN(mispredicted) ? "" : `, mispredicted ${percent(mispredicted)} %`;
  return (
    <td
      title={`${at} to ${to}: ${count(target.count)}${missed}`}
      style={{ background: `color-mix(in srgb, var(--accent) ${Math.round(HEAT * share)}%, transparent)` }}
    >
      {percent(share)}
    </td>
  );
}

function Site({ code, row, targets }: PanelProps & { row: number; targets: readonly Target[] }): ComponentChild {
  const at = hex(code.address[row] ?? 0n);
  const rest = targets.slice(SHOWN);
  const sum = (of: (target: Target) => number, over: readonly Target[] = rest): number =>
    over.reduce((all, target) => all + of(target), 0);
  const few = (code.observed[code.block[row] ?? 0] ?? 0) < code.enough;
  return (
    <table class="site" aria-label={`Targets of ${at}`}>
      <caption>
        <button type="button" class="plain" title={code.text[row]} onClick={() => choose(code, row)}>
          {at} {code.text[row]}
        </button>
      </caption>
      <thead>
        <tr>
          <th>Target</th>
          <th>Taken</th>
          <th>Share %</th>
          <th>Missed %</th>
        </tr>
      </thead>
      <tbody>
        {targets.slice(0, SHOWN).map((target) => (
          <tr key={target.column}>
            <td class="target" title={target.to} data-number={target.column + 1}>
              <Place name={target.to} />
            </td>
            <td>{count(target.count)}</td>
            <td>
              <Figure few={few}>{percent(target.share)}</Figure>
            </td>
            <td>
              {Number.isNaN(target.mispredicted) ? (
                <Unknown why="The source does not record predictions." />
              ) : (
                <Figure few={target.observed < code.enough}>{percent(target.mispredicted)}</Figure>
              )}
            </td>
          </tr>
        ))}
        {rest.length ? (
          <tr>
            <td>{rest.length} others</td>
            <td>{count(sum((one) => one.count))}</td>
            <td>
              <Figure few={few}>{percent(sum((one) => one.share))}</Figure>
            </td>
            <td />
          </tr>
        ) : null}
      </tbody>
    </table>
  );
}
