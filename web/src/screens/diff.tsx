// Diff: what has a larger or smaller share than in the capture before, and whether that is more than chance.

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { useAnswer } from "../asking.ts";
import { numberColumn, textColumn, type Column } from "../columns.tsx";
import { layout, type Tree } from "../flame.ts";
import { count, hex, largest, percent } from "../format.ts";
import { Answered, Notes } from "../parts.tsx";
import { change, filters, go, linkTo, state } from "../state.ts";
import { Table } from "../table.tsx";
import type { Answer, Numbers } from "../wire.ts";
import { Choice, Frames, Picture, type Shown } from "./flame.tsx";

const VIEWS = [
  { by: "", title: "Functions", hint: "Shares of the samples." },
  { by: "edge", title: "Edges", hint: "Shares of the branch entries, from one place to another." },
  { by: "block", title: "Blocks", hint: "Shares of the ranges that ran a block." },
  { by: "flame", title: "Flame", hint: "Call stacks, coloured by how their shares changed." },
] as const;

export function Diff(): ComponentChild {
  const { by = "" } = state.value.parameters;
  const stacks = by === "flame";
  const asked = useAnswer(stacks ? "diff_flame" : "diff", { ...filters.value, by: stacks ? "" : by });
  return (
    <>
      <div class="over-table">
        <nav aria-label="What is compared" class="views">
          {VIEWS.map((one) => (
            <button
              key={one.by}
              type="button"
              title={one.hint}
              aria-pressed={one.by === by}
              onClick={() => change({ by: one.by, sort: "", find: "", zoom: "" })}
            >
              {one.title}
            </button>
          ))}
        </nav>
      </div>
      <Answered asked={asked}>
        {(answer) =>
          answer.has("before_own") ? (
            <Stacks answer={answer} />
          ) : answer.has("p") ? (
            <Differences answer={answer} />
          ) : null
        }
      </Answered>
    </>
  );
}

function Differences({ answer }: { answer: Answer }): ComponentChild {
  const columns = useMemo(() => columnsOf(answer), [answer]);
  const { header } = answer;
  const rows = answer.length("name");
  const [tested, found, all] = [Number(header["tested"]), Number(header["found"]), Number(header["rows"])];
  const rare = all - tested;
  return (
    <>
      <p class="first">
        {count(found)} of {count(tested)} differ significantly (false discovery rate {String(header["rate"])})
        {rare ? `; ${count(rare)} ${rare === 1 ? "has" : "have"} too few samples to tell` : ""}.
        {rows < all ? ` The surest ${count(rows)} are here.` : ""}
      </p>
      <Table
        label="Differences"
        columns={columns}
        rows={rows}
        sort=""
        onOpen={(row) => {
          const place = placeOf(answer, row);
          if (place) go("function", place);
        }}
        note={<Notes notes={answer.list("notes")} />}
      />
    </>
  );
}

/** The parameters of the function screen; null where the row is no function of the capture after. */
function placeOf(answer: Answer, row: number, table = ""): Record<string, string> | null {
  const start = answer.bigs(`${table}start`)[row];
  const module = answer.numbers(`${table}module_row`)[row] ?? -1;
  return start && module >= 0 ? { at_module: String(module), start: hex(start), beside: "graph" } : null;
}

/** Points of percent, with their sign. */
function points(value: number): string {
  return value > 0 ? `+${percent(value)}` : percent(value);
}

function chance(value: number): string {
  return value < 0.001 ? value.toExponential(1) : value.toPrecision(2);
}

function columnsOf(answer: Answer): Column[] {
  const edges = answer.has("to_name");
  const events = answer.texts("event");
  const significant = answer.numbers("significant");
  const moved = answer.numbers("change");
  const few = (row: number): boolean => !significant[row];
  const amount = numberColumn("change", "Change", moved, points, {
    unit: "points",
    width: 7,
    few,
    hint: "The second share less the first. Grey: it could be chance.",
  });
  const link = (row: number): string | null => {
    const place = placeOf(answer, row);
    return place && linkTo("function", place);
  };
  return [
    textColumn("name", edges ? "From" : "Function", answer.texts("name"), {
      width: 10,
      grow: 3,
      link,
      unknown: "No symbol is known there.",
    }),
    textColumn("module", "Module", answer.texts("module"), { width: 6, grow: 1, unknown: "Nothing was mapped there." }),
    ...(edges
      ? [
          textColumn("to_name", "To", answer.texts("to_name"), {
            width: 10,
            grow: 3,
            unknown: "No symbol is known there.",
          }),
          textColumn("to_module", "To module", answer.texts("to_module"), {
            width: 6,
            grow: 1,
            unknown: "Nothing was mapped there.",
          }),
        ]
      : []),
    ...(new Set(events).size > 1 ? [textColumn("event", "Event", events, { width: 6 })] : []),
    numberColumn("before", "Before", answer.numbers("before"), percent, { unit: "%", width: 5.5 }),
    numberColumn("share", "After", answer.numbers("share"), percent, { unit: "%", width: 5.5 }),
    { ...amount, cell: (row) => <span class={(moved[row] ?? 0) > 0 ? "grew" : "shrank"}>{amount.cell(row)}</span> },
    textColumn(
      "significant",
      "Significant",
      Array.from(significant, (yes) => (yes ? "yes" : "no")),
      { width: 6, hint: "With all rows of the event judged together." },
    ),
    numberColumn("noise", "Noise", answer.numbers("noise"), percent, {
      unit: "points",
      width: 6.5,
      hint: "Standard error of the change.",
    }),
    numberColumn("p", "p", answer.numbers("p"), chance, {
      width: 5,
      hint: "Probability of such a difference between recordings that do not differ.",
      unknown: "Too few samples have it.",
    }),
    numberColumn("before_samples", "Before", answer.numbers("before_samples"), count, { unit: "samples", width: 8 }),
    numberColumn("samples", "After", answer.numbers("samples"), count, { unit: "samples", width: 8 }),
  ];
}

