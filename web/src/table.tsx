// A table of any length: only the rows in view are elements. Sorted by its columns, searched by its texts, and moved in
// by the keyboard. Sorting and search are in the address of the page.

import type { ComponentChild } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, counted, UNKNOWN } from "./format.ts";
import { change, state } from "./state.ts";
import type { Numbers } from "./wire.ts";

export interface Column {
  /** Its name in the address of the page, and in tests (data-column). */
  readonly key: string;
  readonly title: string;
  /** What the numbers are: %, ns... */
  readonly unit?: string;
  /** One sentence: what the column says. */
  readonly hint?: string;
  /** What it is sorted by. NaN and "" are not known, and come last. */
  readonly values: Numbers | BigUint64Array | BigInt64Array | readonly string[];
  /** In rem; the least where it may grow. */
  readonly width: number;
  /** Its part of the room that is left; without it the width is fixed. */
  readonly grow?: number;
  readonly numeric: boolean;
  /** Whether the search looks at it. */
  readonly searched?: boolean;
  cell(row: number): ComponentChild;
}

interface NumberOptions {
  readonly unit?: string;
  readonly hint?: string;
  readonly width?: number;
  /** The number that fills the whole cell with a bar; no bar without it. */
  readonly bar?: number;
  /** Why some rows have no number. */
  readonly unknown?: string;
  /** Where a number rests on so few counts that it is mostly chance: it is grey. */
  few?(row: number): boolean;
}

/** A column of numbers, right-aligned. */
export function numberColumn(
  key: string,
  title: string,
  values: Numbers,
  format: (value: number) => string,
  { bar, unknown, few, width = 6, ...rest }: NumberOptions = {},
): Column {
  const cell = (row: number): ComponentChild => {
    const value = values[row] ?? NaN;
    if (Number.isNaN(value)) return <Unknown why={unknown} />;
    const faint = few?.(row) ?? false;
    const text = faint ? <span class="few" title="Mostly chance: it rests on too few counts.">{format(value)}</span> : format(value);
    if (bar === undefined) return text;
    const share = bar > 0 ? Math.min(1, value / bar) : 0;
    return (
      <>
        <span class={faint ? "bar faint" : "bar"} style={{ width: `${100 * share}%` }} aria-hidden="true" />
        <span class="over">{text}</span>
      </>
    );
  };
  return { key, title, values, width, numeric: true, cell, ...rest };
}

interface TextOptions {
  readonly hint?: string;
  readonly width?: number;
  readonly grow?: number;
  readonly unknown?: string;
  /** Where a click on the text leads; null: nowhere. */
  link?(row: number): string | null;
}

/** A column of names: all of one width, cut off with … where they are longer (`Place`), whole in the tooltip. */
export function textColumn(
  key: string,
  title: string,
  values: readonly string[],
  { link, unknown, width = 11, ...rest }: TextOptions = {},
): Column {
  const cell = (row: number): ComponentChild => {
    const text = values[row];
    if (!text) return <Unknown why={unknown} />;
    const shown = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
    const target = link?.(row);
    return target ? (
      <a href={target} title={shown} tabIndex={-1}>
        <Place name={shown} />
      </a>
    ) : (
      <span title={shown}>
        <Place name={shown} />
      </span>
    );
  };
  return { key, title, values, width, numeric: false, searched: true, cell, ...rest };
}

const LONGEST = 1000;
const ROW = 26; // px, as in app.css
const AROUND = 8; // rows that are made beyond those in view

/** A name in one line. What is cut off where there is no room is its end, but never the offset of a place in it. */
export function Place({ name }: { name: string }): ComponentChild {
  const offset = /\+0x[0-9a-f]+$/.exec(name)?.[0];
  if (!offset) return name;
  return (
    <>
      <span class="named" style={{ maxWidth: `calc(100% - ${offset.length}ch)` }}>{name.slice(0, -offset.length)}</span>
      {offset}
    </>
  );
}

export function Unknown({ why = "The capture does not say." }: { why?: string | undefined }): ComponentChild {
  return (
    <span class="unknown" title={why}>
      {UNKNOWN}
    </span>
  );
}

interface TableProps {
  /** What the rows are, for screen readers and tests. */
  readonly label: string;
  readonly columns: readonly Column[];
  readonly rows: number;
  /** The key of the column that sorts at first, with - for the largest first. */
  readonly sort: string;
  /** Of its parameters in the address, where a screen has several tables. */
  readonly prefix?: string;
  /** Enter, or a double click. */
  onOpen?(row: number): void;
  /** Beside the search: what the table cannot say. */
  readonly note?: ComponentChild;
}

