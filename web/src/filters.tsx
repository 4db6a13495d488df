// The bar above all screens: which samples everything below is about.

import type { ComponentChild } from "preact";
import { useEffect, useState } from "preact/hooks";
import { idle, useAnswer, useOverview } from "./asking.ts";
import { count, seconds } from "./format.ts";
import { change, FILTERS, filters, type Filter } from "./state.ts";
import { TimeChart } from "./time-chart.tsx";
import type { Answer } from "./wire.ts";

export function FilterBar({ live }: { live: boolean }): ComponentChild {
  const { answer } = useOverview();
  const span = answer?.header["time"] as { from: number; to: number } | null | undefined;
  const options: Options = {
    pid: answer ? processes(answer) : [],
    module: answer ? rows(answer, "modules", answer.numbers("modules.row")) : [],
    event: answer ? rows(answer, "events") : [],
  };
  return (
    <form class="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <Choice name="pid" label="Process" live={live} options={options.pid} />
      <Choice name="module" label="Module" live={live} options={options.module} />
      <Choice name="event" label="Event" live={live} options={options.event} />
      {span === null && answer?.header["samples"] ? (
        <span class="field" title="The source has no time stamps.">
          No time stamps
        </span>
      ) : (
        <fieldset class="field">
          <legend>Time, s</legend>
          <Time
            name="from"
            live={live}
            label="From second"
            placeholder={span ? seconds(span.from, span.to - span.from) : ""}
          />
          <span aria-hidden="true">…</span>
          <Time
            name="to"
            live={live}
            label="To second"
            placeholder={span ? seconds(span.to, span.to - span.from) : ""}
          />
        </fieldset>
      )}
      {live ? null : <span class="fixed">Filters are fixed in a file.</span>}
      {span && span.to > span.from ? <Timeline from={span.from} to={span.to} live={live} /> : null}
      <Chips live={live} options={options} />
    </form>
  );
}

type Options = Record<"pid" | "module" | "event", Option[]>;

/** The filters in force, each with a button that takes it away. */
function Chips({ live, options }: { live: boolean; options: Options }): ComponentChild {
  const { from = "", to = "", ...lists } = filters.value;
  const chips = Object.entries(lists).flatMap(([name, values]) =>
    values.split(",").map((value) => ({
      text: `${LABELS[name]} ${(options[name as keyof Options] ?? []).find((one) => one.value === value)?.name ?? value}`,
      without: {
        [name]: values
          .split(",")
          .filter((other) => other !== value)
          .join(","),
      },
    })),
  );
  if (from || to) {
    const [first, last] = [from, to].map((time) => (time ? `${Number(time) / 1e9}` : ""));
    const text = first && last ? `Time ${first} to ${last} s` : first ? `Time from ${first} s` : `Time to ${last} s`;
    chips.push({ text, without: { from: "", to: "" } });
  }
  if (!chips.length) return null;
  return (
    <ul class="chips" aria-label="Filters in force">
      {chips.map(({ text, without }) => (
        <li key={text} title={text}>
          <span>{text}</span>
          {live ? (
            <button type="button" aria-label={`Remove ${text}`} onClick={() => change(without)}>
              ×
            </button>
          ) : null}
        </li>
      ))}
      {live ? (
        <li class="clear">
          <button type="button" onClick={() => change(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>
            Clear all
          </button>
        </li>
      ) : null}
    </ul>
  );
}

const LABELS: Record<string, string> = { pid: "Process", tid: "Thread", module: "Module", event: "Event" };

const HEIGHT = 28;

/** Samples over the time of the capture. */
function Timeline({ from, to, live }: { from: number; to: number; live: boolean }): ComponentChild {
  const [started, setStarted] = useState(false);
  const ready = started || idle.value; // what the screen shows comes first
  useEffect(() => setStarted(ready), [ready]);
  const { from: _first, to: _last, ...others } = filters.value;
  const { answer } = useAnswer(started ? "timeline" : null, live ? others : filters.value);
  return (
    <TimeChart
      values={answer?.numbers("samples") ?? new Float64Array()}
      from={from}
      length={to - from + 1}
      live={live}
      height={HEIGHT}
      label="Samples over time"
    />
  );
}

interface Option {
  readonly value: string;
  /** Without its number of samples. */
  readonly name: string;
  readonly text: string;
}

function processes(answer: Answer): Option[] {
  return rows(answer, "processes", answer.numbers("processes.pid")).map(({ value, name, text }) => ({
    value,
    name: `${value} ${name}`,
    text: `${value} ${text}`,
  }));
}

/** The rows of a table of the overview; their values are `values`, or their numbers. */
function rows(answer: Answer, table: string, values?: ArrayLike<number>): Option[] {
  const samples = answer.numbers(`${table}.samples`);
  return answer.texts(`${table}.name`).map((name, i) => ({
    value: String(values?.[i] ?? i),
    name: name || "no name",
    text: answer.header["part"] ? name || "no name" : `${name || "no name"}, ${count(samples[i] ?? 0)}`, // as long as not all are counted
  }));
}

/** Adds one to the values of a filter. */
function Choice({
  name,
  label,
  options,
  live,
}: {
  name: Filter;
  label: string;
  options: Option[];
  live: boolean;
}): ComponentChild {
  const chosen = filters.value[name]?.split(",") ?? [];
  const add = (value: string): void => change({ [name]: [...chosen, value].join(",") });
  return (
    <label class="field">
      {label}
      <select
        value=""
        disabled={!live}
        data-filter={name}
        onChange={({ currentTarget }) => currentTarget.value && add(currentTarget.value)}
      >
        <option value="">{chosen.length ? `${chosen.length} chosen` : "all"}</option>
        {options
          .filter(({ value }) => !chosen.includes(value))
          .map(({ value, text }) => (
            <option key={value} value={value}>
              {text.length > 60 ? `${text.slice(0, 60)}…` : text}
            </option>
          ))}
      </select>
    </label>
  );
}

function Time({
  name,
  label,
  placeholder,
  live,
}: {
  name: Filter;
  label: string;
  placeholder: string;
  live: boolean;
}): ComponentChild {
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
      onChange={({ currentTarget: { value } }) =>
        change({ [name]: value === "" ? "" : String(Math.round(Number(value) * 1e9)) })
      }
    />
  );
}
