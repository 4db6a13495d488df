// The bar above all screens: which samples everything below is about.

import type { ComponentChild } from "preact";
import { useAnswer } from "./asking.ts";
import { count, seconds } from "./format.ts";
import { change, FILTERS, filters, type Filter } from "./state.ts";
import type { Answer } from "./wire.ts";

const NONE = {};

export function FilterBar({ live }: { live: boolean }): ComponentChild {
  const { answer } = useAnswer("overview", live ? NONE : filters.value);
  const span = answer?.header["time"] as { from: number; to: number } | null | undefined;
  const any = FILTERS.some((name) => filters.value[name]);
  return (
    <form class="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <Choice name="pid" label="Process" live={live} options={answer ? processes(answer) : []} />
      <Choice name="module" label="Module" live={live} options={answer ? rows(answer, "modules", answer.numbers("modules.row")) : []} />
      <Choice name="event" label="Event" live={live} options={answer ? rows(answer, "events") : []} />
      {span === null ? (
        <span class="field" title="The source has no time stamps.">No time stamps</span>
      ) : (
        <fieldset class="field">
          <legend>Time, s</legend>
          <Time name="from" live={live} label="From second" placeholder={span ? seconds(span.from) : ""} />
          <span aria-hidden="true">…</span>
          <Time name="to" live={live} label="To second" placeholder={span ? seconds(span.to) : ""} />
        </fieldset>
      )}
      {filters.value["tid"] ? <span class="field">Thread {filters.value["tid"]}</span> : null}
      {live && any ? (
        <button type="button" onClick={() => change(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>Show all</button>
      ) : null}
      {live ? null : <span class="fixed">Filters are fixed in a file.</span>}
    </form>
  );
}

interface Option {
  readonly value: string;
  readonly text: string;
}

function processes(answer: Answer): Option[] {
  return rows(answer, "processes", answer.numbers("processes.pid")).map(({ value, text }) => ({ value, text: `${value} ${text}` }));
}

/** The rows of a table of the overview; their values are `values`, or their numbers. */
function rows(answer: Answer, table: string, values?: ArrayLike<number>): Option[] {
  const samples = answer.numbers(`${table}.samples`);
  return answer.texts(`${table}.name`).map((name, i) => ({
    value: String(values?.[i] ?? i),
    text: `${name || "no name"}, ${count(samples[i] ?? 0)}`,
  }));
}

function Choice({ name, label, options, live }: { name: Filter; label: string; options: Option[]; live: boolean }): ComponentChild {
  const chosen = filters.value[name] ?? "";
  const listed = options.some(({ value }) => value === chosen);
  return (
    <label class="field">
      {label}
      <select value={chosen} disabled={!live} data-filter={name} onChange={(event) => change({ [name]: event.currentTarget.value })}>
        <option value="">all</option>
        {chosen && !listed ? <option value={chosen}>{chosen.includes(",") ? `${chosen.split(",").length} chosen` : chosen}</option> : null}
        {options.map(({ value, text }) => (
          <option key={value} value={value}>
            {text.length > 60 ? `${text.slice(0, 60)}…` : text}
          </option>
        ))}
      </select>
    </label>
  );
}

function Time({ name, label, placeholder, live }: { name: Filter; label: string; placeholder: string; live: boolean }): ComponentChild {
  const chosen = filters.value[name];
  return (
    <input
      type="number"
      min="0"
      step="any"
      aria-label={label}
      data-filter={name}
      disabled={!live}
      placeholder={placeholder}
      value={chosen ? String(Number(chosen) / 1e9) : ""}
      onChange={({ currentTarget: { value } }) => change({ [name]: value === "" ? "" : String(Math.round(Number(value) * 1e9)) })}
    />
  );
}
