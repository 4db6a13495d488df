// Branches: which branch instructions are taken, how surely, how quickly, and where each of them goes.

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { useAnswer } from "../asking.ts";
import { declaredColumns, numberColumn, textColumn, type Column } from "../columns.tsx";
import { count, counted, decimal, hex, largest, percent } from "../format.ts";
import { Answered, Counts, countsOf, Notes, shareTitle, shareWidth } from "../parts.tsx";
import { change, counts, go, linkTo, state } from "../state.ts";
import { Table } from "../table.tsx";
import type { Answer, Numbers } from "../wire.ts";

const VIEWS = [
  { name: "sites", title: "Sites", hint: "A row for each branch instruction." },
  { name: "edges", title: "Edges", hint: "A row for each branch: from where to where." },
];

export function Branches(): ComponentChild {
  return <Answered asked={useAnswer("branches", counts.value)}>{(answer) => <Listed answer={answer} />}</Answered>;
}

function Listed({ answer }: { answer: Answer }): ComponentChild {
  const { view = "sites", site = "" } = state.value.parameters;
  const edges = view === "edges";
  const columns = useMemo(() => (edges ? edgeColumns(answer) : siteColumns(answer)), [answer, edges]);
  const chosen = useMemo(() => siteRow(answer, site), [answer, site]);
  return (
    <>
      <div class="over-table">
        <nav aria-label="Rows" class="views">
          {VIEWS.map(({ name, title, hint }) => (
            <button
              key={name}
              type="button"
              title={hint}
              aria-pressed={name === (edges ? "edges" : "sites")}
              onClick={() => change({ view: name === "sites" ? "" : name, sort: "" })}
            >
              {title}
            </button>
          ))}
        </nav>
        <p class="summary">{summaryOf(answer)}</p>
      </div>
      <Counts answer={answer} />
      <div class={chosen < 0 ? "stacked" : "stacked halves"}>
        <Table
          key={edges ? "edges" : "sites"}
          label={edges ? "Branches" : "Sites"}
          columns={columns}
          rows={answer.length(edges ? "count" : "sites.count")}
          sort={edges ? "-count" : largest(answer.numbers("sites.wrong")) ? "-wrong" : "-count"}
          onOpen={(row) => (edges ? open(answer, "from", row) : change({ site: placeOf(answer, "sites.", row) }))}
          note={<Notes notes={answer.list("notes")} />}
        />
        {chosen < 0 ? null : <Targets answer={answer} site={chosen} />}
      </div>
    </>
  );
}

/** Where one branch instruction goes. */
function Targets({ answer, site }: { answer: Answer; site: number }): ComponentChild {
  const rows = useMemo(() => targetRows(answer, site), [answer, site]);
  const columns = useMemo(() => targetColumns(answer, site, rows), [answer, site, rows]);
  const targets = answer.numbers("sites.targets")[site] ?? 0;
  const all = answer.numbers("sites.count")[site] ?? 0;
  const listed = rows.reduce((sum, row) => sum + (answer.numbers("count")[row] ?? 0), 0);
  const missing = targets - rows.length;
  const name = answer.texts("sites.from_function")[site] || answer.texts("sites.from")[site];
  const code = placeIn(answer, "sites.from", site);
  return (
    <section class="targets" aria-label={`Targets of ${name}`}>
      <div class="over-table">
        <h2 title={name}>{name}</h2>
        <p class="summary">
          went to {count(targets)} {targets === 1 ? "place" : "places"}, {count(all)} times.
          {missing
            ? ` Other, not listed: ${count(missing)} with ${count(all - listed)}, ${percent((all - listed) / all)} %.`
            : ""}
        </p>
        {code ? (
          <a class="button" href={linkTo("function", code)}>
            Show code
          </a>
        ) : null}
        <button type="button" onClick={() => change({ site: "" })}>
          Close
        </button>
      </div>
      <Table
        label="Targets"
        prefix="targets-"
        columns={columns}
        rows={rows.length}
        sort="-count"
        onOpen={(row) => open(answer, "to", rows[row] ?? -1)}
      />
    </section>
  );
}

/** `row:address` of a branch instruction, as it is in the address of the page. */
function placeOf(answer: Answer, table: string, row: number): string {
  return `${answer.numbers(`${table}from_module`)[row]}:${hex(answer.bigs(`${table}from_address`)[row] ?? 0n)}`;
}

