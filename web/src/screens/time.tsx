// Time: samples, branches, mispredictions and losses over the time of the capture, of all or of each process or thread.

import type { ComponentChild } from "preact";
import { useMemo, useState } from "preact/hooks";
import { isLive, useAnswer } from "../asking.ts";
import { numberColumn, type Column } from "../columns.tsx";
import { count, counted, decimal, largest, percent, seconds } from "../format.ts";
import { Answered } from "../parts.tsx";
import { change, filters, state } from "../state.ts";
import { Table } from "../table.tsx";
import { TimeChart } from "../time-chart.tsx";
import type { Answer, Numbers } from "../wire.ts";

const VIEWS = [
  { by: "", title: "All", hint: "All samples together." },
  { by: "process", title: "Processes", hint: "A row for each of the processes with most samples." },
  { by: "thread", title: "Threads", hint: "A row for each of the threads with most samples." },
] as const;
const HEIGHT = 72; // px of the charts of all samples
const LOW = 30; // px of those of one process or thread

export function Time(): ComponentChild {
  const { by = "" } = state.value.parameters;
  const { from: _from, to: _to, ...others } = filters.value;
  const asked = useAnswer("time", { ...(isLive() ? others : filters.value), by });
  return <Answered asked={asked}>{(answer) => <Rates answer={answer} />}</Answered>;
}

/** What is drawn over the time, of each group. */
/** At most so many times are written on the axis, the last one no later than at that share of its length. */
const TICKS = 10;
const LAST = 0.95;

interface Measure {
  readonly name: string;
  readonly title: string;
  readonly values: Numbers;
  /** The numbers as text. */
  text(value: number): string;
}

function Rates({ answer }: { answer: Answer }): ComponentChild {
  const { by = "", table = "" } = state.value.parameters;
  const [pointed, setPointed] = useState(-1);
  const parts = Number(answer.header["parts"]);
  const from = Number(answer.header["from"]);
  const length = Number(answer.header["to"]) - from;
  const measures = useMemo(() => measuresOf(answer, length / parts / 1e9), [answer]);
  const names = answer.texts("groups.name");
  const ids = answer.numbers("groups.id");
  const columns = useMemo(() => columnsOf(answer, measures, parts, from, length), [answer]);
  const filter = by === "thread" ? "tid" : "pid";
  const at = pointed < 0 ? "" : `${seconds(from + (length * pointed) / parts, length)} s: `;
  return (
    <>
      <div class="over-table">
        <nav aria-label="Rows" class="views">
          {VIEWS.map((one) => (
            <button
              key={one.by}
              type="button"
              title={one.hint}
              aria-pressed={one.by === by}
              onClick={() => change({ by: one.by })}
            >
              {one.title}
            </button>
          ))}
        </nav>
        <label title="The same numbers, of all samples, as rows.">
          <input type="checkbox" checked={table !== ""} onChange={() => change({ table: table ? "" : "1" })} /> Table
        </label>
        <p class="summary">{lossesOf(answer)}</p>
      </div>
      {table ? (
        <Table
          label="Parts of the time"
          columns={columns}
          rows={parts}
          sort="from"
          onOpen={(row) => isLive() && change(timesOf(row, parts, from, length))}
        />
      ) : (
        <div class="rates" role="region" aria-label="Rates over time" tabIndex={0}>
          <Axis from={from} length={length} />
          {names.map((name, group) => (
            <section key={`${ids[group]} ${name}`} aria-label={name} data-group={group}>
              <h2 title={name}>
                {(ids[group] ?? -1) >= 0 && isLive() ? (
                  <button
                    type="button"
                    class="plain"
                    title={`Show only ${name}`}
                    onClick={() => change({ [filter]: String(ids[group]) })}
                  >
                    {name}
                  </button>
                ) : (
                  name
                )}
              </h2>
              {measures.map((measure) => {
                const values = measure.values.subarray(group * parts, (group + 1) * parts);
                if (!values.length) return null;
                const most = largest(values);
                return (
                  <figure key={measure.name} data-measure={measure.name}>
                    <figcaption>
                      {measure.title}:{" "}
                      {pointed < 0 ? `at most ${measure.text(most)}` : `${at}${measure.text(values[pointed] ?? NaN)}`}
                    </figcaption>
                    <TimeChart
                      values={values}
                      most={most}
                      from={from}
                      length={length}
                      live={isLive()}
                      height={group ? LOW : HEIGHT}
                      label={`${measure.title} of ${name} over time, at most ${measure.text(most)}`}
                      onPoint={setPointed}
                    />
                  </figure>
                );
              })}
            </section>
          ))}
        </div>
      )}
    </>
  );
}

