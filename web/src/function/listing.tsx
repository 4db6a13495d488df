// The assembly: how often each block ran, and where its branches went, with its jumps as arcs beside it.

import type { ComponentChild } from "preact";
import { useMemo, useState } from "preact/hooks";
import { isKnown, numberColumn, textColumn, type Column } from "../columns.tsx";
import { count, counted, decimal, hex, largest, percent } from "../format.ts";
import { Grid } from "../grid.tsx";
import { countsOf, Notes } from "../parts.tsx";
import { change } from "../state.ts";
import type { Numbers } from "../wire.ts";
import { choose, chosenRow, point, pointed } from "./choice.ts";
import type { Code, PanelProps } from "./code.ts";
import { Arcs, Gutter, GUTTER } from "./gutter.tsx";

const ROW = 22; // px, as in app.css
const END = 8; // px after the last column, as in app.css

export function Listing({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const arcs = useMemo(() => new Arcs(answer), [answer]);
  const columns = useMemo(() => columnsOf(code, arcs), [code, arcs]);
  const order = useMemo(() => Uint32Array.from({ length: code.rows }, (_, row) => row), [code]);
  const [arc, setArc] = useState(-1);
  const under = pointed.value;
  const classOf = (row: number): string => {
    const block = code.block[row] ?? 0;
    return [
      code.first[block] === row ? "leader" : "",
      under.includes(row) ? "pointed" : "",
      code.counted[block] ? "" : "cold",
    ]
      .filter(Boolean)
      .join(" ");
  };
  return (
    <section class="table listing" aria-label="Assembly">
      <div class="above">
        <span class="counted" role="status">
          {arc < 0
            ? `${counted(code.rows, "instruction")} in ${counted(code.first.length, "block")}`
            : arcs.said(arc, code)}
        </span>
        <Notes notes={answer.list("notes")} />
      </div>
      <Grid
        label="Instructions"
        columns={columns}
        order={order}
        rowHeight={ROW}
        padding={GUTTER + END}
        active={chosenRow(code)}
        start={code.hottest}
        onChoose={(row) => choose(code, row)}
        onOpen={(row) => jump(code, arcs, row)}
        onPoint={(row) => point(row < 0 ? [] : [row])}
        classOf={classOf}
      >
        {(view) => <Gutter code={code} arcs={arcs} view={view} row={ROW} arc={arc} onArc={setArc} />}
      </Grid>
    </section>
  );
}

/** Where the hottest jump of a row leads: an entry in the history, so that the back button returns. */
function jump(code: Code, arcs: Arcs, row: number): void {
  const target = code.address[arcs.targetOf(row)];
  if (target !== undefined) change({ at: hex(target) });
}

function columnsOf(code: Code, arcs: Arcs): Column[] {
  const { answer, block, first, last, address, missing } = code;
  const kind = answer.texts("instructions.kind");
  const { replaced } = countsOf(answer);
  const rows = code.rows;

  /** A value of the block in each of its rows that `where` names, else NaN. */
  const ofBlock = (name: string, where: (row: number, of: number) => boolean): Numbers => {
    const values = answer.numbers(`blocks.${name}`);
    return Float64Array.from({ length: rows }, (_, row) =>
      where(row, block[row] ?? 0) ? (values[block[row] ?? 0] ?? NaN) : NaN,
    );
  };
  const atFirst = (row: number, of: number): boolean => first[of] === row;
  const atLast = (row: number, of: number): boolean => last[of] === row && kind[row] !== "";
  const ofBranch = (row: number, of: number): boolean => atLast(row, of) && kind[row] === "cond";
  /** Empty in the rows that the value is not of, and "not known" where it is. */
  const blank = (column: Column, where: (row: number, of: number) => boolean): Column => ({
    ...column,
    cell: (row) => (where(row, block[row] ?? 0) ? column.cell(row) : null),
  });
  const ran = (where: (row: number, of: number) => boolean) => (row: number, of: number) =>
    where(row, of) && (missing !== "" || Boolean(code.counted[of]));
  const counts = ofBlock("count", atFirst);
  const samples = answer.numbers("instructions.samples");
  const digits = hex(address[rows - 1] ?? 0n).length;
  const few = (row: number): boolean => (code.observed[block[row] ?? 0] ?? 0) < code.enough;
  const halving = String(answer.header["halving"] ?? "");
  const noCycles = missing || "The source records no cycles here.";
  const texts = textColumn("text", "Instruction", code.text, { width: 9, grow: 1 });
  const instruction: Column = {
    ...texts,
    cell: (row) => {
      const to = arcs.targetOf(row);
      const text = code.text[row] ?? "";
      const space = text.indexOf(" ");
      const [name, rest] = space < 0 ? [text, ""] : [text.slice(0, space), text.slice(space)];
      return (
        <span title={to < 0 ? text : `${text}\nEnter or a double click leads to ${hex(address[to] ?? 0n)}`}>
          <span class="mnemonic">{name}</span>
          {rest}
        </span>
      );
    },
  };
  const columns: Column[] = [
    {
      key: "address",
      title: "Address",
      hint: "As linked.",
      values: address,
      width: Math.max(3.9, 0.46 * digits + 0.5),
      numeric: true,
      cell: (row) => hex(address[row] ?? 0n),
    },
    instruction,
    numberColumn("samples", "Samples", samples, (value) => (value ? count(value) : ""), {
      width: 3.9,
      bar: largest(samples),
      hint: "Samples with this address.",
    }),
    blank(
      numberColumn("count", replaced ? "Executions" : "Seen", counts, count, {
        width: replaced ? 4.8 : 4.3,
        bar: largest(counts),
        hint: replaced
          ? "How often its block ran, by the estimate."
          : "How often its block was seen to run in branch records.",
        unknown: missing,
      }),
      atFirst,
    ),
    blank(
      numberColumn("noise", "Noise", ofBlock("noise", atFirst), percent, {
        width: 3.8,
        unit: "%",
        few,
        hint: `The standard error of Seen, in percent of it${halving ? `: ${halving}` : ""}.`,
        unknown: "One burst alone saw it, or counts are estimated.",
      }),
      ran(atFirst),
    ),
    blank(
      numberColumn("taken", "Taken", ofBlock("taken", ofBranch), percent, {
        width: 3.8,
        unit: "%",
        few,
        hint: "Of the times that the branch ran.",
        unknown: missing,
      }),
      ran(ofBranch),
    ),
    blank(
      numberColumn("taken_noise", "±", ofBlock("taken_noise", ofBranch), percent, {
        width: 3,
        few,
        hint: "The standard error of Taken, in percentage points.",
        unknown: "One burst alone saw the branch, or counts are estimated.",
      }),
      ran(ofBranch),
    ),
    blank(
      numberColumn("mispredicted", "Missed", ofBlock("mispredicted", atLast), percent, {
        width: 4.4,
        unit: "%",
        few,
        hint: "Mispredicted, of the times that the branch was taken.",
        unknown: missing || "It was not taken, or the source does not record mispredictions.",
      }),
      ran(atLast),
    ),
    blank(
      numberColumn("cycles", "Cycles", ofBlock("cycles", atFirst), decimal, {
        width: 3.4,
        few,
        hint: "Of one execution of the block, on average.",
        unknown: noCycles,
      }),
      ran(atFirst),
    ),
    blank(
      numberColumn("ipc", "IPC", ofBlock("ipc", atFirst), decimal, {
        width: 2.6,
        few,
        hint: "Instructions per cycle of the block.",
        unknown: noCycles,
      }),
      ran(atFirst),
    ),
  ];
  // Where nothing is known of a column, the sentence above the table says so once.
  return columns.filter(isKnown);
}
