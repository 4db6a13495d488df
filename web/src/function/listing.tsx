// The assembly: how often each block ran, and which way its branches went, with its jumps as arcs beside it. Only the
// rows in view are elements.

import type { ComponentChild } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, counted, decimal, hex, largest, percent } from "../format.ts";
import { Notes } from "../parts.tsx";
import { change } from "../state.ts";
import { numberColumn, textColumn, type Column } from "../table.tsx";
import type { Numbers } from "../wire.ts";
import { choose, chosenRow, point, pointed } from "./choice.ts";
import type { Code, PanelProps } from "./code.ts";
import { Arcs, GUTTER } from "./gutter.ts";

const ROW = 22; // px, as in app.css
const END = 8; // px after the last column, as in app.css
const AROUND = 10;

export function Listing({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const arcs = useMemo(() => new Arcs(answer), [answer]);
  const columns = useMemo(() => columnsOf(code, arcs), [code, arcs]);
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [arc, setArc] = useState(-1);
  const chosen = chosenRow(code);
  const under = pointed.value;

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const measure = (): void => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  useLayoutEffect(() => reveal(scroller.current, chosen < 0 ? code.hottest : chosen), [code, chosen]);
  useLayoutEffect(() => {
    if (canvas.current) arcs.paint(canvas.current, view.top, view.height - ROW, ROW, under, arc);
  });
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const again = (): void => setView((before) => ({ ...before }));
    dark.addEventListener("change", again);
    return () => dark.removeEventListener("change", again);
  }, []);

  const here = chosen < 0 ? code.hottest : chosen;
  const page = Math.max(1, Math.floor(view.height / ROW) - 3);
  const moves: Record<string, number> = {
    ArrowDown: chosen < 0 ? here : here + 1,
    ArrowUp: chosen < 0 ? here : here - 1,
    PageDown: here + page,
    PageUp: here - page,
    Home: 0,
    End: code.rows - 1,
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.target !== scroller.current) return;
    const to = moves[event.key];
    if (to !== undefined) {
      event.preventDefault();
      choose(code, Math.max(0, Math.min(code.rows - 1, to)));
    } else if (event.key === "Enter" && chosen >= 0) {
      jump(code, arcs, here);
    }
  };
  const inGutter = (event: MouseEvent): void => {
    const found = arcs.at(event.offsetX, event.offsetY + view.top, ROW);
    setArc(found);
    point(found < 0 ? [] : arcs.ends(found));
  };
  const first = Math.max(0, Math.floor(view.top / ROW) - AROUND);
  const past = Math.min(code.rows, Math.ceil((view.top + view.height) / ROW) + AROUND);
  const template = { gridTemplateColumns: columns.map(({ width, grow }) => (grow ? `minmax(${width}rem, ${grow}fr)` : `${width}rem`)).join(" ") };
  const least = `${columns.reduce((sum, { width }) => sum + width, 0) + (GUTTER + END) / 16}rem`;
  return (
    <section class="table listing" aria-label="Assembly">
      <div class="above">
        <span class="counted" role="status">{arc < 0 ? `${counted(code.rows, "instruction")} in ${counted(code.first.length, "block")}` : arcs.said(arc, code)}</span>
        <Notes notes={answer.list("notes")} />
      </div>
      <div
        ref={scroller}
        class="grid"
        role="grid"
        tabIndex={0}
        aria-label="Instructions"
        aria-rowcount={code.rows + 1}
        aria-colcount={columns.length}
        aria-activedescendant={chosen >= 0 ? `row-${chosen}` : undefined}
        onKeyDown={onKeyDown}
        onMouseLeave={() => point([])}
      >
        <div role="rowgroup" class="head" style={{ minWidth: least }}>
          <div role="row" aria-rowindex={1} class="row" style={template}>
            {columns.map(({ key, title, unit, hint, numeric }) => (
              <div key={key} role="columnheader" title={hint} class={numeric ? "cell number" : "cell"}>
                {title}
                {unit ? <span class="unit"> {unit}</span> : null}
              </div>
            ))}
          </div>
        </div>
        <canvas
          ref={canvas}
          class="gutter"
          aria-hidden="true"
          style={{ width: `${GUTTER}px`, height: `${Math.max(0, view.height - ROW)}px`, marginBottom: `-${Math.max(0, view.height - ROW)}px` }}
          onMouseMove={inGutter}
          onMouseLeave={() => setArc(-1)}
          onClick={() => arc >= 0 && choose(code, arcs.ends(arc)[1] ?? 0)}
        />
        <div role="rowgroup" class="body" style={{ minWidth: least, height: `${code.rows * ROW}px` }}>
          {Array.from({ length: past - first }, (_, i) => {
            const row = first + i;
            const block = code.block[row] ?? 0;
            const names = ["row"];
            if (code.first[block] === row) names.push("leader");
            if (row === chosen) names.push("active");
            if (under.includes(row)) names.push("pointed");
            if (!code.counted[block]) names.push("cold");
            return (
              <div
                key={row}
                id={`row-${row}`}
                role="row"
                class={names.join(" ")}
                style={{ ...template, transform: `translateY(${row * ROW}px)` }}
                aria-rowindex={row + 2}
                aria-selected={row === chosen}
                data-row={row}
                onMouseEnter={() => point([row])}
                onClick={() => choose(code, row)}
                onDblClick={() => jump(code, arcs, row)}
              >
                {columns.map((column) => (
                  <div key={column.key} role="gridcell" class={column.numeric ? "cell number" : "cell"} data-column={column.key}>
                    {column.cell(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </section>
  );
}

/** Where the hottest jump of a row leads: an entry in the history, so that the back button returns. */
function jump(code: Code, arcs: Arcs, row: number): void {
  const target = code.address[arcs.targetOf(row)];
  if (target !== undefined) change({ at: hex(target) });
}

function reveal(element: HTMLElement | null, row: number): void {
  if (!element || row < 0) return;
  const room = element.clientHeight - ROW;
  const top = row * ROW;
  if (top < element.scrollTop || top + ROW > element.scrollTop + room) element.scrollTop = Math.max(0, top - room / 3);
}

function columnsOf(code: Code, arcs: Arcs): Column[] {
  const { answer, block, first, last, address, missing } = code;
  const kind = answer.texts("instructions.kind");
  const rows = code.rows;

  /** A value of the block in each of its rows that `where` names, else NaN. */
  const ofBlock = (name: string, where: (row: number, of: number) => boolean): Numbers => {
    const values = answer.numbers(`blocks.${name}`);
    return Float64Array.from({ length: rows }, (_, row) => (where(row, block[row] ?? 0) ? (values[block[row] ?? 0] ?? NaN) : NaN));
  };
  const atFirst = (row: number, of: number): boolean => first[of] === row;
  const atLast = (row: number, of: number): boolean => last[of] === row && kind[row] !== "";
  const ofBranch = (row: number, of: number): boolean => atLast(row, of) && kind[row] === "cond";
  /** Empty in the rows that the value is not of, and "not known" where it is. */
  const blank = (column: Column, where: (row: number, of: number) => boolean): Column => ({
    ...column,
    cell: (row) => (where(row, block[row] ?? 0) ? column.cell(row) : null),
  });
  const ran = (where: (row: number, of: number) => boolean) => (row: number, of: number) => where(row, of) && (missing !== "" || Boolean(code.counted[of]));
  const counts = ofBlock("count", atFirst);
  const samples = answer.numbers("instructions.samples");
  const digits = hex(address[rows - 1] ?? 0n).length;
  const enough = Number(answer.header["enough"]);
  const few = (row: number): boolean => (code.counted[block[row] ?? 0] ?? 0) < enough;
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
  const timed = answer.numbers("blocks.cycles").some((value: number) => !Number.isNaN(value));
  const judged = answer.numbers("blocks.mispredicted").some((value: number) => !Number.isNaN(value));
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
      numberColumn("count", "Executed", counts, count, {
        width: 4.3,
        bar: largest(counts),
        hint: "How often its block ran, as branch records show.",
        unknown: missing,
      }),
      atFirst,
    ),
    blank(numberColumn("taken", "Taken", ofBlock("taken", ofBranch), percent, { width: 3.8, unit: "%", few, hint: "Of the times that the branch ran.", unknown: missing }), ran(ofBranch)),
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
    blank(numberColumn("cycles", "Cycles", ofBlock("cycles", atFirst), decimal, { width: 3.4, few, hint: "Of one execution of the block, on average.", unknown: noCycles }), ran(atFirst)),
    blank(numberColumn("ipc", "IPC", ofBlock("ipc", atFirst), decimal, { width: 2.6, few, hint: "Instructions per cycle of the block.", unknown: noCycles }), ran(atFirst)),
  ];
  // Where nothing is known of a column, the sentence above the table says so once.
  return columns.filter(({ key }) => (timed || (key !== "cycles" && key !== "ipc")) && (judged || key !== "mispredicted"));
}
