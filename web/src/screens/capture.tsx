// Capture: what was recorded, on what, and what is missing or wrong.

import type { ComponentChild } from "preact";
import { useAnswer } from "../asking.ts";
import { count } from "../format.ts";
import { Answered } from "../parts.tsx";
import { filters } from "../state.ts";
import type { Answer, Json } from "../wire.ts";

export function Capture(): ComponentChild {
  return (
    <div class="scrolled" tabIndex={0} role="region" aria-label="Capture">
      <h2>Check</h2>
      <Answered asked={useAnswer("findings", filters.value)}>{(answer) => <Findings answer={answer} />}</Answered>
      <Answered asked={useAnswer("capture", filters.value)}>{(answer) => <Facts facts={answer.header} />}</Answered>
    </div>
  );
}

function Findings({ answer }: { answer: Answer }): ComponentChild {
  const [severity = [], name = [], means = [], seen = [], remedy = []] = ["severity", "name", "means", "seen", "remedy"].map((column) =>
    answer.texts(column),
  );
  if (!severity.length) return <p>Nothing is missing or wrong.</p>;
  return (
    <ul class="findings">
      {severity.map((how, i) => (
        <li key={i} class={how}>
          <strong>{how}: {name[i]}</strong> {means[i]}
          <dl>
            <dt>Seen</dt>
            <dd>{seen[i]}</dd>
            <dt>Remedy</dt>
            <dd>{remedy[i]}</dd>
          </dl>
        </li>
      ))}
    </ul>
  );
}

type Facts = { [name: string]: Json };

/** The tables of the summary that have sections of their own; the rest is one list. */
const TABLES = { events: "Events", modules: "Modules", streams: "Streams" };

function Facts({ facts }: { facts: Facts }): ComponentChild {
  const rest = Object.entries(facts).filter(([name]) => !(name in TABLES));
  return (
    <>
      <h2>Facts</h2>
      <dl class="facts">{rest.flatMap(([name, value]) => flat(name, value))}</dl>
      {Object.entries(TABLES).map(([name, title]) => (
        <section key={name}>
          <h2>{title}</h2>
          <Rows label={title} rows={(facts[name] ?? []) as Facts[]} />
        </section>
      ))}
    </>
  );
}

/** `machine: {host}` as "machine host"; nothing of what is not known, as a size of 0. */
function flat(name: string, value: Json): ComponentChild[] {
  if (value === null || value === "" || (value === 0 && name.startsWith("machine"))) return [];
  if (typeof value === "object" && !Array.isArray(value)) {
    return Object.entries(value).flatMap(([key, inner]) => flat(`${name} ${key}`, inner));
  }
  if (Array.isArray(value) && !value.length) return [];
  return [<dt key={name}>{name.replaceAll("_", " ")}</dt>, <dd key={`${name}=`}>{textOf(value)}</dd>];
}

function textOf(value: Json): string {
  if (typeof value === "number") return count(value);
  if (Array.isArray(value)) return value.map(textOf).join(", ");
  if (value !== null && typeof value === "object") return Object.entries(value).map(([key, inner]) => `${key} ${textOf(inner)}`).join(", ");
  return value === null ? "" : String(value);
}

function Rows({ label, rows }: { label: string; rows: Facts[] }): ComponentChild {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row).filter((key) => textOf(row[key] ?? null))))];
  return (
    <table aria-label={label}>
      <thead>
        <tr>{columns.map((name) => <th key={name} scope="col">{name.replaceAll("_", " ")}</th>)}</tr>
      </thead>
      <tbody>
        {rows.map((row, i) => (
          <tr key={i}>{columns.map((name) => <td key={name}>{textOf(row[name] ?? null)}</td>)}</tr>
        ))}
      </tbody>
    </table>
  );
}