/** The time below which the charts are, in seconds since the first event. */
function Axis({ from, length }: { from: number; length: number }): ComponentChild {
  const power = 10 ** Math.floor(Math.log10(length / TICKS));
  const step = power * ([1, 2, 5].find((times) => length / (times * power) <= TICKS) ?? 10);
  const digits = Math.max(0, -Math.floor(Math.log10(step / 1e9)));
  const first = Math.ceil(from / step);
  const ticks = Array.from(
    { length: Math.max(0, Math.floor((from + length * LAST) / step) - first + 1) },
    (_, i) => (first + i) * step,
  );
  return (
    <div class="axis" aria-hidden="true">
      {ticks.map((at) => (
        <span key={at} style={{ left: `${(100 * (at - from)) / length}%` }}>
          {(at / 1e9).toFixed(digits)} s
        </span>
      ))}
    </div>
  );
}

/** The filter for a part of the time. */
function timesOf(part: number, parts: number, from: number, length: number): Record<string, string> {
  const [first, last] = [part, part + 1].map((one) => String(Math.ceil(from + (length * one) / parts)));
  return { from: first ?? "", to: last ?? "" };
}

/** `each`: seconds of a part. */
function measuresOf(answer: Answer, each: number): Measure[] {
  const aSecond = (name: string): Numbers => Float64Array.from(answer.numbers(name), (value) => value / each);
  const wrong = answer.numbers("mispredicted");
  const right = answer.numbers("predicted");
  const rate = Float64Array.from(wrong, (value, i) => value / (value + (right[i] ?? 0)));
  return [
    { name: "samples", title: "Samples a second", values: aSecond("samples"), text: short },
    ...(answer.header["branches"]
      ? [{ name: "branches", title: "Branches a second", values: aSecond("branches"), text: short }]
      : []),
    ...(answer.header["predictions"]
      ? [{ name: "mispredicted", title: "Mispredicted", values: rate, text: (value: number) => `${percent(value)} %` }]
      : []),
    ...(Number(answer.header["lost_in_time"])
      ? [{ name: "lost", title: "Lost a second", values: aSecond("lost"), text: short }]
      : []),
  ];
}

function short(value: number): string {
  return value < 10 && !Number.isInteger(value) ? decimal(value) : count(value);
}

/** What was lost, and whether the charts say when. */
function lossesOf(answer: Answer): string {
  const lost = Object.entries(answer.header["lost"] as Record<string, number>).filter(([, number]) => number);
  const all = `${counted(answer.numbers("groups.samples")[0] ?? 0, "sample")}, ${counted(answer.numbers("groups.branches")[0] ?? 0, "branch entry").replace(/entrys$/, "entries")}.`;
  if (!lost.length) return `${all} Nothing is known to be lost.`;
  const said = `${all} Lost: ${lost.map(([name, number]) => `${count(number)} ${name}`).join(", ")}`;
  return Number(answer.header["lost_in_time"]) ? `${said}.` : `${said}; the source does not say when.`;
}

function columnsOf(
  answer: Answer,
  measures: readonly Measure[],
  parts: number,
  from: number,
  length: number,
): Column[] {
  const of = (name: string): Numbers => answer.numbers(name).subarray(0, parts);
  const starts = Float64Array.from({ length: parts }, (_, part) => from + (length * part) / parts);
  const rate = (name: string): Numbers =>
    measures.find((one) => one.name === name)?.values.subarray(0, parts) ?? new Float64Array(parts).fill(NaN);
  const missing = "The source does not say.";
  return [
    numberColumn("from", "From", starts, (value) => seconds(value, length), {
      unit: "s",
      width: 7,
      hint: "Since the first event.",
    }),
    numberColumn("samples", "Samples", of("samples"), count, { bar: largest(of("samples")) }),
    numberColumn("samples_rate", "Samples/s", rate("samples"), short, { width: 7 }),
    numberColumn("branches", "Branches", of("branches"), count, { hint: "Entries of branch stacks." }),
    numberColumn("branches_rate", "Branches/s", rate("branches"), short, { width: 7, unknown: missing }),
    numberColumn("mispredicted", "Mispredicted", rate("mispredicted"), percent, {
      unit: "%",
      width: 8,
      hint: "Of the branches whose prediction is known.",
      unknown: missing,
    }),
    numberColumn("lost", "Lost", answer.length("lost") ? of("lost") : new Float64Array(parts).fill(NaN), count, {
      hint: "Samples and other records.",
      unknown: missing,
    }),
  ];
}