function siteRow(answer: Answer, place: string): number {
  if (!place) return -1;
  return (
    Array.from({ length: answer.length("sites.count") }, (_, row) => row).find(
      (row) => placeOf(answer, "sites.", row) === place,
    ) ?? -1
  );
}

/** The rows of branches that begin at a site. */
function targetRows(answer: Answer, site: number): number[] {
  const module = answer.numbers("from_module");
  const address = answer.bigs("from_address");
  const wanted = answer.bigs("sites.from_address")[site];
  const inside = answer.numbers("sites.from_module")[site];
  return Array.from({ length: answer.length("count") }, (_, row) => row).filter(
    (row) => address[row] === wanted && module[row] === inside,
  );
}

/** The parameters of the function screen for one end of a branch; null where no function is known. */
function placeIn(answer: Answer, end: string, row: number): Record<string, string> | null {
  const start = answer.bigs(`${end}_start`)[row];
  const module = answer.numbers(`${end}_module`)[row] ?? -1;
  const at = answer.bigs(`${end}_address`)[row];
  return start && at && module >= 0 ? { at_module: String(module), start: hex(start), at: hex(at) } : null;
}

function linkOf(answer: Answer, end: string): (row: number) => string | null {
  return (row) => {
    const place = placeIn(answer, end, row);
    return place && linkTo("function", place);
  };
}

function open(answer: Answer, end: string, row: number): void {
  const place = placeIn(answer, end, row);
  if (place) go("function", place);
}

function summaryOf(answer: Answer): string {
  const [sites, branches, all, shown] = ["sites", "branches", "count", "shown"].map((name) =>
    Number(answer.header[name] ?? 0),
  ) as [number, number, number, number];
  const rows = answer.length("count");
  const said = `${sites === 1 ? "1 branch instruction was" : `${count(sites)} branch instructions were`} taken ${counted(all, "time")}, along ${counted(branches, "edge")}.`;
  return rows === branches
    ? said
    : `${said} The hottest ${count(rows)} are here: ${percent(shown / (all || 1))} % of that.`;
}

const UNREPORTED = "The processor did not report it.";
const NO_NAME = "No symbol is known there.";

/** The kind of each branch, where the source says it of any. */
function typeColumn(types: readonly string[]): Column[] {
  return types.some(Boolean)
    ? [textColumn("type", "Type", types, { width: 5, unknown: "The record does not say." })]
    : [];
}

/** How often branches are taken. */
function countColumns(answer: Answer, of: (name: string) => Numbers): Column[] {
  const { basis, replaced } = countsOf(answer);
  const hint = replaced
    ? "How often it was taken, by the estimate."
    : "Entries of branch stacks: as often as it was observed.";
  return [
    numberColumn("count", replaced ? "Executions" : "Taken", of("count"), count, { width: 5.7, hint }),
    numberColumn("share", shareTitle(basis), of("share"), percent, {
      unit: "%",
      width: shareWidth(basis),
      bar: largest(of("share")),
      few: fewOf(answer, of),
      hint: "Of all branches that were taken. The longest bar is the largest share.",
    }),
    ...(of("noise").some((value: number) => !Number.isNaN(value))
      ? [
          numberColumn("noise", "Noise", of("noise"), percent, {
            unit: "%",
            width: 4.5,
            few: fewOf(answer, of),
            hint: "Standard error of the share, in points: in two of three recordings it is at most that far off.",
          }),
        ]
      : []),
  ];
}

/** How surely and how quickly branches are taken. */
function rateColumns(numbers: (name: string) => Numbers, few: (row: number) => boolean): Column[] {
  return [
    numberColumn("mispredicted", "Mispredicted", numbers("mispredicted"), percent, {
      unit: "%",
      width: 7.8,
      bar: 1,
      few,
      hint: "Of the times that it was taken.",
      unknown: UNREPORTED,
    }),
    numberColumn("cycles", "Cycles", numbers("cycles"), decimal, {
      width: 4.5,
      few,
      hint: "Since the branch before it, on average.",
      unknown: UNREPORTED,
    }),
  ];
}

/** Where shares and rates rest on too few bursts or branches. */
function fewOf(answer: Answer, of: (name: string) => Numbers): (row: number) => boolean {
  const enough = Number(answer.header["enough"]);
  const observed = of("observed");
  return (row) => (observed[row] ?? 0) < enough;
}

/** What the answer declares and the columns of this screen show. */
const KNOWN =
  "from to from_function to_function count share noise mispredicted cycles type wrong targets to_share".split(" ");

