// Capture: what was recorded, on what, and what is missing or wrong.

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { isLive, useAnswer, useOverview } from "../asking.ts";
import { numberColumn, textColumn, type Column } from "../columns.tsx";
import { count, duration, largest, UNKNOWN } from "../format.ts";
import { Answered } from "../parts.tsx";
import { change, filters, state } from "../state.ts";
import { Table } from "../table.tsx";
import type { Answer, Json } from "../wire.ts";

export function Capture(): ComponentChild {
  const { answer, pending } = useOverview();
  const overview = pending ? null : answer; // not about a part of the samples
  const which = isLive() ? {} : filters.value;
  return (
    <div class="scrolled" tabIndex={0} role="region" aria-label="Capture">
      {Object.keys(filters.value).length ? (
        <p class="hint">This screen is about all of the capture: filters change nothing here.</p>
      ) : null}
      <h2>Check</h2>
      <Answered asked={useAnswer("findings", which)}>{(findings) => <Findings answer={findings} />}</Answered>
      <Answered asked={useAnswer("capture", which)}>
        {(capture) => <Whole facts={capture.header} overview={overview} />}
      </Answered>
      {isLive() ? <Doctor /> : null}
      <Licences />
    </div>
  );
}

function Findings({ answer }: { answer: Answer }): ComponentChild {
  const [severity = [], name = [], means = [], seen = [], remedy = []] = [
    "severity",
    "name",
    "means",
    "seen",
    "remedy",
  ].map((column) => answer.texts(column));
  if (!severity.length) return <p>Nothing is missing or wrong.</p>;
  return (
    <ul class="findings">
      {severity.map((how, i) => (
        <li key={i} class={how}>
          <strong>
            {how}: {name[i]}
          </strong>{" "}
          {means[i]}
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

function Whole({ facts, overview }: { facts: Facts; overview: Answer | null }): ComponentChild {
  const {
    machine,
    clock,
    time,
    events,
    modules,
    lost,
    undecoded_bytes,
    damage,
    header,
    records,
    streams,
    captures,
    ...rest
  } = facts;
  const { throttles, ...losses } = one(lost);
  const throttled = throttles ? `${count(Number(throttles))} ${throttles === 1 ? "time" : "times"}` : null; // the kernel paused sampling: no record was lost
  const recording: Facts = { ...rest, ...one(header), clock: one(clock)["name"] ?? null, ...one(time), throttled };
  return (
    <>
      <div class="columns">
        <Section title="Recording" facts={recording} />
        <Section title="Machine" facts={one(machine)} />
        <Section
          title="Losses"
          facts={{ ...losses, ...prefixed("not decoded", one(undecoded_bytes), "bytes") }}
          none="None are recorded."
        />
      </div>
      {many(captures).length > 1 ? <Rows title="Captures" rows={many(captures)} /> : null}
      <Rows title="Damage" rows={many(damage)} />
      <Rows
        title="Events"
        rows={many(events).map(
          ({ programming: _, branch_select_kind: _kind, branch_select: _select, ...event }) => event,
        )}
      />
      {overview ? <Processes overview={overview} /> : null}
      <Modules modules={many(modules)} overview={overview} windows={/^windows/i.test(String(one(machine)["os"]))} />
      <Records records={one(records)} />
      <Rows title="Streams" rows={many(streams)} />
    </>
  );
}

const one = (value: Json | undefined): Facts => (value ?? {}) as Facts;
const many = (value: Json | undefined): Facts[] => (value ?? []) as Facts[];

function prefixed(prefix: string, facts: Facts, unit: string): Facts {
  return Object.fromEntries(Object.entries(facts).map(([name, value]) => [`${prefix} ${name}, ${unit}`, value]));
}

function Section({ title, facts, none }: { title: string; facts: Facts; none?: string }): ComponentChild {
  const rows = Object.entries(facts).flatMap(([name, value]) => flat(name, value));
  return (
    <section>
      <h2>{title}</h2>
      {rows.length ? <dl class="facts">{rows}</dl> : <p class="hint">{none}</p>}
    </section>
  );
}

/** Facts whose unit is a part of their name, as people read them. */
const READ: Record<string, { name: string; text(value: number): string }> = {
  memory_bytes: { name: "memory", text: (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB` },
  page_size: { name: "page size", text: (bytes) => `${count(bytes)} bytes` },
  span_ns: { name: "time span", text: duration },
  first_sample_ns: { name: "first sample", text: (ns) => `${duration(ns)} after the first event` },
  first_sample_unix_ns: { name: "first sample at", text: (ns) => new Date(ns / 1e6).toISOString() },
};
/** Of these 0 is "not known". */
const SIZES = [
  "period",
  "frequency",
  "memory_bytes",
  "page_size",
  "cpus_online",
  "cpus_available",
  "numa_nodes",
  "bits",
];

function isKnown(name: string, value: Json | undefined): value is NonNullable<Json> {
  return value !== null && value !== undefined && value !== "" && !(value === 0 && SIZES.includes(name));
}

/** A fact as a row; nothing of what is not known. */
function flat(name: string, value: Json): ComponentChild[] {
  if (!isKnown(name, value)) return [];
  if (Array.isArray(value) && !value.length) return [];
  if (typeof value === "object" && !Array.isArray(value))
    return Object.entries(value).flatMap(([key, inner]) => flat(`${name} ${key}`, inner));
  const read = typeof value === "number" ? READ[name] : undefined;
  return [
    <dt key={name}>{read?.name ?? name.replaceAll("_", " ")}</dt>,
    <dd key={`${name}=`}>{read ? read.text(value as number) : textOf(value)}</dd>,
  ];
}

function textOf(value: Json): string {
  if (typeof value === "number") return count(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map(textOf).join(", ");
  if (value !== null && typeof value === "object")
    return Object.entries(value)
      .map(([key, inner]) => `${key} ${textOf(inner)}`)
      .join(", ");
  return value === null ? "" : String(value);
}

/** A small table of all rows. */
function Rows({ title, rows }: { title: string; rows: Facts[] }): ComponentChild {
  const shown = (row: Facts, name: string): string => (isKnown(name, row[name]) ? textOf(row[name]) : "");
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row).filter((name) => shown(row, name))))];
  if (!rows.length) return null;
  return (
    <section>
      <h2>{title}</h2>
      <table aria-label={title}>
        <thead>
          <tr>
            {columns.map((name) => (
              <th key={name} scope="col">
                {name.replaceAll("_", " ")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {columns.map((name) => (
                <td key={name}>{shown(row, name) || UNKNOWN}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Processes({ overview }: { overview: Answer }): ComponentChild {
  const columns = useMemo(
    () => [
      numberColumn("pid", "Process id", overview.numbers("processes.pid"), String, { width: 7 }),
      textColumn("name", "Name", overview.texts("processes.name"), { grow: 1, unknown: "No record names it." }),
      numberColumn("samples", "Samples", overview.numbers("processes.samples"), count, {
        width: 8,
        bar: largest(overview.numbers("processes.samples")),
      }),
    ],
    [overview],
  );
  return <Listed title="Processes" prefix="processes-" columns={columns} rows={overview.length("processes.pid")} />;
}

function Records({ records }: { records: Facts }): ComponentChild {
  const columns = useMemo(() => {
    const counts = Float64Array.from(Object.values(records), Number);
    return [
      textColumn("name", "Record", Object.keys(records), { grow: 1 }),
      numberColumn("samples", "Count", counts, count, { width: 8, bar: largest(counts) }),
    ];
  }, [records]);
  return columns[0]?.values.length ? (
    <Listed title="Records" prefix="records-" columns={columns} rows={columns[0].values.length} />
  ) : null;
}

interface ModulesProps {
  readonly modules: Facts[];
  readonly overview: Answer | null;
  readonly windows: boolean;
}

function Modules({ modules, overview, windows }: ModulesProps): ComponentChild {
  const columns = useMemo(() => {
    const samples = samplesOf(modules.length, overview);
    const text = (name: string): string[] => modules.map((module) => textOf(module[name] ?? null));
    const identity = modules.map(
      ({ build_id: build, pdb }) =>
        String(build ?? "") || [one(pdb)["name"], one(pdb)["guid"], one(pdb)["age"]].join(" ").trim(),
    );
    return [
      textColumn("name", "Module", text("name"), { grow: 2 }),
      textColumn("kind", "Kind", text("kind"), { width: 7 }),
      numberColumn("samples", "Samples", samples, count, {
        width: 8,
        bar: largest(samples),
        unknown: "Only the modules with most samples are counted.",
      }),
      textColumn("missing", "Missing", text("missing"), {
        grow: 1,
        unknown: "Its binary was found, or it has none.",
        hint: "Why its binary is not used.",
      }),
      textColumn("binary", "Binary", text("binary"), { grow: 1, unknown: "None was found." }),
      textColumn("identity", "Identity", identity, {
        width: 8,
        grow: 1,
        unknown: "The capture has no build id and no PDB of it.",
      }),
    ];
  }, [modules, overview]);
  const missing = modules.filter((module) => module["missing"]).length;
  return (
    <Listed title="Modules" prefix="modules-" columns={columns} rows={modules.length}>
      {missing ? (
        <p class="hint">
          {count(missing)} {missing === 1 ? "binary is" : "binaries are"} missing, so code there has no names or counts.
          Give the folder that has them with --symfs DIR,
          {windows
            ? " or a symbol store that has them and their PDBs with --symbol-store DIR."
            : " debug files with --debug-dir DIR, or have them fetched by build id with --debuginfod."}
        </p>
      ) : null}
    </Listed>
  );
}

/** Samples of each module: the overview lists those with most of them. */
function samplesOf(modules: number, overview: Answer | null): Float64Array {
  const all = !!overview && overview.length("modules.row") < LISTED;
  const out = new Float64Array(modules).fill(all ? 0 : NaN);
  overview?.numbers("modules.row").forEach((row, i) => (out[row] = overview.numbers("modules.samples")[i] ?? NaN));
  return out;
}

const LISTED = 1000; // as in view/questions/capture.py

interface ListedProps {
  readonly title: string;
  readonly prefix: string;
  readonly columns: readonly Column[];
  readonly rows: number;
  readonly children?: ComponentChild;
}

/** A table of any length, in a box as high as its rows up to a part of the page. */
function Listed({ title, prefix, columns, rows, children }: ListedProps): ComponentChild {
  return (
    <section>
      <h2>{title}</h2>
      {children}
      <div class="boxed" style={{ height: `${Math.min(22, 4.5 + 2 * rows)}rem` }}>
        <Table label={title} prefix={prefix} columns={columns} rows={rows} sort="-samples" />
      </div>
    </section>
  );
}

/** Those of what the page is made of, which a single file has in it. */
function Licences(): ComponentChild {
  const embedded = document.getElementById("licences.txt")?.textContent;
  return (
    <section>
      <h2>This viewer</h2>
      {embedded ? (
        <details>
          <summary>Licences of the software in this file</summary>
          <pre>{embedded}</pre>
        </details>
      ) : (
        <a class="button" href="licences.txt" target="_blank">
          Licences of the software in this page
        </a>
      )}
    </section>
  );
}

/** What the machine that shows this can record: asked for on request, since it tries. */
function Doctor(): ComponentChild {
  const wanted = state.value.parameters["doctor"] === "yes";
  const asked = useAnswer(wanted ? "doctor" : null, {});
  return (
    <section>
      <h2>This machine</h2>
      {wanted ? (
        <Answered asked={asked}>{(answer) => <Rows title="What it can record" rows={rowsOf(answer)} />}</Answered>
      ) : (
        <button type="button" onClick={() => change({ doctor: "yes" })}>
          What can it record?
        </button>
      )}
    </section>
  );
}

function rowsOf(answer: Answer): Facts[] {
  const names = ["capability", "state", "why", "command", "scope"];
  return Array.from({ length: answer.length("capability") }, (_, row) =>
    Object.fromEntries(names.map((name) => [name, answer.texts(name)[row] ?? ""])),
  );
}