export function Table({ label, columns, rows, sort, prefix = "", onOpen, note }: TableProps): ComponentChild {
  const { [`${prefix}sort`]: asked = sort, [`${prefix}find`]: find = "" } = state.value.parameters;
  const [active, setActive] = useState(0);
  const [view, setView] = useState({ top: 0, height: 800 });
  const scroller = useRef<HTMLDivElement>(null);
  const order = useMemo(() => ordered(columns, rows, asked, find), [columns, rows, asked, find]);
  const here = Math.min(active, order.length - 1);

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  const page = Math.max(1, Math.floor(view.height / ROW) - 2);
  const moves: Record<string, number> = {
    ArrowDown: here + 1,
    ArrowUp: here - 1,
    PageDown: here + page,
    PageUp: here - page,
    Home: 0,
    End: order.length - 1,
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.target !== scroller.current) return;
    const to = moves[event.key];
    if (to !== undefined) {
      event.preventDefault();
      const next = Math.max(0, Math.min(order.length - 1, to));
      setActive(next);
      reveal(scroller.current, next);
    } else if (event.key === "Enter") {
      onOpen?.(order[here] ?? 0);
    }
  };
  const onSort = (column: Column): void => {
    const descending = asked === column.key ? true : asked === `-${column.key}` ? false : column.numeric;
    change({ [`${prefix}sort`]: `${descending ? "-" : ""}${column.key}` }, true);
  };

  const first = Math.max(0, Math.floor(view.top / ROW) - AROUND);
  const shown = order.subarray(first, Math.ceil((view.top + view.height) / ROW) + AROUND);
  const template = { gridTemplateColumns: columns.map(({ width, grow }) => (grow ? `minmax(${width}rem, ${grow}fr)` : `${width}rem`)).join(" ") };
  const least = columns.reduce((sum, { width }) => sum + width, 1); // and the padding of a row
  const id = (row: number): string => `${prefix}row-${row}`;
  return (
    <section class="table" aria-label={label}>
      <div class="above">
        <input
          type="search"
          class="find"
          aria-label={`Search ${label}`}
          placeholder="Search names  /"
          value={find}
          onInput={(event) => change({ [`${prefix}find`]: event.currentTarget.value }, true)}
        />
        <span class="counted" role="status">
          {order.length === rows ? "" : `${count(order.length)} of `}{counted(rows, "row")}
        </span>
        {note}
      </div>
      <div
        ref={scroller}
        class="grid"
        role="grid"
        tabIndex={0}
        aria-label={label}
        aria-rowcount={order.length + 1}
        aria-colcount={columns.length}
        aria-activedescendant={order.length ? id(here) : undefined}
        onKeyDown={onKeyDown}
      >
        <div role="rowgroup" class="head" style={{ minWidth: `${least}rem` }}>
          <div role="row" aria-rowindex={1} class="row" style={template}>
            {columns.map((column) => (
              <Heading key={column.key} column={column} sorted={asked} onSort={onSort} />
            ))}
          </div>
        </div>
        <div role="rowgroup" class="body" style={{ minWidth: `${least}rem`, height: `${order.length * ROW}px` }}>
          {Array.from(shown, (row, i) => {
            const at = first + i;
            return (
              <div
                key={row}
                id={id(at)}
                role="row"
                class={`row${at === here ? " active" : ""}`}
                style={{ ...template, transform: `translateY(${at * ROW}px)` }}
                aria-rowindex={at + 2}
                aria-selected={at === here}
                data-row={row}
                onClick={() => setActive(at)}
                onDblClick={() => onOpen?.(row)}
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

interface HeadingProps {
  readonly column: Column;
  readonly sorted: string;
  onSort(column: Column): void;
}

function Heading({ column, sorted, onSort }: HeadingProps): ComponentChild {
  const by = sorted === column.key ? "ascending" : sorted === `-${column.key}` ? "descending" : "none";
  return (
    <div role="columnheader" aria-sort={by} class={column.numeric ? "cell number" : "cell"}>
      <button type="button" title={column.hint} onClick={() => onSort(column)}>
        {column.title}
        {column.unit ? <span class="unit"> {column.unit}</span> : null}
        {by === "none" ? null : <span aria-hidden="true">{by === "ascending" ? " ↑" : " ↓"}</span>}
      </button>
    </div>
  );
}

/** The rows that the search leaves, in the order that is asked for. */
function ordered(columns: readonly Column[], rows: number, sort: string, find: string): Uint32Array {
  const wanted = find.toLowerCase();
  const texts = columns.flatMap(({ searched, values }) => (searched ? [values as readonly string[]] : []));
  let order = Uint32Array.from({ length: rows }, (_, row) => row);
  if (wanted) order = order.filter((row) => texts.some((names) => names[row]?.toLowerCase().includes(wanted)));
  const column = columns.find(({ key }) => key === sort.replace(/^-/, ""));
  return column ? order.sort(compare(column.values, sort.startsWith("-") ? -1 : 1)) : order;
}

function compare(values: Column["values"], sign: number): (a: number, b: number) => number {
  return (a, b) => {
    const x = values[a] as number;
    const y = values[b] as number;
    const xKnown = !Number.isNaN(x) && (x as unknown) !== "";
    const yKnown = !Number.isNaN(y) && (y as unknown) !== "";
    if (!xKnown || !yKnown) return xKnown ? -1 : yKnown ? 1 : a - b;
    return x < y ? -sign : x > y ? sign : a - b;
  };
}

function reveal(element: HTMLElement | null, row: number): void {
  if (!element) return;
  const room = element.clientHeight - ROW; // below the headings, which stay
  const top = row * ROW;
  if (top < element.scrollTop) element.scrollTop = top;
  else if (top + ROW > element.scrollTop + room) element.scrollTop = top + ROW - room;
}