function siteColumns(answer: Answer): Column[] {
  const of = (name: string): Numbers => answer.numbers(`sites.${name}`);
  const targets: Column = {
    ...numberColumn("targets", "Targets", of("targets"), count, { width: 4.5 }),
    hint: "Places that it went to. Choose it to see them.",
  };
  const number = targets.cell;
  const columns: Column[] = [
    textColumn("from_function", "Branch", answer.texts("sites.from_function"), {
      grow: 1,
      width: 9,
      hint: "Function and offset of the branch instruction.",
      unknown: NO_NAME,
      link: linkOf(answer, "sites.from"),
    }),
    ...typeColumn(answer.texts("sites.type")),
    ...countColumns(answer, of),
    numberColumn("wrong", "Mispredicts", of("wrong"), count, {
      width: 6.8,
      hint: "Entries that were mispredicted.",
      unknown: UNREPORTED,
    }),
    ...rateColumns(of, fewOf(answer, of)),
    {
      ...targets,
      cell: (row) => (
        <button
          type="button"
          class="cell-button"
          tabIndex={-1}
          title="Show the targets"
          onClick={() => change({ site: placeOf(answer, "sites.", row) })}
        >
          {number(row)}
        </button>
      ),
    },
    textColumn("to_function", "Most often to", answer.texts("sites.to_function"), {
      grow: 1,
      width: 8,
      hint: "Its most frequent target.",
      unknown: NO_NAME,
    }),
    textColumn("from", "Address", answer.texts("sites.from"), { width: 9.2, hint: "As linked." }),
    ...declaredColumns(answer, "site_columns", KNOWN, "sites."),
  ];
  return withNames(columns);
}

/** Where no function has a name, the addresses take the place of names. */
function withNames(columns: readonly Column[]): Column[] {
  const isName = ({ key }: Column): boolean => key.endsWith("_function");
  if (columns.some((column) => isName(column) && (column.values as readonly string[]).some(Boolean)))
    return [...columns];
  const isPlace = ({ key }: Column): boolean => key === "from" || key === "to";
  const places = columns.filter(isPlace).map((column) => ({ ...column, grow: 1 }));
  return [...places, ...columns.filter((column) => !isName(column) && !isPlace(column))];
}

function edgeColumns(answer: Answer): Column[] {
  const of = (name: string): Numbers => answer.numbers(name);
  return withNames([
    textColumn("from_function", "From", answer.texts("from_function"), {
      grow: 1,
      width: 10,
      hint: "Function and offset of the branch.",
      unknown: NO_NAME,
      link: linkOf(answer, "from"),
    }),
    textColumn("to_function", "To", answer.texts("to_function"), {
      grow: 1,
      width: 10,
      hint: "Function and offset of its target.",
      unknown: NO_NAME,
      link: linkOf(answer, "to"),
    }),
    ...typeColumn(answer.texts("type")),
    ...countColumns(answer, of),
    ...rateColumns(of, fewOf(answer, of)),
    textColumn("from", "From address", answer.texts("from"), { width: 9.2, hint: "As linked." }),
    textColumn("to", "To address", answer.texts("to"), { width: 9.2, hint: "As linked." }),
    ...declaredColumns(answer, "columns", KNOWN),
  ]);
}

function targetColumns(answer: Answer, site: number, rows: readonly number[]): Column[] {
  const all = answer.numbers("sites.count")[site] ?? 0;
  const numbers = (name: string): Float64Array => Float64Array.from(rows, (row) => answer.numbers(name)[row] ?? NaN);
  const texts = (name: string): string[] => rows.map((row) => answer.texts(name)[row] ?? "");
  const taken = numbers("count");
  const few = fewOf(answer, numbers);
  return [
    textColumn("to_function", "To", texts("to_function"), {
      grow: 1,
      unknown: NO_NAME,
      link: (row) => linkOf(answer, "to")(rows[row] ?? -1),
    }),
    numberColumn("count", countsOf(answer).replaced ? "Executions" : "Taken", taken, count),
    numberColumn(
      "share",
      "Of the site",
      taken.map((value) => value / all),
      percent,
      { few, unit: "%", width: 10, bar: 1, hint: "Of the times that this branch was taken." },
    ),
    ...rateColumns(numbers, few),
    textColumn("to", "Address", texts("to"), { width: 9, hint: "As linked." }),
  ];
}
