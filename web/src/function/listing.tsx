// The assembly: how often each block ran, and which way its branches went.

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { count, decimal, hex, largest, percent } from "../format.ts";
import { Notes } from "../parts.tsx";
import { numberColumn, Table, textColumn, type Column } from "../table.tsx";
import type { Answer, Numbers } from "../wire.ts";
import { choose } from "./choice.ts";
import type { PanelProps } from "./code.ts";

export function Listing({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const columns = useMemo(() => columnsOf(answer), [answer]);
  return (
    <Table
      label="Instructions"
      columns={columns}
      rows={code.rows}
      sort="address"
      onOpen={(row) => choose(code, row)}
      note={<Notes notes={answer.list("notes")} />}
    />
  );
}

function columnsOf(answer: Answer): Column[] {
  const block = answer.numbers("instructions.block");
  const first = answer.numbers("blocks.first");
  const last = answer.numbers("blocks.last");
  const kind = answer.texts("instructions.kind");
  const address = answer.bigs("instructions.address");
  const missing = String(answer.header["missing"] ?? "");
  const rows = block.length;

  /** A value of the block in each of its rows that `where` names, else NaN. */
  const ofBlock = (name: string, where: (row: number, of: number) => boolean): Numbers => {
    const values = answer.numbers(`blocks.${name}`);
    return Float64Array.from({ length: rows }, (_, row) => (where(row, block[row] ?? 0) ? (values[block[row] ?? 0] ?? NaN) : NaN));
  };
  const atFirst = (row: number, of: number): boolean => first[of] === row;
  const atLast = (row: number, of: number): boolean => last[of] === row;
  const counts = ofBlock("count", atFirst);
  const blank = (column: Column, values: Numbers): Column => ({
    ...column,
    cell: (row) => (Number.isNaN(values[row]) && !missing ? null : column.cell(row)),
  });
  const taken = ofBlock("taken", (row, of) => atLast(row, of) && kind[row] === "cond");
  const wrong = ofBlock("mispredicted", atLast);
  const cycles = ofBlock("cycles", atFirst);
  const samples = answer.numbers("instructions.samples");
  return [
    {
      key: "address",
      title: "Address",
      hint: "As linked.",
      values: address,
      width: 8,
      numeric: true,
      cell: (row) => hex(address[row] ?? 0n),
    },
    textColumn("text", "Instruction", answer.texts("instructions.text"), { width: 17, grow: 1 }),
    numberColumn("samples", "Samples", samples, (value) => (value ? count(value) : ""), {
      bar: largest(samples),
      hint: "Samples with this address.",
    }),
    blank(numberColumn("count", "Executed", counts, count, { hint: "How often its block ran, as branch records show.", unknown: missing }), counts),
    blank(numberColumn("taken", "Taken", taken, percent, { unit: "%", hint: "Of the times that the branch ran.", unknown: missing }), taken),
    blank(numberColumn("mispredicted", "Mispredicted", wrong, percent, { unit: "%", width: 8, hint: "Of the times that it was taken.", unknown: missing }), wrong),
    blank(numberColumn("cycles", "Cycles", cycles, decimal, { hint: "Of its block, on average.", unknown: missing }), cycles),
  ];
}
