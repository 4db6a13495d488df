// Hot: functions by samples, and what to look at first.

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { useAnswer, useOverview } from "../asking.ts";
import { declaredColumns, numberColumn, textColumn, type Column } from "../columns.tsx";
import { count, counted, decimal, largest, percent } from "../format.ts";
import { Answered, Counts, countsOf, Notes, shareTitle, shareWidth, Sparkline, type CountsOf } from "../parts.tsx";
import { counts, go, linkTo } from "../state.ts";
import { Table } from "../table.tsx";
import type { Answer } from "../wire.ts";

export function Hot(): ComponentChild {
  const asked = useAnswer("hot", counts.value);
  const overview = useOverview().answer;
  return (
    <Answered asked={asked}>
      {(answer) => <Functions answer={answer} events={overview?.texts("events.name") ?? []} />}
    </Answered>
  );
}

function Functions({ answer, events }: { answer: Answer; events: string[] }): ComponentChild {
  const columns = useMemo(() => columnsOf(answer, events), [answer, events.length]);
  return (
    <>
      <p class="first">
        {String(answer.header["first"])}
        {others(answer)}
      </p>
      <Counts answer={answer} />
      <Table
        label="Functions"
        columns={columns}
        rows={answer.length("function")}
        sort={countsOf(answer).replaced ? "-share" : "-samples"}
        onOpen={(row) => {
          const place = placeOf(answer, row);
          if (place) go("function", place);
        }}
        note={<Notes notes={answer.list("notes")} />}
      />
    </>
  );
}

/** What the rows that were not sent come to. */
function others(answer: Answer): string {
  const { rows = 0, samples = 0, share = 0 } = answer.header["other"] as Record<string, number>;
  return rows
    ? ` Other, not listed: ${counted(rows, "function")} with ${counted(samples, "sample")}, ${percent(share)} %.`
    : "";
}

/** The parameters of the function screen; null where the row is no function whose code is known. */
function placeOf(answer: Answer, row: number): Record<string, string> | null {
  const start = answer.bigs("start")[row];
  const module = answer.numbers("module_row")[row];
  return start && module !== undefined && module >= 0
    ? { at_module: String(module), start: `0x${start.toString(16)}` }
    : null;
}

/** What the answer declares and the columns below show, or rest on. */
const KNOWN = "function module samples noise bursts instructions branches mispredicted cycles".split(" ");
const NO_CODE = "No branch stacks, or their code is not available: see the notes.";

function columnsOf(answer: Answer, events: string[]): Column[] {
  const share = answer.numbers("share");
  const event = answer.numbers("event");
  const samples = answer.numbers("samples");
  const branches = answer.numbers("branches");
  const enough = Number(answer.header["enough"]);
  const instructions = answer.numbers("instructions");
  const { replaced } = countsOf(answer);
  const bursts = answer.numbers("bursts");
  const noise = answer.numbers("noise");
  /** Samples of one burst are not independent of each other. */
  const observed = (row: number): number => (Number.isNaN(bursts[row] ?? NaN) ? samples[row] : bursts[row]) ?? 0;
  const of = answer.header["share_of"] as CountsOf["basis"];
  const fewBranches = (row: number): boolean => (branches[row] ?? 0) < enough;
  const parts = Number(answer.header["parts"]);
  const overTime = answer.numbers("over_time");
  const noBranches = "This event has no branch stacks, or the processor does not report it.";
  const several = new Set(event).size > 1;
  const spark: Column = {
    key: "over_time",
    title: "Over time",
    hint: "Samples over the time of the capture, each row scaled to its own largest.",
    values: samples,
    width: 5.5,
    numeric: true,
    cell: (row) => <Sparkline values={overTime} at={row * parts} length={parts} label="samples over time" />,
  };
  return [
    textColumn("function", "Function", answer.texts("function"), {
      width: several ? 9 : 12,
      grow: 3,
      link: (row) => {
        const place = placeOf(answer, row);
        return place && linkTo("function", place);
      },
    }),
    textColumn("module", "Module", answer.texts("module"), {
      width: several ? 5.5 : 6.5,
      grow: 1,
      unknown: "Nothing was mapped there.",
    }),
    ...(several
      ? [
          textColumn(
            "event",
            "Event",
            Array.from(event, (row) => events[row] ?? ""),
            { width: 6.3, grow: 0.5 },
          ),
        ]
      : []),
    numberColumn("samples", "Samples", samples, count, {
      width: 6,
      hint: "Samples whose own address is in the function.",
    }),
    numberColumn("share", shareTitle(of), share, percent, {
      unit: "%",
      width: shareWidth(of),
      bar: largest(share),
      few: (row) => (replaced ? Math.min(instructions[row] ?? 0, observed(row)) : observed(row)) < enough,
      hint: `Of all ${replaced ? "instructions" : "samples"} of the event. The longest bar is the largest share.`,
      unknown: NO_CODE,
    }),
    ...(!replaced
      ? [
          numberColumn("noise", "Noise", noise, percent, {
            unit: "%",
            width: 4.5,
            few: (row) => observed(row) < enough,
            hint: "Standard error of the share, in points: in two of three recordings it is at most that far off.",
          }),
        ]
      : []),
    numberColumn("instructions", replaced ? "Executed" : "Instructions", instructions, count, {
      width: 7,
      hint: replaced
        ? "Instructions executed, by the estimate."
        : "Instructions in the ranges of branch stacks: as often as they were observed.",
      unknown: NO_CODE,
    }),
    numberColumn("mispredicted", "Mispredicted", answer.numbers("mispredicted"), percent, {
      unit: "%",
      width: 7.8,
      few: fewBranches,
      hint: "Of the taken branches that begin in the function.",
      unknown: noBranches,
    }),
    numberColumn("cycles", "Cycles/branch", answer.numbers("cycles"), decimal, {
      width: 7.3,
      few: fewBranches,
      hint: "Cycles from one taken branch to the next, on average.",
      unknown: noBranches,
    }),
    ...declaredColumns(answer, "columns", KNOWN),
    ...(overTime.length ? [spark] : []),
  ];
}