// -- the differential flame graph

/** The colour of a share that changed: red grew, blue shrank, the more the larger the change is. */
function colourOf(moved: number, most: number): string {
  const part = most > 0 ? Math.min(1, Math.abs(moved) / most) : 0;
  return `rgb(${moved > 0 ? "222 62 52" : "44 116 222"} / ${(0.08 + 0.5 * Math.sqrt(part)).toFixed(3)})`;
}

function Stacks({ answer }: { answer: Answer }): ComponentChild {
  const { widths = "", table = "", find = "", zoom = "" } = state.value.parameters;
  const names = answer.texts("names.function");
  const modules = answer.texts("names.module");
  const [after, before] = [Number(answer.header["samples"]) || 1, Number(answer.header["before"]) || 1];
  const of = (name: string): Numbers => answer.numbers(name);
  const [tree, at] = useMemo(() => {
    const made: Tree = widths
      ? { parent: of("parent"), name: of("name"), samples: of("before"), own: of("before_own") }
      : { parent: of("parent"), name: of("name"), samples: of("samples"), own: of("own") };
    return [made, layout(made, names)] as const;
  }, [answer, widths]);
  const moved = useMemo(
    () => Float64Array.from(of("samples"), (value, node) => value / after - (of("before")[node] ?? 0) / before),
    [answer],
  );
  const fill = useMemo(() => {
    const most = largest(moved.map(Math.abs));
    return Array.from(moved, (value) => colourOf(value, most));
  }, [moved]);
  const found = useMemo(() => {
    const wanted = find.toLowerCase();
    return Uint8Array.from(names, (name) => (wanted && name.toLowerCase().includes(wanted) ? 1 : 0));
  }, [answer, find]);
  const zoomed = useMemo(() => (zoom ? at.hash.indexOf(parseInt(zoom, 16)) : -1), [at, zoom]);
  const share = (name: string, node: number, whole: number): number => (of(name)[node] ?? 0) / whole;
  const shown: Shown = {
    tree,
    at,
    names,
    modules,
    colours: names.map(() => "--flame-rest"),
    found,
    searched: find !== "",
    whole: widths ? before : after,
    zoomed,
    enough: Number(answer.header["enough"]),
    fill,
    said: (node) =>
      `before ${percent(share("before", node, before))} %, after ${percent(share("samples", node, after))} %: ${points(moved[node] ?? 0)} points`,
    more: (nodes) => [
      numberColumn(
        "before",
        "Before",
        Float64Array.from(nodes, (node) => share("before", node, before)),
        percent,
        { unit: "%", width: 6 },
      ),
      numberColumn(
        "after",
        "After",
        Float64Array.from(nodes, (node) => share("samples", node, after)),
        percent,
        { unit: "%", width: 6 },
      ),
      numberColumn(
        "change",
        "Change",
        Float64Array.from(nodes, (node) => moved[node] ?? 0),
        points,
        { unit: "points", width: 7 },
      ),
    ],
  };
  const zoomTo = (node: number): void => change({ zoom: node < 0 ? "" : (at.hash[node] ?? 0).toString(16) });
  const open = (node: number): void => {
    const place = placeOf(answer, tree.name[node] ?? 0, "names.");
    if (place) go("function", place);
  };
  const left = Number(answer.header["left_out"]);
  return (
    <>
      <p class="first">
        {count(before)} samples before, {count(after)} after. Red stacks have a larger share than before, blue ones a
        smaller share; widths are shares {widths ? "before" : "after"}. Whether a change is more than chance is in
        Functions.{left ? ` ${count(left)} narrow frames are left out.` : ""}
      </p>
      <div class="above">
        {table ? null : (
          <input
            type="search"
            class="find"
            aria-label="Search functions"
            placeholder="Search names  /"
            value={find}
            onInput={(event) => change({ find: event.currentTarget.value }, true)}
          />
        )}
        <Choice
          name="widths"
          chosen={widths}
          hint="As wide as they were before: what vanished can be seen."
          more={{ zoom: "" }}
        >
          Widths before
        </Choice>
        <Choice name="table" chosen={table} hint="The same frames as rows.">
          Table
        </Choice>
        {zoomed >= 0 ? (
          <button type="button" onClick={() => zoomTo(-1)}>
            Show all (Esc)
          </button>
        ) : null}
      </div>
      {table ? <Frames shown={shown} onZoom={zoomTo} /> : <Picture shown={shown} onZoom={zoomTo} onOpen={open} />}
    </>
  );
}
